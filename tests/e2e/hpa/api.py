"""The API server as its clients see it: objects by their paths."""

from typing import Any, Self, TypeAlias

import httpx

from tests.e2e.hpa.control_plane import AUTHORIZATION
from tests.e2e.hpa.tls import Certificate

Object: TypeAlias = dict[str, Any]

PLURALS = {
    "APIService": "apiservices",
    "ConfigMap": "configmaps",
    "Deployment": "deployments",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "Namespace": "namespaces",
    "Service": "services",
}


class Api:
    """Reads and writes; what the server refuses raises httpx.HTTPStatusError with its reason."""

    def __init__(self, url: str, tls: Certificate) -> None:
        self._client = httpx.AsyncClient(
            base_url=url,
            verify=tls.trusted(),
            headers=AUTHORIZATION,
            timeout=30.0,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def create(self, manifest: Object) -> Object:
        return await self._call("POST", collection(manifest), json=manifest)

    async def get(self, path: str, **parameters: str) -> Object:
        return await self._call("GET", path, params=parameters)

    async def post(self, path: str, body: Object) -> Object:
        return await self._call("POST", path, json=body)

    async def merge(self, path: str, patch: Object) -> Object:
        kind = {"Content-Type": "application/merge-patch+json"}
        return await self._call("PATCH", path, json=patch, headers=kind)

    async def remove(self, path: str) -> None:
        """At once, as a kubelet does when nothing of a pod is left; one that is gone is."""
        answer = await self._client.request("DELETE", path, json={"gracePeriodSeconds": 0})
        if answer.status_code != httpx.codes.NOT_FOUND:
            told(answer)

    async def _call(self, method: str, path: str, **rest: Any) -> Object:
        found: Object = told(await self._client.request(method, path, **rest)).json()
        return found


def told(answer: httpx.Response) -> httpx.Response:
    """The answer, or an error that says what the server said."""
    if answer.is_error:
        text = (
            f"{answer.request.method} {answer.url.path}: {answer.status_code} {answer.text[:500]}"
        )
        raise httpx.HTTPStatusError(text, request=answer.request, response=answer)
    return answer


def collection(manifest: Object) -> str:
    """Where objects of this kind are made, in the namespace that it names."""
    group = manifest["apiVersion"]
    root = f"/apis/{group}" if "/" in group else f"/api/{group}"
    namespace = manifest["metadata"].get("namespace")
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{within}/{PLURALS[manifest['kind']]}"
