"""The autoscaling chain with the real HPA controller: `python -m tests.e2e.hpa [SCENARIO …]`.

The shipped manifests, the service's own processes as pods, a real Prometheus; the status is 1 when
something is not as it should be. docs/e2e-hpa.md says how it works.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.hpa import manifests, report, rig
from tests.e2e.hpa.scenario import SCENARIOS, Scenario, needed
from tests.e2e.hpa.verdict import Figures, figures, judged
from tests.rig.server import ROOT

RESULTS = ROOT / "loadtest" / "results"


def measured(scenario: Scenario, results: Path) -> tuple[Figures, bool]:
    """One scenario, run, told and kept; whether all is as it should be."""
    print(f"{scenario.title}: {scenario.seconds / 60:.0f} minutes", flush=True)
    run = rig.run(scenario, results)
    found = figures(run)
    criteria = judged(found, scenario.criteria(need(scenario)))
    report.save(scenario, run, found, criteria, results)
    for says, holds in criteria:
        print(f"  {'yes' if holds else 'NO '} {says}", flush=True)
    for fault in found.faults:
        print(f"      {fault}")
    return found, all(holds for _, holds in criteria)


def need(scenario: Scenario) -> int:
    """Pods that the scenario's constant load takes at the target for what runs."""
    parts = manifests.shipped(manifests.rendered(scenario.overlay))
    slots = int(manifests.settings(parts)["engine"]["max_num_seqs"])
    load = {phase.name: phase.pods for phase in scenario.phases}[scenario.steady]
    return needed(load, slots, max(manifests.targets(parts.hpa).values()))


def main(arguments: Sequence[str]) -> int:
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.hpa", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(by_name)}; none: all")
    parser.add_argument("--results", type=Path, help="directory for the report")
    options = parser.parse_args(arguments)
    unknown = set(options.scenario) - set(by_name)
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}")
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    results: Path = options.results or RESULTS / f"hpa-{stamp}"
    results.mkdir(parents=True, exist_ok=True)
    rows, right = [], True
    for name in options.scenario or by_name:
        found, good = measured(by_name[name], results)
        rows.append(report.row(by_name[name], found))
        right = right and good
        # After each: what was measured stays told when a later one breaks.
        (results / "report.md").write_text(report.table(rows) + "\n")
    print(report.table(rows))
    print(f"report: {results}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
