"""Cross-origin calls from browsers, with refusals in the one error body."""

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from app.errors import InvalidValue


class JsonCORSMiddleware(CORSMiddleware):
    """Starlette's, which refuses a preflight in plain text."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < InvalidValue.status:
            return response
        refusal = InvalidValue(bytes(response.body).decode(), "origin")
        return JSONResponse(refusal.body(), refusal.status, {"vary": "Origin"})
