"""Agreement with independent clients: one workload against one server, by each of them in turn.

The others are vLLM's `vllm bench serve` and GuideLLM, unmodified, in processes of their own. Each
makes its prompts itself, for the same number of tokens, and what it says of itself is compared.
"""

import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from loadtest import files, options, plan, session, settings
from loadtest.errors import UsageError
from loadtest.plan import Load, Spec
from loadtest.run import execute
from loadtest.settings import Run, Target
from loadtest.verdict import Grade

SCHEMA = 1
LIMIT = 0.10
MAX_FAILED = 0.05
"""A client that loses some requests still has a median; its line says how many."""
ROUNDS = 3
PATIENCE_S = 300.0
"""How long another client may take beside its plan: imports alone are many seconds."""
KINDS = ("constant", "poisson")
OURS, VLLM, GUIDELLM = "loadtest", "vllm bench serve", "guidellm"

ENVIRONMENT = (
    "env",
    "HF_HUB_OFFLINE=1",
    "VLLM_NO_USAGE_STATS=1",
    "GUIDELLM__MAX_WORKER_PROCESSES=1",
)
"""One process that sends, as in the other two: by default GuideLLM starts ten."""
VLLM_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What `vllm bench serve` does; its own command looks for a distribution named `vllm`."""


@dataclass(frozen=True)
class Figures:
    """What one client measured in one round, of the requests that succeeded.

    Attributes:
        output_tokens: of a request, on average; `prompt_tokens` too.
        failed: share of the requests.

    """

    ttft_p50_s: float
    e2e_p50_s: float
    output_tokens: float
    prompt_tokens: float
    failed: float


COMPARED = {
    "ttft_p50_s": "TTFT p50",
    "e2e_p50_s": "E2E p50",
    "output_tokens": "output tokens",
    "prompt_tokens": "prompt tokens",
}
"""The figures that are to agree, and their titles."""
Measure: TypeAlias = Callable[[Run], Figures]
Rounds: TypeAlias = Mapping[str, Sequence[Figures]]
"""By client, this harness first."""


def add_arguments(parser: ArgumentParser) -> None:
    """Its options."""
    options.add_arguments(parser)
    group = options.group(parser, "the other clients")
    group.add_argument("--tokenizer", type=Path, metavar="DIR", help="default: --serve-model")
    group.add_argument(
        "--guidellm", type=Path, metavar="PYTHON", help="of an environment that has GuideLLM"
    )
    group.add_argument("--rounds", type=options.count, metavar="N", help=f"default: {ROUNDS}")


def main(arguments: Namespace) -> int:
    """Compare the clients; 1 when one is off by more than the limit."""
    given = options.settled(arguments)
    directory, rounds = options.directory(given), getattr(given, "rounds", ROUNDS)
    others = _others(given, directory)
    with session.reached(given) as (server,):
        run = plain(session.resolved(given, server.base_url, execute))
        clients = {OURS: lambda r: _ours(r, directory), **others}
        measured = measure(run, clients, rounds)
    path = files.create(directory, f"{run.name}-agreement", ".json")
    path.write_text(json.dumps(dump(run, measured)) + "\n", encoding="utf-8")
    print(render(measured))
    print(path)
    return int(bool(off(measured)))


def plain(run: Run) -> Run:
    """The run with all that it sends measured: the others have no warm-up of this kind.

    Raises:
        UsageError: it has something that the others cannot do.

    """
    load, shape = run.spec.load, run.spec.shape
    if load.kind not in KINDS:
        raise UsageError(f"agreement needs --load {' or '.join(KINDS)}, not {load.kind}")
    if not (shape.prompt.startswith("fixed:") and shape.output.startswith("fixed:")):
        raise UsageError("agreement needs prompts and outputs of one length")
    common = Load(load.kind, load.rate, duration_s=load.duration_s, requests=load.requests)
    known = Target(run.target.base_url, run.target.model)
    if (run.spec, run.target) != (Spec(common, shape, seed=run.spec.seed), known):
        raise UsageError("agreement needs streamed completions without keys, tenants or extras")
    return replace(run, warmup_s=0.0)


def measure(run: Run, clients: Mapping[str, Measure], rounds: int) -> Rounds:
    """Every client once in each round; each round has another seed, so that no prompt is cached."""
    measured: dict[str, list[Figures]] = {client: [] for client in clients}
    for number in range(rounds):
        seeded = replace(run, spec=replace(run.spec, seed=run.spec.seed + number))
        for client, measure_one in clients.items():
            print(f"round {number + 1} of {rounds}: {client}", flush=True)
            measured[client].append(measure_one(seeded))
    return measured


# -- the clients


def _ours(run: Run, directory: Path) -> Figures:
    result, path = execute(run, directory)
    if result.harness.interrupted:
        raise KeyboardInterrupt
    if result.verdict.grade is not Grade.VALID:
        print(f"  {result.verdict.grade.value}: {'; '.join(result.verdict.reasons)} ({path})")
    return figures_of_ours(result.summary)


def _others(given: Namespace, directory: Path) -> dict[str, Measure]:
    """Those that are installed; the rest are named."""
    tokenizer = getattr(given, "tokenizer", getattr(given, "serve_model", None))
    if tokenizer is None or not tokenizer.is_dir():
        raise UsageError(f"agreement needs --tokenizer DIR, not {tokenizer}")
    tokenizer = tokenizer.absolute()
    found: dict[str, Measure] = {}
    if importlib.util.find_spec("vllm"):
        found[VLLM] = lambda run: _vllm(run, tokenizer, directory)
    else:
        print(f"{VLLM}: skipped, vLLM is not installed beside this harness")
    if python := getattr(given, "guidellm", None):
        if not python.is_file():
            raise UsageError(f"--guidellm {python}: no such interpreter")
        found[GUIDELLM] = lambda run: _guidellm(run, tokenizer, python.absolute(), directory)
    else:
        print(f"{GUIDELLM}: skipped, no --guidellm")
    if not found:
        raise UsageError("there is no other client to agree with")
    return found


def _vllm(run: Run, tokenizer: Path, directory: Path) -> Figures:
    def command(output: Path) -> list[str]:
        return [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            VLLM_BENCH,
            *vllm_options(run, tokenizer, output),
        ]

    return _ask(VLLM, command, figures_of_vllm, run.spec.load, directory)


def _guidellm(run: Run, tokenizer: Path, python: Path, directory: Path) -> Figures:
    def command(output: Path) -> list[str]:
        scenario = output.with_name("scenario.json")
        scenario.write_text(json.dumps(guidellm_scenario(run, tokenizer, output)), encoding="utf-8")
        return [str(python), "-m", "guidellm", "run", "-c", str(scenario), "--disable-console"]

    return _ask(GUIDELLM, command, figures_of_guidellm, run.spec.load, directory)


def vllm_options(run: Run, tokenizer: Path, output: Path) -> list[str]:
    """The run as options of `vllm bench serve`, which writes its result into `output`."""
    load = run.spec.load
    values = {
        "backend": "openai",
        "base-url": run.target.root,
        "tokenizer": tokenizer,
        "dataset-name": "random",
        "random-input-len": _tokens(run.spec.shape.prompt),
        "random-output-len": _tokens(run.spec.shape.output),
        "num-prompts": len(plan.draw(run.spec)),
        "request-rate": load.rate,
        "burstiness": "inf" if load.kind == "constant" else 1,
        "temperature": 0,
        "seed": run.spec.seed,
        "percentile-metrics": "ttft,e2el",
        "result-dir": output.parent,
        "result-filename": output.name,
    }
    if run.target.model is not None:
        values["model"] = run.target.model
    switches = ["--ignore-eos", "--save-result", "--disable-tqdm"]
    return [*switches, *(f"--{name}={value}" for name, value in values.items())]


def guidellm_scenario(run: Run, tokenizer: Path, output: Path) -> dict[str, Any]:
    """The run as a scenario of GuideLLM, which writes its result into `output`."""
    load, requests = run.spec.load, len(plan.draw(run.spec))
    lengths = {
        "prompt_tokens": _tokens(run.spec.shape.prompt),
        "output_tokens": _tokens(run.spec.shape.output),
    }
    spec = {
        "backend": {
            "kind": "openai_http",
            "target": run.target.root,
            "model": run.target.model or "",
            "request_format": "/v1/completions",
            "extras": {"body": {"temperature": 0}},
        },
        "profile": {"kind": load.kind, "rate": [load.rate]},
        "constraints": [{"kind": "max_requests", "count": requests}],
        "tokenizer": {"kind": "huggingface_auto", "model": str(tokenizer)},
        "data": [{"kind": "synthetic_text", **lengths}],
        # It would make prompts by the thousand while it measures.
        "data_loader": {"kind": "pytorch", "samples": requests},
        "seed": {"kind": "static", "value": run.spec.seed},
        "metrics": {"kind": "generative", "sample_size": 0},
        "outputs": [{"kind": "json", "path": str(output)}],
    }
    return {"spec": spec}


def _tokens(shape: str) -> int:
    return int(shape.removeprefix("fixed:"))


def _ask(
    client: str,
    command: Callable[[Path], list[str]],
    read: Callable[[Mapping[str, Any]], Figures],
    load: Load,
    directory: Path,
) -> Figures:
    """What a client measures; its log is kept in `directory` if that is nothing."""
    log = files.create(directory, client.replace(" ", "-"), ".log")
    with tempfile.TemporaryDirectory() as scratch, log.open("wb") as out:
        output = Path(scratch, "result.json")
        try:
            ended = subprocess.run(
                [*ENVIRONMENT, *command(output)],
                cwd=scratch,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=load.duration_s + PATIENCE_S,
                check=False,
            )
            figures = read(json.loads(output.read_text(encoding="utf-8")))
        except subprocess.TimeoutExpired:
            raise UsageError(f"{client} did not end in time: {log}") from None
        except OSError:
            raise UsageError(f"{client} ended with status {ended.returncode}: {log}") from None
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{client} wrote what is not understood: {error!r}: {log}") from None
    log.unlink()
    return figures


# -- what each says of itself


def figures_of_ours(summary: Mapping[str, Any]) -> Figures:
    """From the summary of a result of this harness."""
    good = _some(OURS, summary["outcomes"]["ok"])
    return Figures(
        ttft_p50_s=summary["latency_s"]["ttft"]["p50"],
        e2e_p50_s=summary["latency_s"]["e2e"]["p50"],
        output_tokens=summary["output_tokens"] / good,
        prompt_tokens=summary["prompt_tokens"] / good,
        failed=1 - good / summary["offered"],
    )


def figures_of_vllm(found: Mapping[str, Any]) -> Figures:
    """From the file of `vllm bench serve --save-result`."""
    good = _some(VLLM, found["completed"])
    return Figures(
        ttft_p50_s=found["median_ttft_ms"] / 1000,
        e2e_p50_s=found["median_e2el_ms"] / 1000,
        output_tokens=found["total_output_tokens"] / good,
        prompt_tokens=found["total_input_tokens"] / good,
        failed=1 - good / (good + found["failed"]),
    )


def figures_of_guidellm(found: Mapping[str, Any]) -> Figures:
    """From GuideLLM's JSON output."""
    metrics = found["benchmarks"][0]["metrics"]
    totals = metrics["request_totals"]
    good = _some(GUIDELLM, totals["successful"])
    return Figures(
        ttft_p50_s=metrics["time_to_first_token_ms"]["successful"]["median"] / 1000,
        e2e_p50_s=metrics["request_latency"]["successful"]["median"],
        output_tokens=metrics["output_token_count"]["successful"]["mean"],
        prompt_tokens=metrics["prompt_token_count"]["successful"]["mean"],
        failed=1 - good / totals["total"],
    )


def _some(client: str, good: int) -> int:
    if not good:
        raise UsageError(f"{client}: no request succeeded")
    return good


# -- the verdict


def median(measured: Sequence[Figures]) -> Figures:
    """Of each figure, over the rounds."""
    rows = [asdict(figures) for figures in measured]
    return Figures(**{name: statistics.median(row[name] for row in rows) for name in rows[0]})


def ratios(measured: Rounds) -> dict[str, dict[str, float]]:
    """Of every other client's medians to this harness's, by client and figure."""
    medians = {client: asdict(median(found)) for client, found in measured.items()}
    ours = medians.pop(OURS)
    return {
        client: {name: theirs[name] / ours[name] for name in COMPARED}
        for client, theirs in medians.items()
    }


def off(measured: Rounds) -> list[str]:
    """What is off: a figure by more than the limit, or a client with too many failures."""
    found = [
        f"{title} of {client}"
        for client, by_name in ratios(measured).items()
        for name, title in COMPARED.items()
        if abs(by_name[name] - 1) > LIMIT
    ]
    failing = [client for client, each in measured.items() if median(each).failed > MAX_FAILED]
    return found + [f"failures of {client}" for client in failing]


# -- the report


def dump(run: Run, measured: Rounds) -> dict[str, Any]:
    """As JSON types."""
    return {
        "schema": SCHEMA,
        "kind": "agreement",
        "settings": settings.dump(run),
        "limit": LIMIT,
        "rounds": {client: [asdict(each) for each in found] for client, found in measured.items()},
        "ratios": ratios(measured),
        "off": off(measured),
    }


def render(measured: Rounds) -> str:
    """A line for each client: its medians over the rounds, and their ratios to this harness's."""
    found = ratios(measured)
    lines = [f"{'':<18}" + "".join(f"{title:>22}" for title in (*COMPARED.values(), "failed"))]
    for client, each in measured.items():
        row = asdict(median(each))
        cells = [_cell(name, row[name], found.get(client)) for name in COMPARED]
        lines.append(f"{client:<18}{''.join(cells)}{row['failed']:>22.1%}")
    wrong = off(measured)
    lines.append(f"off by more than {LIMIT:.0%}: {', '.join(wrong) if wrong else 'nothing'}")
    return "\n".join(lines)


def _cell(name: str, value: float, to_ours: Mapping[str, float] | None) -> str:
    text = f"{value * 1000:.1f} ms" if name.endswith("_s") else f"{value:.2f}"
    return f"{text:>14}" + (f" ({to_ours[name]:.3f})" if to_ours else " " * 8)
