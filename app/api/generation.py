"""The routes that the engine answers."""

from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute

from app.api.answer import Answer, Desk
from app.engine.protocol import Operation

PATHS: dict[Operation, str] = {
    Operation.COMPLETIONS: "/v1/completions",
    Operation.CHAT: "/v1/chat/completions",
    Operation.RESPONSES: "/v1/responses",
    Operation.MESSAGES: "/v1/messages",
    Operation.COUNT_TOKENS: "/v1/messages/count_tokens",
    Operation.EMBEDDINGS: "/v1/embeddings",
    Operation.TOKENIZE: "/tokenize",
    Operation.DETOKENIZE: "/detokenize",
}

DESCRIPTION = "Takes what vLLM's own server takes, with its meaning."


class Direct(APIRoute):
    """A route that has nothing to be resolved: what FastAPI knows of it is its description."""

    def __init__(self, path: str, endpoint: Answer, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = endpoint.app


def generation_router(desk: Desk) -> APIRouter:
    """One POST route for each operation."""
    router = APIRouter(tags=["inference"], route_class=Direct)
    for operation, path in PATHS.items():
        answer = Answer(desk, operation)
        router.add_api_route(
            path, answer, methods=["POST"], name=operation.value, description=DESCRIPTION
        )
    return router
