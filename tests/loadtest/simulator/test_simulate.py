"""`simulate`: a load from options or a trace, a cluster from options, a summary."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.__main__ import USAGE_ERROR, main
from loadtest.simulator import scenario
from loadtest.simulator.autoscaler import Autoscaler
from loadtest.simulator.calibration import Calibration
from loadtest.simulator.door import DoorSettings
from loadtest.simulator.fit import TERMS, Errors, Estimate, Fit
from loadtest.simulator.hpa_behavior import Bounds
from loadtest.simulator.pods import Start
from loadtest.simulator.step_time import Box, Work

ROOFLINE = ("--coefficients", "roofline-8b")
POISSON = ("--rate", "5", "--minutes", "2")
LENGTHS = ("--prompt-tokens", "fixed:100", "--output-tokens", "uniform:1:40")


def simulate(*arguments: str) -> int:
    return main(["simulate", *arguments])


def rows(text: str) -> dict[str, str]:
    pairs = (line.split("  ", 1) for line in text.splitlines() if "  " in line)
    return {name: value.strip() for name, value in pairs}


def test_a_load_that_one_replica_serves(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    targets = ("--pending-target", "4", "--running-target", "200")
    good = ("--good-ttft", "1", "--good-tpot", "0.1", "--good-e2e", "5")
    assert simulate(*ROOFLINE, *POISSON, *LENGTHS, *targets, *good, "--out", str(path)) == 0
    found = rows(capsys.readouterr().out)
    assert 500 < int(found["requests"]) == int(found["served"]) < 700
    assert found["good"] == "100.0%"
    assert found["GPU-hours"] == "0.03"
    assert found["replicas"] == "mean 1.0, peak 1, turns 0"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_trace_without_lengths_and_tenants(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    head = "client,window_start_s,rate_rps,cv,pattern,param1,param2"
    path.write_text(f"{head}\na,0,1.0,1.0,Gamma,1,1\nb,0,0.5,1.0,Gamma,1,1\n")
    trace = ("--trace", str(path), "--trace-kind", "servegen")
    assert simulate(*ROOFLINE, *trace, *LENGTHS, "--minutes", "5", "--no-door") == 0
    assert 350 < int(rows(capsys.readouterr().out)["requests"]) < 550
    assert simulate(*ROOFLINE, *trace) == USAGE_ERROR
    assert "--prompt-tokens is needed" in capsys.readouterr().err


def test_the_same_seed_the_same_words(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        simulate(*ROOFLINE, *POISSON, *LENGTHS, "--seed", seed)
        texts.append(capsys.readouterr().out.splitlines()[:-1])
    assert texts[0] == texts[1] != texts[2]


def test_the_front_door_and_what_an_autoscaler_sees_are_what_the_options_say() -> None:
    parser = argparse.ArgumentParser()
    scenario.add_engine(parser)
    scenario.add_delays(parser)
    door = ("--max-pending", "7", "--queue-timeout", "3", "--ttft-slo", "1")
    delays = ("--scrape", "30", "--adapter", "20", "--window", "60", "--sync", "10")
    given = parser.parse_args([*ROOFLINE, *door, *delays])
    assert scenario.replica(given).door == DoorSettings(7, 3.0, 1.0)
    scaler = Autoscaler((), Bounds(1, 2), **scenario.delays(given))
    found = (scaler.scrape_s, scaler.adapter_s, scaler.window_s, scaler.sync_s)
    assert found == (30, 20, 60, 10)
    shipped = Autoscaler((), Bounds(1, 2))
    assert replace(scaler, **scenario.delays(parser.parse_args(ROOFLINE))) == shipped


def test_a_late_look_at_the_gauges_scales_later(capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--rate", "40", "--minutes", "5", *LENGTHS, "--max-num-seqs", "4", "--start", "10")
    found = []
    for sync in ("15", "200"):
        assert simulate(*ROOFLINE, *load, "--running-target", "2", "--sync", sync) == 0
        found.append(float(rows(capsys.readouterr().out)["GPU-hours"]))
    assert found[0] > 1.5 * found[1]


def calibrated(path: Path, **engine: int) -> str:
    work = Work(50, 64, 10**6, 10**9)
    terms = {name: Estimate(0.01 if name == "step" else 1e-5, 0, 1) for name in TERMS}
    found = Fit(terms, Box(work, work), Errors(0, 0, 0, 99), 0, 0)
    path.write_text(json.dumps(Calibration("model", engine, found).dump()))
    return str(path)


def test_what_the_fit_has_not_seen_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert simulate("--coefficients", calibrated(tmp_path / "c.json"), *POISSON, *LENGTHS) == 0
    assert "extrapolated: prefill up to" in capsys.readouterr().out


def test_the_kv_cache_is_that_of_the_engine_that_was_calibrated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = calibrated(tmp_path / "c.json", kv_blocks=2, block_size=32)
    assert simulate("--coefficients", path, *POISSON, *LENGTHS) == USAGE_ERROR
    assert "does not fit into --kv-blocks: 64" in capsys.readouterr().err
    assert simulate("--coefficients", path, *POISSON, *LENGTHS, "--kv-blocks", "99") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "5"), "a --rate and --minutes"),
        ((*POISSON, *LENGTHS, "--seed", "-1"), "must not be negative"),
        ((*POISSON, *LENGTHS, "--start", "soon"), "seconds, or one of warm"),
        ((*POISSON, *LENGTHS, "--max-num-batched-tokens", "8"), "must not be below"),
        ((*POISSON, *LENGTHS, "--kv-blocks", "2"), "does not fit into --kv-blocks: 32"),
        (("--rate", "0.0001", "--minutes", "1", *LENGTHS), "no request comes"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(*ROOFLINE, *arguments) == USAGE_ERROR
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "start"), [("warm", Start(5, 55)), ("typical", Start(60, 180)), ("9.5", Start(0, 9.5))]
)
def test_cold_starts(text: str, start: Start) -> None:
    assert scenario.start_of(text) == start


def test_presets_add_up() -> None:
    assert [scenario.start_of(n).total_s for n in ("warm", "typical", "new-node")] == [60, 240, 540]
