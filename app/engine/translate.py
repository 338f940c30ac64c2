"""Every exception and error value of vllm, as one of ours.

Only what was written for clients is shown to them: the messages of vllm's own client errors, and
of the plain `ValueError`s with which the rest of vllm says the same. What Python or a library says
when it trips over a value is for the log.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from jinja2 import TemplateError
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import VLLMError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from app.errors import (
    ContextLengthExceeded,
    EngineDead,
    InternalError,
    InvalidValue,
    ModelNotFound,
    TidegateError,
)
from app.permit import current_permit

logger = logging.getLogger(__name__)

_CONTEXT = re.compile(
    r"maximum context length|exceeds the max_model_len|greater than max_model_len"
    r"|maximum model length|longer than the maximum"
    # The request's own max_tokens have been checked; this is what its prompt left of the context.
    r"|^max_tokens must be at least 1, got 0"
)

# What code raises that meets a value it was not made for. Before the engine is called there is
# only the client's value that this can come from.
_TRIPPED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RecursionError,
    TemplateError,
    TypeError,
    ValueError,
)
# How the engine's client refuses a value, besides vllm's own errors.
_REFUSED = (OverflowError, TypeError, ValueError)


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
    if isinstance(error, (VLLMError, *_blamed_on_the_request())):
        return _of_the_request(error)
    logger.error("a request failed", exc_info=error)
    return InternalError()


def _blamed_on_the_request() -> tuple[type[Exception], ...]:
    """What is the request's fault at this point of its life: ever less, and nothing in the end."""
    permit = current_permit.get()
    if permit is None or not permit.dispatched:
        return _TRIPPED
    return _REFUSED if permit.ttft_s is None else ()


def _of_the_request(error: Exception) -> TidegateError:
    translated = from_response(create_error_response(error))
    if translated.status >= InternalError.status:
        logger.error("a request failed", exc_info=error)
    elif not _is_for_clients(error):
        # Its text may quote the request, which is not for the log.
        logger.warning("a request tripped %s in vllm", type(error).__name__)
        logger.debug("where it tripped", exc_info=error)
        return InvalidValue("The request has a value that cannot be processed.")
    return translated


def _is_for_clients(error: Exception) -> bool:
    """Whether the message was written for clients and does not repeat one that was not."""
    if not (isinstance(error, VLLMError) or type(error) in (ValueError, TemplateError)):
        return False
    cause = error.__cause__ or error.__context__
    quoted = isinstance(cause, _TRIPPED) and str(cause) in str(error)
    return not (quoted and type(cause) not in (ValueError, TemplateError))


# More than any body has that somebody wrote; each costs time to describe.
MAX_FAULTS = 1_000

# How vllm begins a message about a field that it does not name apart.
_SUBJECT = re.compile(r"`?([a-z_][a-z0-9_.]*)`? (?:must|cannot)\b")

# vllm's names for things that are not fields of a request.
_NOT_FIELDS = frozenset({"extra_args", "input_text", "input_tokens"})


def _without_appendix(message: str) -> str:
    """The message without what vllm appends to it for its own logs; `param` says it better."""
    start = message.find(" (parameter=") if message.endswith(")") else -1
    return message if start < 0 else message[:start]


def from_response(response: ErrorResponse) -> TidegateError:
    """An error value that a serving object returned."""
    error = response.error
    message = _without_appendix(error.message)
    subject = _SUBJECT.match(message)
    param = error.param or (subject and subject[1])
    param = None if param in _NOT_FIELDS else param
    if error.code >= 500 and error.code != 501:
        logger.error("vllm failed on a request: %s", error.message)
        return InternalError()
    if error.code == 404 and "model" in message.lower():
        # What else there is may not be for this client's eyes.
        return ModelNotFound(message.partition("does not exist.")[0] + "does not exist.", "model")
    if _CONTEXT.search(message):
        return ContextLengthExceeded(message, param)
    return InvalidValue(message, param)


@dataclass(frozen=True)
class _Fault:
    """One error of pydantic's.

    Attributes:
        path: where it is in the client's body.
        branches: the members of unions, and other names of pydantic's, that led there.

    """

    path: tuple[str | int, ...]
    branches: tuple[str | int, ...]
    kind: str
    text: str


def from_validation(error: pydantic.ValidationError, body: Any = None) -> InvalidValue:
    """The first thing that is wrong with a body, and how many more there are.

    Args:
        error: all that is wrong, for every member of every union.
        body: what was validated; without it no field is named.

    """
    if error.error_count() > MAX_FAULTS:
        return InvalidValue(f"The request body is not valid in {error.error_count()} places.")
    details = error.errors(include_url=False, include_context=False, include_input=False)
    faults = _meant([_fault(detail, body) for detail in details])
    first = min(faults, key=lambda fault: len(fault.path))
    param = ".".join(map(str, first.path)) or None
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    message = f"{param}: {first.text}" if param else first.text
    return InvalidValue(f"{message}{more}", param if body is not None else None)


def _fault(detail: Mapping[str, Any], body: Any) -> _Fault:
    path: list[str | int] = []
    branches: list[str | int] = []
    here = body
    for part in detail["loc"]:
        if _holds(here, part):
            path.append(part)
            here = here[part]
        else:
            branches.append(part)
    if detail["type"] == "missing":
        path.append(branches.pop())
    text = detail["msg"].removeprefix("Value error, ")
    return _Fault(tuple(path), tuple(branches), detail["type"], text)


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, Sequence) and isinstance(part, int) and part < len(value)


def _meant(faults: list[_Fault], level: int = 0) -> list[_Fault]:
    """The faults under those members of unions that the client most likely meant."""
    groups: dict[tuple[str | int, ...], list[_Fault]] = {}
    for fault in faults:
        groups.setdefault(fault.branches[level : level + 1], []).append(fault)
    branch, best = min(groups.items(), key=lambda group: _distance(group[1]))
    return _meant(best, level + 1) if branch else best


def _distance(faults: list[_Fault]) -> tuple[int, int, int, int]:
    """How far a body is from a member of a union: the deeper the faults and the fewer, the less.

    A literal that differs is the member's tag, so it counts before any other.
    """
    kinds = [fault.kind for fault in faults]
    literals = kinds.count("literal_error")
    types = sum(kind == "missing" or kind.endswith("_type") for kind in kinds)
    return -max(len(fault.path) for fault in faults), literals, types, len(faults)
