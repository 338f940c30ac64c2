"""The served models and adapters."""

from typing import Any

from fastapi import APIRouter, Request

from app.api.answer import Desk
from app.api.context import exchange_of
from app.engine.protocol import Engine
from app.errors import ModelNotFound


def models_router(desk: Desk) -> APIRouter:
    """`GET /v1/models` and `GET /v1/models/{id}`; an id may hold slashes."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        exchange_of(request.scope).route = "models"
        return await visible_to(request, desk.engine())

    @router.get("/v1/models/{model_id:path}")
    async def model(request: Request, model_id: str) -> dict[str, Any]:
        exchange_of(request.scope).route = "models"
        listing = await visible_to(request, desk.engine())
        for card in listing["data"]:
            if card["id"] == model_id:
                found: dict[str, Any] = card
                return found
        raise ModelNotFound(f"The model `{model_id}` does not exist.", "model")

    return router


async def visible_to(request: Request, engine: Engine) -> dict[str, Any]:
    """The models that the request's key may use."""
    listing = await engine.models()
    key = exchange_of(request.scope).key
    if key is None:
        return listing
    return {**listing, "data": [card for card in listing["data"] if key.may_use(card["id"])]}
