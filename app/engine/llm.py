"""The engine client that vllm's serving objects are given: `AsyncLLM` with a seam.

Every route of vllm ends in `generate` or `encode`. Here each call is written down on the permit
of its request: the sequences handed over, the first output, the ends, the first failure.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.pooling_params import PoolingParams
from vllm.renderers.inputs.preprocess import extract_prompt_len
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import RequestStateStats

from app.engine.coalesce import Coalescer
from app.engine.prompts import tokenize_short_ones_at_once
from app.engine.push import attach, current_channel
from app.engine.relay import Relay, keep, produced, states_of
from app.engine.translate import translate
from app.errors import ContextLengthExceeded, EngineAborted, EngineDead, InternalError, InvalidValue
from app.permit import Dispatch, Ended, Permit, current_permit


class GatedLLM(AsyncLLM):
    """`AsyncLLM` whose calls run under the current permit, if there is one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._aborts: set[asyncio.Task[None]] = set()
        self._calls: dict[str, Dispatch] = {}
        self.coalescer = Coalescer()
        self.output_processor.process_outputs = Relay(self.output_processor)
        tokenize_short_ones_at_once(self.renderer)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Nothing: whoever has a permit has been admitted."""

    def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        # The order is decided in front of the engine, so the engine itself sees one priority.
        kwargs["priority"] = 0
        outputs = super().generate(prompt, sampling_params, request_id, **kwargs)
        return self._dispatch(outputs, prompt, sampling_params, request_id)

    def encode(
        self, prompt: Any, pooling_params: PoolingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        kwargs["priority"] = 0
        outputs = super().encode(prompt, pooling_params, request_id, **kwargs)
        return self._dispatch(outputs, prompt, pooling_params, request_id)

    async def _dispatch(
        self,
        outputs: AsyncGenerator[Any, None],
        prompt: Any,
        params: SamplingParams | PoolingParams,
        request_id: str,
    ) -> AsyncGenerator[Any, None]:
        permit = current_permit.get()
        if permit is None:  # the service's own, such as the warm-up
            async for output in outputs:
                yield output
            return
        tokens = extract_prompt_len(self.model_config, prompt)
        try:
            self._check(permit, params, tokens)
            call = EngineCall(self, request_id)
            async with permit.dispatch(*_size(permit, params), tokens, call) as dispatch:
                self._calls[request_id] = dispatch
                try:
                    async with aclosing(outputs):
                        async for output in outputs:
                            observe(dispatch, output, params)
                            yield output
                finally:
                    self._calls.pop(request_id, None)
        except Exception as error:
            self._note_failure(permit, error)
            raise

    async def add_request(self, request_id: str, *args: Any, **kwargs: Any) -> Any:
        collector = await super().add_request(request_id, *args, **kwargs)
        dispatch = self._calls.get(request_id)
        if dispatch is not None:
            dispatch.in_engine = True
            channel = current_channel.get()
            keep(self.output_processor, request_id)
            if channel is not None:
                processor, coalescer = self.output_processor, self.coalescer
                attach(processor, request_id, collector, channel, dispatch, coalescer)
        return collector

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        for each in ids:
            # Before the output processor forgets it, and how much it has made.
            dispatch = self._calls.get(self._external(each) if internal else each)
            if dispatch is not None:
                dispatch.settle()
        await super().abort(ids, internal)

    def _external(self, internal_id: str) -> str:
        """The id under which a call was handed over."""
        processor = self.output_processor
        parents, states = processor.parent_requests, processor.request_states
        known = parents.get(internal_id) or states.get(internal_id)
        return internal_id if known is None else str(known.external_req_id)

    @property
    def inside(self) -> int:
        """Sequences that the engine has been given and that have not ended in it."""
        return len(self.output_processor.request_states)

    def produced(self, request_id: str) -> int:
        """Output tokens of a call so far, of all its sequences; also where only the last counts."""
        return sum(map(produced, states_of(self.output_processor, request_id)))

    def _check(self, permit: Permit, params: SamplingParams | PoolingParams, tokens: int) -> None:
        # A tool turn's or a beam's prompt holds output already: only the first has room for all.
        first = not (permit.nested and permit.dispatched)
        if first and isinstance(params, SamplingParams):
            self._check_length(permit, tokens)
            self._check_adapters(params)

    def _check_length(self, permit: Permit, tokens: int) -> None:
        """Refuse what vllm would cut short: it lowers `max_tokens` until the context fits."""
        room = self.model_config.max_model_len - tokens
        wanted = 1 if permit.claim.limit is None else permit.claim.limit
        if wanted > room:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self.model_config.max_model_len} tokens, "
                f"but {tokens + wanted} were requested ({tokens} in the prompt, {wanted} for the "
                "output).",
            )

    def _check_adapters(self, params: SamplingParams) -> None:
        """Refuse what kills the engine: with adapters, the CPU build's kernel of the last layer
        takes a prompt's logprobs for those of the batch (vllm 0.32, `punica_cpu.py`)."""
        with_adapters = self.vllm_config.lora_config is not None and current_platform.is_cpu()
        if with_adapters and params.prompt_logprobs is not None:
            raise InvalidValue(
                "vLLM's CPU build cannot compute a prompt's logprobs while adapters are served.",
                "prompt_logprobs",
            )

    def _note_failure(self, permit: Permit, error: Exception) -> None:
        """Write down why a request fails; the log gets one traceback for it, not one a prompt.

        When vllm's output loop ends, it logs the reason and raises the same exception in every
        call that is waiting.
        """
        if permit.failure is None:
            permit.fail(EngineDead() if self.errored else translate(error))

    def abort_soon(self, request_id: str) -> None:
        """Free the slots of a call that nobody listens to any more, whatever ended it."""
        if not self.errored:
            task = asyncio.ensure_future(self.abort(request_id))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)


@dataclass(frozen=True)
class EngineCall:
    """One call as its permit may reach into it."""

    llm: GatedLLM
    request_id: str

    def abort(self) -> None:
        self.llm.abort_soon(self.request_id)

    def produced(self) -> int:
        return self.llm.produced(self.request_id)


def _size(permit: Permit, params: SamplingParams | PoolingParams) -> tuple[int, int | None]:
    """Sequences of a call, and the output tokens that each of them may have."""
    if isinstance(params, SamplingParams):
        return params.n, permit.claim.limit
    return 1, 0


def observe(
    dispatch: Dispatch,
    output: RequestOutput | PoolingRequestOutput,
    params: SamplingParams | PoolingParams,
) -> None:
    """Write an output of the engine down on its permit.

    Raises:
        EngineAborted: the engine gave the sequence up, which vllm reports as a normal end.
        InvalidValue: the engine could not follow the request's grammar.
        InternalError: the engine failed on this sequence.

    """
    permit = dispatch.permit
    whole, first = not permit.started, permit.ttft_s is None
    _check(output, params)
    if isinstance(output, PoolingRequestOutput):
        dispatch.output(0)
        if output.finished:
            dispatch.end("stop")
        return
    new = (dispatch.behind(each.index, len(each.token_ids)) for each in output.outputs)
    dispatch.output(sum(new))
    for completion in output.outputs:
        if completion.finish_reason is not None:
            dispatch.end(completion.finish_reason)
    if output.finished:
        at_limit = {completion.finish_reason for completion in output.outputs} == {"length"}
        dispatch.end("stop", dispatch.live)
        _note_times(dispatch, output.metrics, whole, at_limit and dispatch.limit is not None)
    if first:
        permit.ledger.gate.first_token(permit)


def _check(
    output: RequestOutput | PoolingRequestOutput, params: SamplingParams | PoolingParams
) -> None:
    if isinstance(output, PoolingRequestOutput):
        if output.error is not None:
            raise InternalError
        return
    reasons = {completion.finish_reason for completion in output.outputs}
    if "abort" in reasons:
        raise EngineAborted
    if "error" in reasons:
        # What a grammar allows is only known when it is compiled and followed, in the engine.
        if isinstance(params, SamplingParams) and params.structured_outputs is not None:
            raise InvalidValue("The schema, pattern or grammar cannot be satisfied.")
        raise InternalError


def _note_times(
    dispatch: Dispatch, metrics: RequestStateStats | None, whole: bool, at_limit: bool
) -> None:
    """Times that only the engine knows, whose clock is monotonic seconds of its own.

    Args:
        dispatch: of the sequence; what is told once for a request is noted on its permit.
        metrics: the engine's record of one finished sequence.
        whole: the answer came in one piece, so that its arrival says nothing of the first token.
        at_limit: the sequence ran to the length that was asked for.

    """
    if metrics is None or not metrics.scheduled_ts:
        return
    permit = dispatch.permit
    handed_s = permit.handed_after_s or 0.0
    if permit.queue_wait_s is None:
        permit.queue_wait_s = handed_s + max(0.0, metrics.scheduled_ts - metrics.queued_ts)
    if whole:
        permit.ttft_s = handed_s + max(0.0, metrics.first_token_ts - metrics.queued_ts)
    prefill_s = max(0.0, metrics.first_token_ts - metrics.scheduled_ts)
    tokens = metrics.num_generation_tokens
    if not permit.nested:  # a beam's calls are one token long, and say nothing of answers
        permit.ledger.gate.measured(Ended(dispatch.tokens, tokens, prefill_s, at_limit))
    gaps = tokens - 1
    if gaps > 0:
        decode_s = metrics.last_token_ts - metrics.first_token_ts
        permit.ledger.observer.inter_token(permit.route, decode_s / gaps)
