"""Every exception and error value of vllm, as one of ours."""

import logging
import re
from typing import Any

import pydantic
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from app.errors import (
    ContextLengthExceeded,
    EngineDead,
    InternalError,
    InvalidValue,
    ModelNotFound,
    TidegateError,
)

logger = logging.getLogger(__name__)

_CONTEXT = re.compile(
    r"maximum context length|exceeds the max_model_len|greater than max_model_len"
    r"|maximum model length|longer than the maximum"
)


def translate(error: Exception) -> TidegateError:
    """The client's view of an exception; what is our fault is logged with its traceback."""
    if isinstance(error, TidegateError):
        return error
    if isinstance(error, EngineDeadError):
        return EngineDead()
    if isinstance(error, EngineGenerateError) and isinstance(error.__cause__, Exception):
        return translate(error.__cause__)
    if isinstance(error, pydantic.ValidationError):
        return from_validation(error)
    translated = from_response(create_error_response(error))
    if translated.status >= 500:
        logger.error("a request failed", exc_info=error)
    return translated


# What vllm appends to a message for its own logs; `param` says it better.
_APPENDIX = re.compile(r" \(parameter=\w+(, value=.*)?\)$", re.DOTALL)


def from_response(response: ErrorResponse) -> TidegateError:
    """An error value that a serving object returned."""
    error = response.error
    message = _APPENDIX.sub("", error.message)
    if error.code >= 500 and error.code != 501:
        return InternalError()
    if error.code == 404 and "model" in message.lower():
        return ModelNotFound(message, "model")
    if _CONTEXT.search(message):
        return ContextLengthExceeded(message, error.param)
    return InvalidValue(message, error.param)


def from_validation(error: pydantic.ValidationError) -> InvalidValue:
    """The first thing that is wrong with a body, and how many more there are."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    first = min(details, key=lambda detail: _depth(detail["loc"]))
    param = ".".join(str(part) for part in first["loc"] if _is_field(part)) or None
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    message = f"{param}: {first['msg']}" if param else first["msg"]
    return InvalidValue(f"{message}{more}", param)


def _depth(location: tuple[Any, ...]) -> int:
    return len(location)


def _is_field(part: Any) -> bool:
    """Whether a part of an error's location is the client's own, not a branch of a union."""
    return isinstance(part, int) or bool(re.fullmatch(r"[a-z_][a-z0-9_]*", part))
