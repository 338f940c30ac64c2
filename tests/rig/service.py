"""The service as its users meet it: `python -m app` with a real engine."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tests.rig.samples import Samples, parsed, shown, total
from tests.rig.server import LOOPBACK, Server, ServerError, free_port
from tests.rig.streams import Held, Stream, hold, scrape, until, until_metrics

__all__ = [
    "Held",
    "Samples",
    "Server",
    "ServerError",
    "Service",
    "Setting",
    "Stream",
    "adapter_settings",
    "free_port",
    "hold",
    "parsed",
    "scrape",
    "shown",
    "tiny_settings",
    "total",
    "until",
    "until_metrics",
]

Setting: TypeAlias = bool | float | str | Path | Sequence[object] | Mapping[str, object] | None

SERVED = "tiny"
ADAPTER = "tiny-lora"
KV_BYTES = 256 << 20
"""131,072 tokens of the tiny model: 2 layers x 2 (keys, values) x 2 heads x 64 x 4 bytes each."""
UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The executor that vLLM takes for one GPU. By default its CPU build starts a worker process
besides: 13 s and 0.7 GiB more for each service."""


class Service(Server):
    """`python -m app` with settings by their names (`engine.max_num_seqs`)."""

    def __init__(
        self,
        settings: Mapping[str, Setting],
        log: Path,
        *,
        config: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.settings: dict[str, Setting] = {"server.host": LOOPBACK, "server.port": free_port()}
        self.settings |= settings
        port = int(str(self.settings["server.port"]))
        options = ["--config", str(config)] if config else []
        given = {name: value for name, value in self.settings.items() if value is not None}
        options += [f"--{name}={_text(value)}" for name, value in given.items()]
        super().__init__([sys.executable, "-m", "app", *options], port, log, env or {})
        ops_port = self.settings.get("server.ops_port") or port
        self.ready_url = f"http://{LOOPBACK}:{ops_port}{self.ready_path}"
        self.max_model_len = int(str(self.settings.get("engine.max_model_len", 0)))


def tiny_settings(model: Path) -> dict[str, Setting]:
    """What starts quickest: about 19 s, most of it imports, on an idle machine."""
    return {
        "engine.model": model,
        "engine.served_model_name": SERVED,
        "engine.max_num_seqs": 4,
        "engine.max_num_batched_tokens": 1024,
        "engine.max_model_len": 1024,
        # Half precision would let the batch's make-up decide between two near-equal tokens.
        "engine.dtype": "float32",
        "engine.enforce_eager": True,
        "engine.kv_cache_memory_bytes": KV_BYTES,
        "engine.distributed_executor_backend": UNIPROC,
        # Tests queue long requests on purpose, on machines that may be slow.
        "admission.queue_timeout_s": 240.0,
        "admission.max_pending": 1000,
        "metrics.poll_interval_s": 0.5,
        "logging.format": "json",
    }


def adapter_settings(lora: Path) -> dict[str, Setting]:
    """Serves the adapter as `tiny-lora` beside the model."""
    return {
        "engine.enable_lora": True,
        "engine.max_lora_rank": 8,
        "frontend.lora_modules": [f"{ADAPTER}={lora}"],
    }


def _text(value: Setting) -> str:
    return str(value) if isinstance(value, str | Path) else json.dumps(value)
