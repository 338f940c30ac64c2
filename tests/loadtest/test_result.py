"""A result file: whole, partial, never overwritten."""

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loadtest.errors import UsageError
from loadtest.metrics import Slo
from loadtest.plan import Load, Spec, Tenant
from loadtest.record import Outcome, Record
from loadtest.result import PARTIAL, Draft, Gauges, Result, conclude, load
from loadtest.settings import MASKED, Run, Target
from loadtest.verdict import Grade, Harness

STARTED = datetime(2026, 11, 30, 12, 0, 5, tzinfo=UTC)
SECRET = "sk-very-secret"
RUN = Run(
    name="demo",
    target=Target(model="m", key=SECRET, headers={"Authorization": SECRET, "X-Other": "seen"}),
    spec=Spec(
        load=Load("steps", rates=(1.0, 2.0), step_s=30.0),
        tenants=(Tenant("a", key=SECRET, priority=1), Tenant("b", 2.0)),
    ),
    slo=Slo({"ttft": 1.0}),
    keep_records=True,
)


def record(index: int, outcome: Outcome = Outcome.OK) -> Record:
    at = float(index)
    return Record(
        index, "ab"[index % 2], at, 8, 3, at + 0.001, at + 0.1, at + 0.3, at + 0.31,
        [(0.1, 1), (0.1, 1)], 200, outcome, "", 8, 3, 3, None, f"id-{index}",
    )  # fmt: skip


def result(run: Run = RUN) -> Result:
    records = [record(i, Outcome.CUT if i == 7 else Outcome.OK) for i in range(60)]
    gauges = Gauges([0.0, 1.0], {"vllm_pending_requests": [0.0, None]})
    environment = {"client": {"python": "3"}, "server": {"model": "m"}}
    harness = Harness(cpu_share=0.1)
    return conclude(
        Result(run, STARTED, environment, (5.0, 60.0), records, harness, gauges, 0.25, ["a note"])
    )


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    saved = result()
    saved.save(tmp_path / "r.json")
    found = load(tmp_path / "r.json")
    masked = tuple(dataclasses.replace(t, key=t.key and MASKED) for t in RUN.spec.tenants)
    assert found.run.target.key == MASKED
    assert found.run.target.headers == {"Authorization": MASKED, "X-Other": "seen"}
    assert found.run.spec.tenants == masked
    for name in ("started_at", "environment", "window", "records", "harness", "gauges", "notes"):
        assert getattr(found, name) == getattr(saved, name), name
    assert found.summary == saved.summary
    assert found.verdict == saved.verdict


def test_a_key_is_in_no_file(tmp_path: Path) -> None:
    draft = Draft(tmp_path, RUN, STARTED, {})
    draft.add([record(0)])
    assert all(SECRET not in path.read_text() for path in tmp_path.iterdir())
    assert SECRET not in draft.finish(result()).read_text()


def test_without_records_times_stay_and_gaps_go(tmp_path: Path) -> None:
    saved = result(dataclasses.replace(RUN, keep_records=False))
    saved.save(tmp_path / "r.json")
    assert "gaps" not in json.loads((tmp_path / "r.json").read_text())["records"]
    found = load(tmp_path / "r.json")
    assert [r.ttft for r in found.records] == [r.ttft for r in saved.records]
    assert found.summary["latency_s"]["itl"]["p50"] == pytest.approx(0.1)


def test_each_tenant_has_its_summary() -> None:
    tenants = result().summary["tenants"]
    assert {name: found["offered"] for name, found in tenants.items()} == {"a": 27, "b": 28}
    assert tenants["b"]["outcomes"]["cut"] == 1


def test_two_runs_of_one_second_have_two_files(tmp_path: Path) -> None:
    first = Draft(tmp_path, RUN, STARTED, {})
    second = Draft(tmp_path, RUN, STARTED, {})
    assert first.finish(result()) != second.finish(result())
    assert Draft(tmp_path, RUN, STARTED, {}).finish(result()).exists()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_killed_run_is_readable_up_to_its_last_whole_line(tmp_path: Path) -> None:
    draft = Draft(tmp_path, RUN, STARTED, {"client": {}})
    draft.add([record(i) for i in range(40)])
    (path,) = tmp_path.glob(f"*{PARTIAL}")
    with path.open("a") as out:
        out.write('{"index": 40, "ten')
    found = load(path)
    assert len(found.records) == 40
    assert found.verdict.grade is Grade.INVALID
    assert any("interrupted" in reason for reason in found.verdict.reasons)
    assert found.window[0] == 5.0
    assert found.window[1] == pytest.approx(39.31)
    draft.discard()


def test_a_run_that_sent_nothing_leaves_nothing(tmp_path: Path) -> None:
    Draft(tmp_path, RUN, STARTED, {}).discard()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{", "not a result"), ("{}", "schema"), ('{"schema": 99}', "schema 99"), ("[]", "not a res")],
)
def test_another_file_is_one_line(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=reason) as raised:
        load(path)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "none.json")
