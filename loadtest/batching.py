"""Static against continuous batching on the real engine, where nothing but admission differs.

Both arms drive the same engine in this process, step by step, with the same prompts and planned
lengths: no HTTP and no event loop is between. `continuous` hands every request over as it comes
and the engine fills its B slots. `static` collects up to B requests, hands them over together,
and no other until the last of them has finished.

Closed loop: 2 B clients, each of which sends as soon as it has its answer. The static arm's
throughput is that of the round, which is of whole batches. The continuous arm's is that of the
time in which all slots could be taken, until fewer than B requests were left: how long the last
ones take by themselves is a matter of how many went before, not of batching. The ratio of the
whole rounds, that end included, is given besides.

Open loop: both arms meet the same arrivals, at a rate that the static arm can serve.

The bound: as long as all slots are taken, each step yields B tokens; a static batch yields those
of its members in as many steps as the longest has. If all steps took the same time, the ratio
would be the mean of the longest in each batch over the mean length. A step for fewer sequences
takes no longer, so the ratio cannot be above that. Prompts are never read in pieces and no
request is ever preempted: the engine gets the room for it.
"""

import argparse
import dataclasses
import gc
import json
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from loadtest import arms, arrivals, batching_report, files, machine, options, vllm_library
from loadtest.arms import ARMS, Cell, Job, Pair, Seconds, Served, Workload
from loadtest.errors import UsageError
from loadtest.lengths import Lengths

SCHEMA = 1


@dataclass(frozen=True)
class Settings:
    """The options: see `add_arguments`."""

    trace: Sequence[Path] = field(default_factory=list)
    length_scale: float | None = None
    prompt_tokens: int = 32
    output_tokens: int = 16
    batch: Sequence[int] = (8, 16)
    rounds: int = 10
    requests: int = 128
    seed: int = 0
    model: Path | None = None
    threads: int = 1
    kv_cache: float = 1.0
    out: Path = options.RESULTS

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Settings":
        """From a command line, which may hold more."""
        return cls(**{f.name: getattr(arguments, f.name) for f in dataclasses.fields(cls)})

    def dump(self) -> dict[str, Any]:
        """As JSON types."""
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    _add_lengths(parser)
    _add_rounds(parser)
    _add_engine(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {options.RESULTS}")
    parser.set_defaults(**dataclasses.asdict(Settings()))


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace",
        type=Path,
        nargs="+",
        action="extend",
        metavar="FILE",
        help="Azure traces; the lengths in each are one more workload",
    )
    parser.add_argument(
        "--length-scale",
        type=options.positive,
        metavar="X",
        help="of the traces, prompts and outputs; default: what brings their means to the next two",
    )
    options.add_counts(parser, Settings, {"prompt-tokens": "mean", "output-tokens": "mean"})


def _add_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch",
        type=options.count,
        nargs="+",
        metavar="B",
        help="slots; several are measured one after the other; default: 8 16",
    )
    parser.add_argument(
        "--rounds",
        type=options.count,
        metavar="N",
        help="of each arm in closed loop, and half as many in open loop; default: "
        f"{Settings.rounds}",
    )
    parser.add_argument(
        "--requests",
        type=options.count,
        metavar="N",
        help=f"in a round, rounded up to whole batches; default: {Settings.requests}",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of lengths, prompts and arrivals")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="default: a tiny one, made for the occasion"
    )
    options.add_counts(parser, Settings, {"threads": "of the engine on a CPU"})
    parser.add_argument(
        "--kv-cache",
        type=options.positive,
        metavar="GIB",
        help=f"it must hold B of the longest requests; default: {Settings.kv_cache:g}",
    )


def main(arguments: argparse.Namespace) -> int:
    """Measure; 1 when a ratio is above its bound, 130 when it was interrupted."""
    settings = Settings.of(arguments)
    _check(settings)
    found = workloads(settings)
    result = _Result(settings, _vllm(settings.threads))
    interrupted = False
    try:
        for cell in _cells(settings, found):
            result.add(cell)
            print(batching_report.progress(cell), flush=True)
    except KeyboardInterrupt:
        interrupted = True
    if result.cells:
        batching_report.picture(result.cells).savefig(result.path.with_suffix(".png"), dpi=120)
        print(batching_report.render(result.cells))
        print(result.path)
    return 130 if interrupted else int(any(cell.above for cell in result.cells))


def _check(settings: Settings) -> None:
    if settings.seed < 0:
        raise UsageError(f"--seed must not be negative, not {settings.seed}")
    if settings.model is not None and not (settings.model / "config.json").is_file():
        raise UsageError(f"{settings.model}: no model is there: it has no config.json")


def workloads(settings: Settings) -> list[Workload]:
    """What is served."""
    means = (settings.prompt_tokens, settings.output_tokens)
    synthetic = [arms.synthetic(kind, *means, settings.seed) for kind in ("fixed", "exponential")]
    return synthetic + [
        arms.of_trace(path, settings.length_scale, *means) for path in settings.trace
    ]


# -- the engine


def _vllm(threads: int) -> Any:
    warnings.filterwarnings("ignore", category=FutureWarning)  # vLLM's, of torch
    # The engine runs between two calls of ours, not in a process of its own.
    return vllm_library.imported("batching", threads, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})


class Vllm:
    """vLLM as the arms drive it: B slots, synchronous, greedy, nothing shared between requests."""

    def __init__(
        self, settings: Settings, model: Path, workloads: Sequence[Workload], batch: int
    ) -> None:
        self._vllm = _vllm(settings.threads)
        self._longest = max(int((w.prompts + w.outputs).max()) for w in workloads)
        prompt = max(int(w.prompts.max()) for w in workloads)
        arguments = self._vllm.EngineArgs(
            model=str(model),
            max_num_seqs=batch,
            max_num_batched_tokens=batch * prompt,
            max_model_len=self._longest,
            kv_cache_memory_bytes=int(settings.kv_cache * 2**30),
            enable_prefix_caching=False,
            async_scheduling=False,
            enforce_eager=True,
            skip_tokenizer_init=True,
            disable_log_stats=True,
            use_tqdm_on_load=False,
        )
        try:
            self._engine = self._vllm.LLMEngine.from_engine_args(arguments)
        except (ValueError, OSError) as error:
            raise UsageError(f"{model}: {' '.join(str(error).split())}") from None
        self._check_room(batch)
        self.vocabulary: int = self._engine.model_config.get_vocab_size()

    def _check_room(self, batch: int) -> None:
        cache = self._engine.vllm_config.cache_config
        needed = batch * -(-self._longest // cache.block_size)
        if cache.num_gpu_blocks < needed + 1:  # one is kept by vLLM
            raise UsageError(
                f"--kv-cache: {cache.num_gpu_blocks} blocks, but {batch} requests of "
                f"{self._longest} tokens take {needed}"
            )

    def add(self, index: int, job: Job) -> None:
        """See `arms.Engine`."""
        parameters = self._vllm.SamplingParams(
            temperature=0.0,
            max_tokens=job.output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._vllm.sampling_params.RequestOutputKind.DELTA,
        )
        self._engine.add_request(str(index), {"prompt_token_ids": job.prompt}, parameters)

    def step(self) -> list[tuple[int, int, bool]]:
        """See `arms.Engine`."""
        return [
            (int(output.request_id), len(output.outputs[0].token_ids), output.finished)
            for output in self._engine.step()
        ]

    def close(self) -> None:
        """Leave nothing in the way of the next."""
        self._engine = None
        self._vllm.distributed.cleanup_dist_env_and_memory()


# -- the measurement


def _cells(settings: Settings, workloads: Sequence[Workload]) -> Iterator[Cell]:
    with _model(settings.model) as model:
        for batch in settings.batch:
            engine = Vllm(settings, model, workloads, batch)
            try:
                for workload in workloads:
                    yield _Bench(settings, engine, workload, batch).cell()
            finally:
                engine.close()


@contextmanager
def _model(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    from loadtest.tiny_model import build_model  # noqa: PLC0415 - only some runs need it

    with tempfile.TemporaryDirectory(prefix="loadtest-") as scratch:
        yield build_model(Path(scratch) / "tiny")


class _Bench:
    def __init__(self, settings: Settings, engine: Vllm, workload: Workload, batch: int) -> None:
        self._settings = settings
        self._engine = engine
        self._workload = workload
        self._batch = batch
        self._count = requests(settings, batch)

    def cell(self) -> Cell:
        rounds = self._settings.rounds
        self._pair(2 * rounds)  # the first steps of an engine are slow
        closed = [self._pair(number) for number in range(rounds)]
        rate = arms.LOAD * float(np.median([pair.whole[1] for pair in closed]))
        opened = [self._pair(rounds + number, rate) for number in range(-(-rounds // 2))]
        return Cell(self._workload, self._batch, closed, rate, opened)

    def _pair(self, number: int, rate: float | None = None) -> Pair:
        """One round of each arm with the same requests, the first in turns."""
        dice = dice_of(self._settings, self._workload, self._batch, number)
        prompts, outputs, due = drawn(self._workload, self._count, rate, dice)
        jobs = [
            Job(dice.integers(0, self._engine.vocabulary, prompt).tolist(), output)
            for prompt, output in zip(prompts.tolist(), outputs.tolist(), strict=True)
        ]
        served: dict[str, Served] = {}
        for arm in list(ARMS) if number % 2 == 0 else reversed(ARMS):
            gc.collect()
            served[arm] = arms.serve(self._engine, jobs, ARMS[arm], self._batch, due=due)
        return Pair(**served, bound=arms.bound_of_run(outputs, self._batch))


def requests(settings: Settings, batch: int) -> int:
    """In a round: whole batches."""
    return -(-settings.requests // batch) * batch


def dice_of(settings: Settings, workload: Workload, batch: int, number: int) -> np.random.Generator:
    """What a round is drawn from."""
    name = zlib.crc32(workload.name.encode())
    return np.random.default_rng([settings.seed, name, batch, number])


def drawn(
    workload: Workload, count: int, rate: float | None, dice: np.random.Generator
) -> tuple[Lengths, Lengths, Seconds | None]:
    """Prompts, outputs and, in open loop, arrivals of a round."""
    prompts, outputs = workload.draw(count, dice)
    return prompts, outputs, None if rate is None else _arrivals(rate, count, dice)


def _arrivals(rate: float, count: int, dice: np.random.Generator) -> Seconds:
    """The first `count` of a Poisson process; twice as long as they take, and more."""
    return arrivals.poisson(rate, (2 * count + 50) / rate, dice)[:count]


# -- the report


class _Result:
    """The file, written anew after each cell, so that a run that was killed leaves what it had."""

    def __init__(self, settings: Settings, vllm: Any) -> None:
        self.cells: list[Cell] = []
        self._directory = settings.out
        self._head = {
            "schema": SCHEMA,
            "kind": "batching",
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": settings.dump(),
            "environment": machine.facts("numpy", "torch") | {"vllm": vllm.__version__},
        }

    @cached_property
    def path(self) -> Path:
        """No other run's."""
        return files.create(self._directory, "batching", ".json")

    def add(self, cell: Cell) -> None:
        """Write all cells so far."""
        self.cells.append(cell)
        draft = self.path.with_name(self.path.name + ".draft")
        content = self._head | {"cells": [cell.dump() for cell in self.cells]}
        draft.write_text(json.dumps(content) + "\n", encoding="utf-8")
        draft.replace(self.path)
