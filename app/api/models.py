"""The served models and adapters."""

from typing import Any

from fastapi import APIRouter, Request

from app.api.answer import Desk
from app.api.context import exchange_of
from app.errors import ModelNotFound


def models_router(desk: Desk) -> APIRouter:
    """`GET /v1/models` and `GET /v1/models/{id}`; an id may hold slashes."""
    router = APIRouter(tags=["models"])

    @router.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        exchange_of(request.scope).route = "models"
        return await desk.engine().models()

    @router.get("/v1/models/{model_id:path}")
    async def model(request: Request, model_id: str) -> dict[str, Any]:
        exchange_of(request.scope).route = "models"
        listing = await desk.engine().models()
        for card in listing["data"]:
            if card["id"] == model_id:
                found: dict[str, Any] = card
                return found
        raise ModelNotFound(f"The model `{model_id}` does not exist.", "model")

    return router
