"""Takes from the engine's output what is nothing but further tokens, before vllm looks at it.

vllm's `process_outputs` does for each token whatever any output may need. Most say only that a
sequence has some more tokens; of those a whole answer needs nothing until its end, and a stream
only its text. `Relay` stands in its place, hands such tokens to the sequence's taker and all else
on.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor, RequestState
from vllm.v1.metrics.stats import IterationStats

KEPT = 32
"""The most tokens that are kept: all at once at the end of a long answer would stop all others."""


class Taker(Protocol):
    """What a sequence's further tokens are handed to.

    Attributes:
        kept: tokens that were taken and that vllm's detokenizer has not seen.

    """

    kept: list[int]

    def take(self, token_ids: list[int]) -> bool:
        """Take further tokens; false when they have to go vllm's way."""

    def give_back(self) -> None:
        """Let vllm's detokenizer see what was kept."""


class Keeper:
    """Takes the tokens of an answer that is sent as a whole."""

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        self.kept: list[int] = []
        self._detokenizer = detokenizer

    def take(self, token_ids: list[int]) -> bool:
        self.kept += token_ids
        if len(self.kept) >= KEPT:
            self.give_back()
        return True

    def give_back(self) -> None:
        if self.kept:
            self._detokenizer.update(self.kept, False)
            self.kept = []


def keep(processor: OutputProcessor, request_id: str) -> None:
    """Have the tokens of a call kept for a while, if nobody asks for them before its end."""
    for state in states_of(processor, request_id):
        if state.output_kind == RequestOutputKind.FINAL_ONLY and has_no_stops(state):
            state.taker = Keeper(state.detokenizer)


def states_of(processor: OutputProcessor, request_id: str) -> list[RequestState]:
    """The sequences of a call that have not ended."""
    states = map(processor.request_states.get, processor.external_req_ids.get(request_id, ()))
    return [state for state in states if state is not None]


def has_no_stops(state: RequestState) -> bool:
    """Whether no text can end a sequence: only then its tokens need not be looked at one by one."""
    return not getattr(state.detokenizer, "stop", True)


def produced(state: RequestState) -> int:
    """Output tokens of a sequence so far."""
    taker = getattr(state, "taker", None)
    counted: int = state.detokenizer.num_output_tokens() if state.detokenizer else 0
    return counted + (len(taker.kept) if taker else 0)


class Relay:
    """In the place of an output processor's `process_outputs`."""

    def __init__(self, processor: OutputProcessor) -> None:
        self._states: dict[str, RequestState] = processor.request_states
        self._process: Callable[..., Any] = processor.process_outputs

    def __call__(
        self,
        engine_core_outputs: Sequence[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
        weight_version: str | None = None,
    ) -> Any:
        rest, states = [], self._states
        for output in engine_core_outputs:
            state = states.get(output.request_id)
            taker: Taker | None = getattr(state, "taker", None)
            if state is None or taker is None:
                rest.append(output)
            elif (
                not state.is_prefilling
                and is_bare(output)
                and (weight_version is None or _is_of(state, weight_version))
                and taker.take(output.new_token_ids)
            ):
                if iteration_stats is not None:
                    _count(output, engine_core_timestamp, iteration_stats, state)
            else:
                taker.give_back()
                rest.append(output)
        return self._process(rest, engine_core_timestamp, iteration_stats, weight_version)


def _is_of(state: RequestState, weight_version: str) -> bool:
    """Whether a sequence goes on with the weights it had; where others begin is noted by vllm."""
    starts = state.weight_version_starts
    return bool(starts) and bool(starts[-1][0] == weight_version)


def is_bare(output: EngineCoreOutput) -> bool:
    """Whether an output says nothing but its tokens."""
    return (
        output.finish_reason is None
        and output.events is None
        and output.new_logprobs is None
        and output.prefill_stats is None
        and output.pooling_output is None
        and output.new_prompt_logprobs_tensors is None
        and output.prompt_token_id_logprobs is None
        and output.stop_reason is None
        and output.kv_transfer_params is None
        and output.ec_transfer_params is None
        and output.routed_experts is None
        and output.new_sampling_mask is None
        and output.mm_cache_miss_hashes is None
        and output.spec_decode_metrics is None
        and not output.num_nans_in_logits
    )


def _count(
    output: EngineCoreOutput, timestamp: float | None, stats: IterationStats, state: RequestState
) -> None:
    """What `IterationStats.update_from_output` does for such an output."""
    assert timestamp is not None
    tokens, own = len(output.new_token_ids), state.stats
    stats.num_generation_tokens += tokens
    own.num_generation_tokens += tokens
    stats.inter_token_latencies_iter.append(timestamp - own.last_token_ts)
    own.last_token_ts = timestamp
