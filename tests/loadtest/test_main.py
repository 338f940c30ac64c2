"""The command line as its users meet it: exit status, and one line when it is their mistake."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest import __main__ as command_line
from loadtest import run as runner
from loadtest import table
from loadtest.result import Result, load
from loadtest.settings import Run
from loadtest.verdict import Harness
from tests.loadtest import factory
from tests.rig.server import LOOPBACK, ROOT, free_port

SERVER = '{python} -m tests.rig.sse_server --port {port} --script \'{"ttft_s": 0.01, "itl_s": 0}\''


def loadtest(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "loadtest", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.slow
def test_a_run_against_a_server_that_is_started_for_it(tmp_path: Path) -> None:
    scenario = tmp_path / "short.yaml"
    scenario.write_text(
        "{rate: 0.5x, capacity_concurrency: 2, capacity_duration: 2, duration: 2, warmup: 0.5,\n"
        "prompt_tokens: 20, output_tokens: 4, slo: {ttft: 5}}"
    )
    out = tmp_path / "results"
    done = loadtest("run", "--scenario", str(scenario), "--serve", SERVER, "--out", str(out))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    path = Path(lines[-1])
    assert "verdict" in done.stdout
    found = load(path)
    assert path.parent == out
    assert found.run.name == "short"
    assert found.run.capacity is not None
    assert found.run.capacity > 10
    assert found.run.spec.load.rate == found.run.capacity / 2
    assert found.summary["goodput"]["share_of_offered"] == 1
    assert lines[0].startswith(f"capacity: {found.run.capacity:.2f} requests/s, ")
    (measured,) = out.glob("*-short-capacity-1.json")
    assert lines[0].endswith(str(measured))
    assert load(measured).run.spec.load.concurrency == 2


@pytest.mark.slow
def test_the_users_mistakes_are_one_line_and_status_2(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 1, "input_length": 2, "output_length": n} for n in (3, "many")]
    trace.write_text("\n".join(map(json.dumps, rows)))
    scenario = tmp_path / "busy.yaml"
    scenario.write_text("durration: 5")
    nowhere = f"http://{LOOPBACK}:{free_port()}"
    for words, message in (
        (("run", "--base-url", nowhere), f"{nowhere}/v1/models: "),
        (("run", "--load=trace", f"--trace={trace}", "--trace-kind=mooncake"), f"{trace}, line 2:"),
        (("run", "--rate", "0"), "a rate must be above 0"),
        (("run", "--scenario", str(scenario)), f"{scenario}: unknown key 'durration' (nearest: d"),
        (("run", "--serve", "false {port}", f"--out={tmp_path}"), "the server ended with status 1"),
        (("report", str(trace)), f"{trace}: not a result"),
        (("ran",), "unknown command 'ran': one of run, "),
    ):
        done = loadtest(*words)
        assert done.returncode == 2, words
        assert done.stderr.startswith(f"loadtest: {message}")
        assert done.stderr.count("\n") == 1
        assert not done.stdout


@pytest.mark.parametrize(
    ("harness", "status"),
    [
        (Harness(), 0),
        (Harness(cpu_share=0.9), 0),
        (Harness(server_restarted=True), 1),
        (Harness(interrupted=True), 130),
    ],
    ids=["valid", "degraded", "invalid", "interrupted"],
)
def test_the_verdict_is_the_exit_status(
    harness: Harness,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def execute(run: Run, directory: Path) -> tuple[Result, Path]:
        return factory.result(harness=harness), directory / "it.json"

    monkeypatch.setattr(runner, "execute", execute)
    assert command_line.main(["run", "--out", "there"]) == status
    out = capsys.readouterr().out
    assert "verdict" in out
    assert out.endswith("there/it.json\n")


def test_an_interruption_elsewhere_has_its_status_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(run: Run, directory: Path) -> tuple[Result, Path]:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "execute", execute)
    assert command_line.main(["run"]) == 130


@pytest.mark.parametrize(
    ("harness", "rate", "reason"),
    [
        (Harness(server_restarted=True), 5.0, "the server restarted"),
        (Harness(), 0.0, "no request ended in time"),
    ],
)
def test_a_capacity_that_was_not_measured(
    harness: Harness,
    rate: float,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def execute(run: Run, directory: Path) -> tuple[Result, Path]:
        found = factory.result(harness=harness)
        summary = {"requests_per_s": rate, "output_tokens_per_s": factory.TOKENS * rate}
        return replace(found, summary=summary), directory / "it.json"

    monkeypatch.setattr(runner, "execute", execute)
    assert command_line.main(["run", "--rate", "2x"]) == 2
    assert reason in capsys.readouterr().err


def test_every_command_tells_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([]) == 2
    assert capsys.readouterr().out == command_line.usage() + "\n"
    assert command_line.main(["--help"]) == 0
    listed = capsys.readouterr().out
    for name in command_line.COMMANDS:
        assert f"\n  {name} " in listed
        with pytest.raises(SystemExit) as ended:
            command_line.main([name, "--help"])
        assert ended.value.code == 0
        assert f"usage: python -m loadtest {name}" in capsys.readouterr().out


def test_a_tiny_model_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["tiny-model", str(tmp_path / "it")]) == 0
    assert (tmp_path / "it" / "model.safetensors").is_file()
    assert capsys.readouterr().out == f"{tmp_path / 'it'}\n"


def test_a_report_of_two_results_also_sets_them_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    results = [
        factory.result(name=path.stem, scale=scale)
        for path, scale in zip(paths, (1.0, 2.0), strict=True)
    ]
    for path, result in zip(paths, results, strict=True):
        result.save(path)
    page = tmp_path / "page.html"
    assert command_line.main(["report", *map(str, paths), "--out", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(table.side_by_side(results))
    assert page.is_file()
    assert str(page) in out.splitlines()
