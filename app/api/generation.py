"""The routes that the engine answers."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import errors
from app.api.access import route_path
from app.api.answer import Answer, Desk
from app.api.context import exchange_of
from app.engine.protocol import Operation
from app.errors import TidegateError, forget_frames

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


class Straight:
    """The innermost middleware: takes such requests to their answers, past the router.

    There is nothing to be resolved for them, and the way to a route is long.
    """

    def __init__(self, app: ASGIApp, answers: Mapping[str, Answer]) -> None:
        self.app = app
        self.answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = None
        if scope["type"] == "http" and scope["method"] == "POST":
            answer = self.answers.get(route_path(scope))
        if answer is None:
            await self.app(scope, receive, send)
            return
        try:
            await answer.app(scope, receive, send)
        except TidegateError as error:
            if exchange_of(scope).begun:
                raise
            response = await errors.render(Request(scope), error)
            await response(scope, receive, send)
            # They hold the error, and the body with it, until the garbage collector comes.
            forget_frames(error)


class Direct(APIRoute):
    """A route that has nothing to be resolved: what FastAPI knows of it is its description."""

    def __init__(self, path: str, endpoint: Answer, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = endpoint.app


def answers_of(desk: Desk) -> dict[str, Answer]:
    """What answers the POST requests of each path."""
    return {path: Answer(desk, operation) for operation, path in PATHS.items()}


def generation_router(answers: Mapping[str, Answer]) -> APIRouter:
    """Their descriptions, and the answer to whatever does not go straight."""
    router = APIRouter(tags=["inference"], route_class=Direct)
    for path, answer in answers.items():
        router.add_api_route(
            path, answer, methods=["POST"], name=answer.operation.value, description=DESCRIPTION
        )
    return router
