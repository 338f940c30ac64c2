"""Renders every error, on every path, as the one body of the contract."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from app.api.context import error_response, exchange_of
from app.errors import (
    InternalError,
    InvalidValue,
    MethodNotAllowed,
    NotFound,
    TidegateError,
)


async def render(request: Request, error: Exception) -> JSONResponse:
    """The response to a request that failed before its first byte."""
    failure = error if isinstance(error, TidegateError) else InternalError()
    exchange_of(request.scope).code = failure.code
    return error_response(failure, request.scope.get("path", ""))


async def _render_http(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own errors: no route, no such method."""
    assert isinstance(error, HTTPException)
    return await render(request, _from_http(request, error))


def _from_http(request: Request, error: HTTPException) -> TidegateError:
    if error.status_code == NotFound.status:
        return NotFound(f"Unknown path: {request.method} {request.url.path}")
    if error.status_code == MethodNotAllowed.status:
        allow = (error.headers or {}).get("Allow", "")
        return MethodNotAllowed(f"{request.method} is not allowed here; use {allow}.", allow)
    return InvalidValue(str(error.detail)) if error.status_code < 500 else InternalError()


def install(app: FastAPI) -> None:
    """Register the handlers; what they do not know ends in the request context."""
    app.add_exception_handler(TidegateError, render)
    app.add_exception_handler(HTTPException, _render_http)
