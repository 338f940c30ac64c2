"""A real engine, driven step by step, that tells what each step computed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadtest import batching
from loadtest.errors import UsageError
from loadtest.simulator.engine import EngineSettings
from loadtest.simulator.step_time import Work


class RealEngine:
    """vLLM in this process: synchronous, greedy, no prefix cache.

    Attributes:
        work: of the last step.
        preemptions: since the start.

    """

    def __init__(self, model: Path, given: EngineSettings, longest: int, threads: int) -> None:
        self._vllm: Any = batching.imported(threads)
        arguments = self._vllm.EngineArgs(
            model=str(model),
            max_num_seqs=given.max_num_seqs,
            max_num_batched_tokens=given.max_num_batched_tokens,
            long_prefill_token_threshold=given.long_prefill_token_threshold,
            num_gpu_blocks_override=given.kv_blocks + 1,
            block_size=given.block_size,
            max_model_len=longest,
            kv_cache_memory_bytes=2**30,
            enable_prefix_caching=False,
            async_scheduling=False,
            enforce_eager=True,
            skip_tokenizer_init=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
        )
        try:
            self._engine: Any = self._vllm.LLMEngine.from_engine_args(arguments)
        except (ValueError, OSError) as error:
            raise UsageError(f"{model}: {' '.join(str(error).split())}") from None
        self.vocabulary: int = self._engine.model_config.get_vocab_size()
        self.work = Work(0, 0, 0, 0)
        self.preemptions = 0
        self._watch(self._engine.engine_core.engine_core.scheduler)

    def _watch(self, scheduler: Any) -> None:
        """Look at what is scheduled; vLLM's statistics do not tell the contexts."""
        schedule = scheduler.schedule

        def watched(*args: Any, **kwargs: Any) -> Any:
            found = schedule(*args, **kwargs)
            self.work = work_of(scheduler.requests, found.num_scheduled_tokens)
            self.preemptions += len(found.preempted_req_ids or ())
            return found

        scheduler.schedule = watched

    def add(self, number: int, prompt: Sequence[int], output: int) -> None:
        """Queue a request for exactly so many tokens."""
        parameters = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        self._engine.add_request(str(number), {"prompt_token_ids": list(prompt)}, parameters)

    @property
    def idle(self) -> bool:
        return not self._engine.has_unfinished_requests()

    def step(self) -> list[tuple[int, int, bool]]:
        """(number, new tokens, whether it ended) of each that has new ones."""
        return [
            (int(output.request_id), len(output.outputs[0].token_ids), output.finished)
            for output in self._engine.step()
        ]

    def close(self) -> None:
        """Leave nothing in the way of the next."""
        self._engine = None
        self._vllm.distributed.cleanup_dist_env_and_memory()


def work_of(requests: Any, scheduled: Any) -> Work:
    """Of a step, after the scheduler has counted its tokens as computed."""
    prefill = decodes = context = attention = 0
    for name, n in scheduled.items():
        request = requests[name]
        before = request.num_computed_tokens - n
        if n == 1 and before >= request.num_prompt_tokens:
            decodes += 1
            context += before
        else:
            prefill += n
            attention += n * (2 * before + n)
    return Work(prefill, decodes, context, attention)
