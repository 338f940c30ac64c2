"""The routes that the engine answers."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from app.api.answer import Answer, Desk
from app.api.context import exchange_of
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


class Direct(APIRoute):
    """A route whose endpoint takes the request and nothing else: nothing has to be resolved."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = self._answer

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def generation_router(desk: Desk) -> APIRouter:
    """One POST route for each operation."""
    router = APIRouter(tags=["inference"], route_class=Direct)
    for operation, path in PATHS.items():
        router.add_api_route(
            path, _endpoint(desk, operation), methods=["POST"], name=operation.value
        )
    return router


def _endpoint(desk: Desk, operation: Operation) -> Callable[[Request], Awaitable[Answer]]:
    async def answer(request: Request) -> Answer:
        exchange_of(request.scope).route = operation.value
        return Answer(desk, operation)

    return answer
