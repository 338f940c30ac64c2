"""What other clients say of themselves, and whether it is what this harness says."""

import importlib.util
import json
import sys
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from loadtest import agreement, options, plan
from loadtest.agreement import GUIDELLM, OURS, VLLM, Figures
from loadtest.errors import UsageError
from loadtest.plan import Load, Shape, Spec, Tenant
from loadtest.result import Result
from loadtest.settings import Run, Target
from tests.loadtest import factory

URL = "http://127.0.0.1:1234"
# Recorded, and cut to what is read.
OF_VLLM = {
    "completed": 10,
    "failed": 0,
    "total_input_tokens": 646,
    "total_output_tokens": 640,
    "median_ttft_ms": 23.206111999570567,
    "median_e2el_ms": 352.37212250012817,
}
OF_GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "request_totals": {"successful": 147, "errored": 3, "incomplete": 0, "total": 150},
                "time_to_first_token_ms": {"successful": {"median": 110.8400821685791}},
                "request_latency": {"successful": {"median": 0.5579924583435059}},
                "output_token_count": {"successful": {"mean": 64.0}},
                "prompt_token_count": {"successful": {"mean": 64.0}},
            }
        }
    ]
}
SAME = Figures(ttft_p50_s=0.02, e2e_p50_s=0.2, output_tokens=64.0, prompt_tokens=64.0, failed=0.0)
RUN = Run(
    target=Target(URL),
    spec=Spec(Load("constant", rate=10.0, duration_s=3.0), Shape("fixed:64", "fixed:32"), seed=7),
    warmup_s=0.0,
)


def with_load(**fields: Any) -> Run:
    return replace(RUN, spec=replace(RUN.spec, load=replace(RUN.spec.load, **fields)))


# -- what each says


def test_figures_of_vllm() -> None:
    assert asdict(agreement.figures_of_vllm(OF_VLLM)) == pytest.approx(
        {
            "ttft_p50_s": 0.023206111999570567,
            "e2e_p50_s": 0.35237212250012817,
            "output_tokens": 64.0,
            "prompt_tokens": 64.6,
            "failed": 0.0,
        }
    )


def test_figures_of_guidellm() -> None:
    assert asdict(agreement.figures_of_guidellm(OF_GUIDELLM)) == pytest.approx(
        {
            "ttft_p50_s": 0.1108400821685791,
            "e2e_p50_s": 0.5579924583435059,
            "output_tokens": 64.0,
            "prompt_tokens": 64.0,
            "failed": 0.02,
        }
    )


def test_figures_of_ours() -> None:
    result = factory.result(count=100, warmup_s=0.0, fail_every=4)
    assert agreement.figures_of_ours(result.summary) == Figures(
        ttft_p50_s=result.summary["latency_s"]["ttft"]["p50"],
        e2e_p50_s=result.summary["latency_s"]["e2e"]["p50"],
        output_tokens=factory.TOKENS,
        prompt_tokens=128,
        failed=0.25,
    )


def test_a_client_without_a_success_has_no_figures() -> None:
    with pytest.raises(UsageError, match=r"^vllm bench serve: no request succeeded$"):
        agreement.figures_of_vllm(OF_VLLM | {"completed": 0, "failed": 10})


# -- the verdict


@pytest.mark.parametrize(
    ("theirs", "wrong"),
    [
        (SAME, []),
        (replace(SAME, ttft_p50_s=0.0219), []),
        (replace(SAME, ttft_p50_s=0.0221), ["TTFT p50 of guidellm"]),
        (replace(SAME, ttft_p50_s=0.0179), ["TTFT p50 of guidellm"]),
        (replace(SAME, e2e_p50_s=0.23), ["E2E p50 of guidellm"]),
        (replace(SAME, output_tokens=32.0), ["output tokens of guidellm"]),
        (replace(SAME, prompt_tokens=80.0), ["prompt tokens of guidellm"]),
        (replace(SAME, failed=0.04), []),
        (replace(SAME, failed=0.06), ["failures of guidellm"]),
    ],
)
def test_what_is_off(theirs: Figures, wrong: list[str]) -> None:
    measured = {OURS: [SAME], VLLM: [SAME], GUIDELLM: [theirs]}
    assert agreement.off(measured) == wrong
    last = agreement.render(measured).splitlines()[-1]
    assert last == f"off by more than 10%: {', '.join(wrong) or 'nothing'}"


def test_failures_of_this_harness_count_too() -> None:
    assert agreement.off({OURS: [replace(SAME, failed=0.5)], VLLM: [SAME]}) == [
        "failures of loadtest"
    ]


def test_the_median_round_decides() -> None:
    slow = replace(SAME, ttft_p50_s=1.0)
    assert agreement.off({OURS: [SAME, slow, SAME], VLLM: [slow, SAME, SAME]}) == []
    assert agreement.ratios({OURS: [SAME], VLLM: [slow, slow, SAME]})[VLLM] == {
        "ttft_p50_s": pytest.approx(50.0),
        "e2e_p50_s": 1.0,
        "output_tokens": 1.0,
        "prompt_tokens": 1.0,
    }


# -- what is measured


def test_rounds_are_interleaved_with_other_seeds() -> None:
    asked: list[tuple[str, int]] = []

    def client(name: str) -> agreement.Measure:
        def measure(run: Run) -> Figures:
            asked.append((name, run.spec.seed))
            return SAME

        return measure

    found = agreement.measure(RUN, {"a": client("a"), "b": client("b")}, rounds=2)
    assert asked == [("a", 7), ("b", 7), ("a", 8), ("b", 8)]
    assert found == {"a": [SAME, SAME], "b": [SAME, SAME]}


@pytest.mark.parametrize(
    ("run", "burstiness"),
    [(RUN, "inf"), (with_load(kind="poisson"), "1"), (with_load(requests=9), "inf")],
)
def test_the_others_send_the_same(run: Run, burstiness: str, tmp_path: Path) -> None:
    count = len(plan.draw(run.spec))
    said = agreement.vllm_options(run, Path("/tokenizer"), tmp_path / "o.json")
    assert {
        "--base-url=http://127.0.0.1:1234",
        "--random-input-len=64",
        "--random-output-len=32",
        f"--num-prompts={count}",
        "--request-rate=10.0",
        f"--burstiness={burstiness}",
        "--seed=7",
        "--ignore-eos",
        f"--result-dir={tmp_path}",
        "--result-filename=o.json",
    } < set(said)
    spec = agreement.guidellm_scenario(run, Path("/tokenizer"), tmp_path / "o.json")["spec"]
    assert spec["profile"] == {"kind": run.spec.load.kind, "rate": [10.0]}
    assert spec["constraints"] == [{"kind": "max_requests", "count": count}]
    assert spec["data"] == [{"kind": "synthetic_text", "prompt_tokens": 64, "output_tokens": 32}]
    assert spec["outputs"] == [{"kind": "json", "path": str(tmp_path / "o.json")}]


def test_the_run_has_no_warmup() -> None:
    assert agreement.plain(replace(RUN, warmup_s=5.0)) == RUN


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (with_load(kind="gamma", cv=2.0), "constant or poisson"),
        (replace(RUN, spec=replace(RUN.spec, shape=Shape("uniform:1:9"))), "one length"),
        (replace(RUN, target=Target(URL, endpoint="chat")), "streamed completions"),
        (replace(RUN, target=Target(URL, stream=False)), "streamed completions"),
        (replace(RUN, spec=replace(RUN.spec, tenants=(Tenant("a", key="k"),))), "keys"),
    ],
)
def test_what_the_others_cannot_do(run: Run, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        agreement.plain(run)


# -- the command


def arguments(*words: str) -> Namespace:
    parser = options.Parser("agreement", "")
    agreement.add_arguments(parser)
    return parser.parse_args([*words, f"--base-url={URL}", "--load=constant", "--rate=10"])


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Result:
    """What this harness measures, in an environment without vLLM."""
    result = factory.result(count=100, warmup_s=0.0)
    monkeypatch.setattr(agreement, "execute", lambda run, directory: (result, tmp_path / "ours"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return result


def interpreter(path: Path, code: str) -> Path:
    """Stands for a Python that has GuideLLM: runs `code` with its scenario's path in `output`."""
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "scenario = json.load(open(sys.argv[sys.argv.index('-c') + 1], encoding='utf-8'))\n"
        f"output = open(scenario['spec']['outputs'][0]['path'], 'w', encoding='utf-8')\n{code}\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def guidellm_says(ours: Result, faster: float) -> dict[str, Any]:
    latency = ours.summary["latency_s"]
    metrics = {
        "request_totals": {"successful": 100, "total": 100},
        "time_to_first_token_ms": {"successful": {"median": latency["ttft"]["p50"] * 1000}},
        "request_latency": {"successful": {"median": latency["e2e"]["p50"] / faster}},
        "output_token_count": {"successful": {"mean": factory.TOKENS}},
        "prompt_token_count": {"successful": {"mean": 128}},
    }
    return {"benchmarks": [{"metrics": metrics}]}


@pytest.mark.parametrize(("faster", "status"), [(1.0, 0), (1.5, 1)])
def test_the_command(
    ours: Result, faster: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says = guidellm_says(ours, faster)
    python = interpreter(tmp_path / "python", f"json.dump({says}, output)")
    words = [f"--guidellm={python}", f"--tokenizer={tmp_path}", f"--out={tmp_path / 'out'}"]
    assert agreement.main(arguments(*words, "--rounds=2")) == status
    shown = capsys.readouterr().out
    assert "vllm bench serve: skipped" in shown
    # The log of a client that did what it should is gone: this is all that is left.
    (path,) = (tmp_path / "out").iterdir()
    assert str(path) in shown
    found = json.loads(path.read_text(encoding="utf-8"))
    assert len(found["rounds"][GUIDELLM]) == len(found["rounds"][OURS]) == 2
    assert found["ratios"][GUIDELLM]["e2e_p50_s"] == pytest.approx(1 / faster)
    assert found["off"] == (["E2E p50 of guidellm"] if status else [])


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("output.close(); os.remove(output.name); sys.exit(3)", "guidellm ended with status 3: "),
        ("sys.exit(3)", "guidellm wrote what is not understood: JSONDecodeError"),
        (
            "output.write('{}')",
            r"guidellm wrote what is not understood: KeyError\('benchmarks'\): ",
        ),
    ],
)
def test_a_client_that_fails_leaves_its_log(
    ours: Result, code: str, line: str, tmp_path: Path
) -> None:
    python = interpreter(tmp_path / "python", f"print('it went wrong', flush=True); {code}")
    words = [f"--guidellm={python}", f"--tokenizer={tmp_path}", f"--out={tmp_path / 'out'}"]
    with pytest.raises(UsageError, match=rf"^{line}.*\.log$") as raised:
        agreement.main(arguments(*words))
    log = Path(str(raised.value).rpartition(": ")[2])
    assert log.read_text(encoding="utf-8") == "it went wrong\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "agreement needs --tokenizer DIR, not None"),
        (["--tokenizer=/nowhere"], "agreement needs --tokenizer DIR, not /nowhere"),
        (["--tokenizer=/"], "there is no other client to agree with"),
        (
            ["--tokenizer=/", "--guidellm=/nowhere/python"],
            "--guidellm /nowhere/python: no such interpreter",
        ),
    ],
)
def test_a_wrong_option_is_one_line(ours: Result, words: list[str], line: str) -> None:
    with pytest.raises(UsageError) as raised:
        agreement.main(arguments(*words))
    assert str(raised.value) == line
