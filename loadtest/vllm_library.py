"""vLLM itself, for the commands that measure the engine and no server."""

import os
from collections.abc import Mapping
from typing import Any

from loadtest.errors import UsageError

_ENVIRONMENT = {
    # What vLLM compiles even when it is told to be eager would be compiled in the first run.
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def imported(who: str, threads: int, environment: Mapping[str, str]) -> Any:
    """The package, imported into the environment that it reads some things from alone.

    Args:
        who: needs it, for the error's text.
        threads: of the engine on a CPU.
        environment: what it is told besides.

    Raises:
        UsageError: it cannot be imported.

    """
    os.environ.update({**_ENVIRONMENT, **environment, "OMP_NUM_THREADS": str(threads)})
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import vllm  # noqa: PLC0415 - the harness does without it
    except ImportError as error:
        raise UsageError(f"{who} runs vLLM itself, which cannot be imported: {error}") from None
    return vllm
