"""Every field of every route's schema with values of every kind: never a 5xx, nothing disturbed."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.rig.bodies import GENERATIVE, ROUTES, TOKENIZE, body, error_of
from tests.rig.service import Service

Schema = Mapping[str, Any]

AT_ONCE = 16
DEEP: Any = None
for _ in range(300):
    DEEP = {"a": [DEEP]}

VALUES: list[Any] = [
    *(None, True, 0, -1, 10**30, -1e308, 0.5, float("nan")),
    *("", "x\x00", "x" * 20_000),
    *([], [None], [-1], ["x"], {}, {"a": {}}, DEEP),
]
INNER: list[Any] = [-1, 10**30, "x", [None], {}]

LIMITS = {"max_tokens", "max_output_tokens"}
"""Not as null, which asks for as much as the context holds."""

FAILED = re.compile(r'"internal_error"|event: error|response\.failed|"engine_')
"""What a stream that began well may not hold."""


def fields(schema: Schema) -> dict[str, Schema]:
    """The properties of an object, or of every member of a union."""
    found: dict[str, Schema] = dict(schema.get("properties", {}))
    for member in schema.get("anyOf", ()):
        found |= fields(member)
    return found


def referred(schema: Schema, document: Schema) -> Iterator[tuple[bool, Schema]]:
    """The objects that a property may hold, and whether it holds them in a list."""
    for member in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if "$ref" in member:
            yield False, resolved(member, document)
        if "$ref" in member.get("items", {}):
            yield True, resolved(member["items"], document)


def resolved(schema: Schema, document: Schema) -> Schema:
    if "$ref" not in schema:
        if "anyOf" in schema:
            return {"anyOf": [resolved(member, document) for member in schema["anyOf"]]}
        return schema
    name = schema["$ref"].rsplit("/", 1)[1]
    found: Schema = document["components"]["schemas"][name]
    return found


def changes(path: str, document: Schema) -> Iterator[dict[str, Any]]:
    """Each field of a route with each value, and each field of the objects that it may hold."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    schema = resolved(content["application/json"]["schema"], document)
    for name, its in fields(schema).items():
        for value in VALUES:
            if not (value is None and name in LIMITS):
                yield {name: value}
        for listed, inner in referred(its, document):
            for key in fields(inner):
                for value in INNER:
                    yield {name: [{key: value}] if listed else {key: value}}


async def post(client: httpx.AsyncClient, path: str, change: dict[str, Any], stream: bool) -> None:
    fields = {"stream": stream} | change if path in GENERATIVE else change
    whole = body(path) | fields
    response = await client.post(
        path, content=json.dumps(whole), headers={"content-type": "application/json"}
    )
    said = f"{str(change)[:100]}: {response.status_code} {response.text[:300]}"
    assert response.status_code in (200, 400, 404), said
    if response.status_code == 200:
        assert not FAILED.search(response.text), said
    else:
        code = str(response.json()["error"]["code"])
        assert code in {"invalid_value", "invalid_json", "context_length_exceeded"} or (
            (response.status_code, code) == (404, "model_not_found") and "model" in change
        ), said
        error_of(response, response.status_code, code)


@pytest.mark.parametrize("path", ROUTES)
async def test_every_field_with_every_kind_of_value(service: Service, path: str) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def gated(client: httpx.AsyncClient, number: int, change: dict[str, Any]) -> None:
        async with gate:
            await post(client, path, change, stream=number % 2 == 0)

    async with service.async_client() as client:
        document = (await client.get("/openapi.json")).json()
        every = list(changes(path, document))
        assert len(every) > len(VALUES)
        work = (gated(client, number, change) for number, change in enumerate(every))
        results = await asyncio.gather(*work, return_exceptions=True)
        failures = [str(result) for result in results if result is not None]
        assert not failures, f"{len(failures)} of {len(every)}:\n" + "\n".join(failures[:40])
        for other in (path, TOKENIZE, GENERATIVE[0]):
            answer = await client.post(other, json=body(other))
            assert answer.status_code == (400 if other == "/v1/embeddings" else 200)
    for name in ("vllm_pending_requests", "vllm_running_requests"):
        assert service.metric(name) == 0
