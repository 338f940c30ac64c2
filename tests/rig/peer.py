"""vLLM's own server on the same model: what ours is compared with."""

import sys
from pathlib import Path

from tests.rig.server import LOOPBACK, Server, free_port
from tests.rig.service import ADAPTER, KV_BYTES, SERVED, UNIPROC


class Peer(Server):
    """`vllm serve` as the module it is, with the settings of the shared service."""

    ready_path = "/health"

    def __init__(self, model: Path, lora: Path, log: Path, *flags: str) -> None:
        port = free_port()
        command = [
            *(sys.executable, "-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"),
            *("--host", LOOPBACK, "--port", str(port)),
            *("--model", str(model), "--served-model-name", SERVED, "--max-model-len", "1024"),
            *("--max-num-seqs", "4", "--max-num-batched-tokens", "1024", "--dtype", "float32"),
            *("--enforce-eager", "--kv-cache-memory-bytes", str(KV_BYTES)),
            *("--distributed-executor-backend", UNIPROC),
            *("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={lora}"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *flags,
        ]
        # As ours has it: compiling what logprobs need takes longer than most tests.
        super().__init__(command, port, log, {"TORCH_COMPILE_DISABLE": "1"})
        self.max_model_len = 1024
