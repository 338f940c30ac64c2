"""The errors that a client can meet, each with its status and code.

    TidegateError
    ├── BadRequest                 400
    │   ├── InvalidValue               invalid_value
    │   ├── InvalidJson                invalid_json
    │   └── ContextLengthExceeded      context_length_exceeded
    ├── Unauthorized               401  invalid_api_key
    ├── NotFound                   404  not_found
    │   └── ModelNotFound              model_not_found
    ├── MethodNotAllowed           405  method_not_allowed
    ├── BodyTimeout                408  request_timeout
    ├── BodyTooLarge               413  request_too_large
    ├── RateLimited                429  rate_limit_exceeded
    ├── ClientDisconnected         499  client_disconnected (logged, never sent)
    ├── InternalError              500  internal_error
    │   ├── EngineDead                 engine_dead
    │   └── EngineAborted              engine_aborted
    ├── Starting                   503  starting
    ├── Draining                       draining
    ├── Stalled                        stalled (the probes' alone)
    ├── QueueTimeout               503  queue_timeout
    └── Overload                   429 or 503 (admission.reject_status)
        ├── QueueFull                  queue_full
        └── Overloaded                 overloaded

``code`` is the JSON ``code`` and the metric label. The message is written for the client:
it never carries the text of an exception that was not made for clients.
"""

import json
import math
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

    status: int = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"
    retry_after_s: float | None = None
    # Clients that were refused together must not come back together.
    retry_spread: ClassVar[tuple[float, float]] = (0.75, 1.25)
    closes_connection: ClassVar[bool] = False
    # How the sequences of a request that fails with it are counted; None: by its status.
    ends_as: ClassVar[str | None] = None

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
        """Retry advice, in whole seconds and in milliseconds."""
        headers = {"connection": "close"} if self.closes_connection else {}
        if self.retry_after_s is not None:
            wait_s = self.retry_after_s * random.uniform(*self.retry_spread)
            wait_ms = math.ceil(min(60.0, max(1.0, wait_s)) * 1000)
            headers["retry-after"] = str(math.ceil(wait_ms / 1000))
            headers["retry-after-ms"] = str(wait_ms)
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


class Unauthorized(TidegateError):
    status = 401
    code = "invalid_api_key"
    type = "invalid_request_error"

    def headers(self) -> dict[str, str]:
        # RFC 9110, section 11.6.1: a 401 has to name the scheme.
        return {**super().headers(), "www-authenticate": "Bearer"}


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


class RateLimited(TidegateError):
    """Refused because of a limit of its API key."""

    status = 429
    code = "rate_limit_exceeded"
    type = "rate_limit_error"
    # It is known when the request would fit: before that it is refused again.
    retry_spread = (1.0, 1.25)

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


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


class Draining(TidegateError):
    status = 503
    code = "draining"
    closes_connection = True
    # Another instance takes it at once, as soon as the load balancer has noticed.
    retry_after_s = 4 / 3

    def __init__(self, message: str = "The server is shutting down; try again.") -> None:
        super().__init__(message)


class Stalled(TidegateError):
    """What the probes say; a request is not refused for it."""

    status = 503
    code = "stalled"

    def __init__(self, stalled_s: float) -> None:
        super().__init__(f"The engine has work and has made no step for {stalled_s:.0f} s.")


class QueueTimeout(TidegateError):
    status = 503
    code = "queue_timeout"
    ends_as = "timeout"
    retry_after_s = 5.0

    def __init__(self, waited_s: float) -> None:
        super().__init__(f"The request waited {waited_s:g} s and was not started; try again later.")


class Overload(TidegateError):
    """Refused because of what is in the service, not because of the request."""

    type = "rate_limit_error"
    ends_as = "displaced"

    def __init__(self, message: str, status: int, retry_after_s: float) -> None:
        super().__init__(message)
        self.status = status
        # So that the spread stays within what the contract allows, 1 to 60 s.
        self.retry_after_s = min(48.0, max(4 / 3, retry_after_s))


class QueueFull(Overload):
    code = "queue_full"

    def __init__(self, status: int, retry_after_s: float) -> None:
        super().__init__("Too many requests are waiting; try again later.", status, retry_after_s)


class Overloaded(Overload):
    code = "overloaded"

    def __init__(self, status: int, retry_after_s: float) -> None:
        super().__init__(
            "The request would have to wait for too long; try again later.", status, retry_after_s
        )


def forget_frames(error: BaseException) -> None:
    """Let go of what an error that is kept holds of the code that raised it, and of its causes."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
