"""What vllm reads from the environment alone, set before it is imported.

Engine processes inherit it.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.settings import Settings
from app.telemetry.logs import write_vllm_logging_config

_FIXED = {
    # A forked engine would hold the listening socket, and CUDA does not survive a fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # No usage telemetry; a service does not phone home.
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # A permitted media domain must not lead to one that is not.
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    # Adapters are named in the settings; a route that loads others is not offered.
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0",
    # The store of /v1/responses is in memory, never emptied, and one replica's only.
    "VLLM_ENABLE_RESPONSES_API_STORE": "0",
    "VLLM_SERVER_DEV_MODE": "0",
}


_LOGGING = "VLLM_LOGGING_CONFIG_PATH"


@contextmanager
def prepared(settings: Settings) -> Iterator[None]:
    """Set the environment for vllm; the files it points to live until the exit."""
    with tempfile.TemporaryDirectory(prefix="tidegate-") as directory:
        os.environ.update(_FIXED)
        config = Path(directory) / "vllm-logging.json"
        os.environ[_LOGGING] = str(config)
        write_vllm_logging_config(settings.logging, config, start_failure())
        try:
            yield
        finally:
            # Or whoever imports vllm next in this process would look for a file that is gone.
            if os.environ.get(_LOGGING) == str(config):
                del os.environ[_LOGGING]


def start_failure() -> Path:
    """Where the engine's processes write why they did not start; in each of them the same."""
    return Path(os.environ[_LOGGING]).with_name("start-failure")


def compile_nothing() -> None:
    """Let torch interpret what vllm compiles even when it is told to be eager.

    Its sampling of logprobs, for one: on a CPU the first such request would stop all streams for
    the time of a C++ compiler, and end the engine where there is none.
    """
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
