"""The errors that a client can meet, each with its status and code.

    TidegateError
    ├── BadRequest                 400
    │   ├── InvalidValue               invalid_value
    │   ├── InvalidJson                invalid_json
    │   └── ContextLengthExceeded      context_length_exceeded
    ├── NotFound                   404  not_found
    │   └── ModelNotFound              model_not_found
    ├── MethodNotAllowed           405  method_not_allowed
    ├── BodyTimeout                408  request_timeout
    ├── BodyTooLarge               413  request_too_large
    ├── ClientDisconnected         499  client_disconnected (logged, never sent)
    ├── InternalError              500  internal_error
    │   ├── EngineDead                 engine_dead
    │   └── EngineAborted              engine_aborted
    └── Starting                   503  starting

``code`` is the JSON ``code`` and the metric label. The message is written for the client:
it never carries the text of an exception that was not made for clients.
"""

import json
import random
from collections.abc import Mapping
from typing import Any, ClassVar

# The contract bounds an error's body at 10 kB, whatever the input; these are bytes of JSON.
MAX_MESSAGE_BYTES = 4_000
MAX_PARAM_BYTES = 400

# https://docs.anthropic.com/en/api/errors
_ANTHROPIC_TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class TidegateError(Exception):
    """An error with everything that is needed to answer a client with it."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    retry_after_s: ClassVar[float | None] = None
    closes_connection: ClassVar[bool] = False

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = _shorten(message, MAX_MESSAGE_BYTES)
        self.param = _shorten(param, MAX_PARAM_BYTES) if param is not None else None

    def body(self) -> dict[str, Any]:
        """The OpenAI error body, also used as the in-stream error event."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def anthropic_body(self) -> dict[str, Any]:
        """The same body with the top-level type that Anthropic's clients look for."""
        body = self.body()
        body["error"]["type"] = _ANTHROPIC_TYPES.get(self.status, self.anthropic_fallback())
        return {"type": "error", **body}

    def anthropic_fallback(self) -> str:
        return "api_error" if self.status >= 500 else "invalid_request_error"

    def headers(self) -> dict[str, str]:
        """Retry advice (seconds, ±25 % so that clients do not come back together)."""
        headers = {"connection": "close"} if self.closes_connection else {}
        if self.retry_after_s is not None:
            wait_s = min(60.0, max(1.0, self.retry_after_s * random.uniform(0.75, 1.25)))
            headers["retry-after"] = str(max(1, round(wait_s)))
            headers["retry-after-ms"] = str(round(wait_s * 1000))
        return headers


def _shorten(text: str, limit: int) -> str:
    """The text, cut so that it takes at most `limit` bytes as ASCII-only JSON."""
    # Lone surrogates cannot be encoded as UTF-8, and a client may send them back to itself.
    text = text.encode("utf-8", "replace").decode("utf-8")
    cut = text[:limit]
    while len(json.dumps(cut)) > limit:
        cut = cut[: len(cut) * 3 // 4]
    return text if cut == text else f"{cut}…"


class BadRequest(TidegateError):
    status = 400
    code = "invalid_value"
    type = "invalid_request_error"


class InvalidValue(BadRequest):
    code = "invalid_value"


class InvalidJson(BadRequest):
    code = "invalid_json"


class ContextLengthExceeded(BadRequest):
    code = "context_length_exceeded"


class NotFound(TidegateError):
    status = 404
    code = "not_found"
    type = "invalid_request_error"


class ModelNotFound(NotFound):
    code = "model_not_found"


class MethodNotAllowed(TidegateError):
    status = 405
    code = "method_not_allowed"
    type = "invalid_request_error"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "allow": self.allow}


class BodyTimeout(TidegateError):
    status = 408
    code = "request_timeout"
    type = "invalid_request_error"
    closes_connection = True


class BodyTooLarge(TidegateError):
    status = 413
    code = "request_too_large"
    type = "invalid_request_error"
    closes_connection = True


class ClientDisconnected(TidegateError):
    """The client went away; the status is nginx's, for the log and the metrics only."""

    status = 499
    code = "client_disconnected"

    def __init__(self) -> None:
        super().__init__("the client closed the connection")


class InternalError(TidegateError):
    def __init__(self, message: str = "Internal error; the server's log has the reason.") -> None:
        super().__init__(message)


class EngineDead(InternalError):
    code = "engine_dead"

    def __init__(self) -> None:
        super().__init__("The inference engine has died; the server is restarting.")


class EngineAborted(InternalError):
    code = "engine_aborted"

    def __init__(self) -> None:
        super().__init__("The inference engine gave this request up before it was complete.")


class Starting(TidegateError):
    status = 503
    code = "starting"
    retry_after_s = 5.0

    def __init__(self, stage: str) -> None:
        super().__init__(f"The model is being loaded ({stage}); try again shortly.")
