"""Which tokens never reach vllm's own processing, and that nothing is lost or counted twice."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutput, FinishReason
from vllm.v1.metrics.stats import IterationStats, RequestStateStats

from app.engine.relay import KEPT, Relay, is_bare, keep, produced

ID = "r"
OTHERWISE: dict[str, Any] = {
    "new_logprobs": object(),
    "new_prompt_logprobs_tensors": object(),
    "pooling_output": object(),
    "finish_reason": FinishReason.LENGTH,
    "stop_reason": 7,
    "events": [object()],
    "kv_transfer_params": {},
    "ec_transfer_params": {},
    "prefill_stats": object(),
    "routed_experts": object(),
    "num_nans_in_logits": 1,
    "mm_cache_miss_hashes": ["h"],
    "new_sampling_mask": object(),
    "spec_decode_metrics": object(),
    "prompt_token_id_logprobs": object(),
}
"""A value for each field that makes an output more than its tokens."""


class Processor:
    """An output processor with one sequence, which counts as vllm's does."""

    def __init__(
        self, kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY, stop: list[str] | None = None
    ) -> None:
        self.seen: list[int] = []
        self.detokenizer = SimpleNamespace(
            stop=stop or [], num_output_tokens=self.count, update=self.update
        )
        self.state: Any = SimpleNamespace(
            output_kind=kind,
            is_prefilling=True,
            stats=RequestStateStats(arrival_time=0.0),
            detokenizer=self.detokenizer,
            weight_version_starts=[],
        )
        self.request_states = {ID: self.state}
        self.external_req_ids = {"call": [ID]}
        self.calls: list[list[int]] = []

    def count(self) -> int:
        return len(self.seen)

    def update(self, tokens: list[int], stopped: bool) -> None:
        assert not stopped
        self.seen += tokens

    def process_outputs(
        self, outputs: list[EngineCoreOutput], timestamp: float, stats: Any, weight_version: Any
    ) -> None:
        for output in outputs:
            self.calls.append(output.new_token_ids)
            starts = self.state.weight_version_starts
            if not starts or starts[-1][0] != weight_version:
                starts.append((weight_version, self.count()))
            self.update(output.new_token_ids, False)
            prefilling = self.state.is_prefilling
            stats.update_from_output(
                output, timestamp, prefilling, self.state.stats, SimpleNamespace(), None
            )
            self.state.is_prefilling = False


def step(
    process: Any,
    stats: IterationStats,
    at: float,
    tokens: list[int],
    version: str = "v",
    **more: Any,
) -> None:
    process([EngineCoreOutput(ID, tokens, **more)], at, stats, version)


def run(process: Any, last: FinishReason | None = FinishReason.LENGTH) -> list[IterationStats]:
    """Five steps of one sequence; the figures of each."""
    steps = [IterationStats() for _ in range(5)]
    for number, stats in enumerate(steps):
        end = last if number == 4 else None
        step(process, stats, 10.0 + number, [number, number + 10], finish_reason=end)
    return steps


def figures(steps: list[IterationStats]) -> list[Any]:
    return [(s.num_generation_tokens, s.inter_token_latencies_iter) for s in steps]


def test_the_tokens_of_a_whole_answer_reach_vllm_with_its_end() -> None:
    processor, plain = Processor(), Processor()
    keep(processor, "call")
    relayed, usual = run(Relay(processor)), run(plain.process_outputs)
    assert processor.calls == [[0, 10], [4, 14]]
    assert processor.seen == plain.seen
    assert figures(relayed) == figures(usual)
    own, other = processor.state.stats, plain.state.stats
    assert own.num_generation_tokens == other.num_generation_tokens == 10
    assert own.last_token_ts == other.last_token_ts


def test_what_is_kept_counts_as_produced() -> None:
    processor = Processor()
    keep(processor, "call")
    run(Relay(processor), last=None)
    assert len(processor.seen) == 2
    assert produced(processor.state) == 10


@pytest.mark.parametrize(
    "processor",
    [Processor(RequestOutputKind.DELTA), Processor(stop=["end"])],
    ids=["streamed", "a stop string"],
)
def test_what_is_looked_at_token_by_token_is_not_kept(processor: Processor) -> None:
    keep(processor, "call")
    run(Relay(processor))
    assert len(processor.calls) == 5


def test_new_weights_are_noted_where_they_begin() -> None:
    processor = Processor()
    keep(processor, "call")
    relay, stats = Relay(processor), IterationStats()
    for number, version in enumerate("aaabbb"):
        step(relay, stats, float(number), [number], version)
    assert processor.calls == [[0], [3]]
    assert processor.state.weight_version_starts == [("a", 0), ("b", 3)]
    assert processor.seen[:4] == [0, 1, 2, 3]
    assert stats.num_generation_tokens == 6


def test_no_more_than_a_few_are_kept() -> None:
    processor = Processor()
    keep(processor, "call")
    relay, stats = Relay(processor), IterationStats()
    for number in range(10 * KEPT):
        step(relay, stats, float(number), [number])
        assert number - KEPT < processor.count() <= number + 1
    assert produced(processor.state) == stats.num_generation_tokens == 10 * KEPT


def test_a_sequence_that_is_gone_is_vllms_to_ignore() -> None:
    processor = Processor()
    processor.request_states.clear()
    relay, stats = Relay(processor), IterationStats()
    step(relay, stats, 0.0, [0])
    assert processor.calls == [[0]]


@pytest.mark.parametrize("name", OTHERWISE)
def test_an_output_that_says_more_is_not_bare(name: str) -> None:
    assert is_bare(EngineCoreOutput(ID, [1]))
    assert not is_bare(EngineCoreOutput(ID, [1], **{name: OTHERWISE[name]}))


def test_every_field_of_an_output_is_known() -> None:
    """A new one in vllm has to be thought about; where a trace comes from says nothing new."""
    known = {"request_id", "new_token_ids", "trace_headers", *OTHERWISE}
    assert set(EngineCoreOutput.__struct_fields__) == known
