"""`plan`: the cheapest settings that keep enough requests good, and their manifest."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure

from loadtest import files, options, page
from loadtest.errors import UsageError
from loadtest.simulator import scenario
from loadtest.simulator.autoscaler import Autoscaler, Metric
from loadtest.simulator.candidate import Candidate, Result, manifest, neighbours, play, result
from loadtest.simulator.cluster import Story
from loadtest.simulator.hpa_behavior import Bounds
from loadtest.simulator.outcome import Slo
from loadtest.simulator.simulate import picture
from loadtest.table import Section
from loadtest.text import aligned

HEAD = ("autoscaler", "good", "GPU-hours", "peak", "turns")
PAGE = (
    """\
{{ show(section) }}
{%- for note in notes %}
<p>{{ note }}</p>
{%- endfor %}
<h2>Manifest of what is recommended</h2>
<pre>{{ manifest }}</pre>
"""
    + page.PICTURES
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    scenario.add_load(parser)
    scenario.add_engine(parser)
    scenario.add_slo(parser)
    scenario.add_delays(parser)
    group = parser.add_argument_group("what may be chosen")
    for name, default in (("--max-num-seqs", 64), ("--max-num-batched-tokens", 2048)):
        group.add_argument(
            name,
            type=options.count,
            nargs="+",
            default=[default],
            metavar="N",
            help=f"one or more; default: {default}",
        )
    group.add_argument("--most", type=options.count, default=8, metavar="N", help="replicas")
    parser.add_argument(
        "--share",
        type=options.positive,
        metavar="X",
        help="that has to be good, 0 to 1; default: as good as the shipped autoscaler",
    )
    parser.add_argument("--name", default="tidegate", help="of the Deployment")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="the same as a page with plots")


def main(arguments: argparse.Namespace) -> int:
    """Search, and print the table and the manifest."""
    if arguments.share is not None and arguments.share > 1:
        raise UsageError(f"--share is 0 to 1, not {arguments.share:g}")
    search = _search(arguments)
    shipped = search.play(search.first)
    wanted = shipped.good if arguments.share is None else arguments.share
    best = search.best(shipped, wanted)
    rows = [
        ("pending alone, defaults", search.pending_alone()),
        ("shipped", shipped),
        ("recommended", best),
    ]
    cells = [(name, *_cells(found)) for name, found in rows]
    print(aligned([HEAD, *cells]))
    notes = [
        f"recommended: {best.candidate}",
        f"{len(search.played)} settings played, {wanted:.1%} good were wanted",
    ]
    if best.good < wanted:
        notes.append("NONE is good enough: allow more replicas, or other limits")
    print("\n".join(notes))
    start_s = search.one.start.total_s
    found = manifest(best.candidate, arguments.name, arguments.most, start_s)
    text = yaml.safe_dump(found, sort_keys=False)
    print("---\n" + text.rstrip(), flush=True)
    if arguments.out is not None:
        pictures = [
            (name, picture(search.story(r.candidate), search.limits)) for name, r in rows[1:]
        ]
        files.write(arguments.out, _page(cells, notes, text, pictures).encode())
        print(arguments.out, file=sys.stderr)  # not into the manifest
    return int(best.good < wanted)


def _page(
    cells: Sequence[Sequence[str]],
    notes: Sequence[str],
    text: str,
    pictures: Sequence[tuple[str, Figure]],
) -> str:
    return page.render(
        PAGE,
        "Capacity plan",
        section=Section("Autoscalers", cells, HEAD),
        notes=notes,
        manifest=text,
        pictures=[page.picture(name, page.png(figure)) for name, figure in pictures],
    )


def _cells(found: Result) -> Iterator[str]:
    yield from (f"{found.good:.1%}", f"{found.gpu_hours:.2f}", str(found.peak), str(found.turns))


def _search(arguments: argparse.Namespace) -> "Search":
    load, one = scenario.load(arguments), scenario.replica(arguments)
    slots, tokens = tuple(arguments.max_num_seqs), tuple(arguments.max_num_batched_tokens)
    scenario.check(load, one.engine(slots[0], max(tokens)))
    limits, delays = scenario.slo(arguments), scenario.delays(arguments)
    return Search(load, one, arguments.most, limits, delays, slots, tokens, {})


@dataclass(frozen=True)
class Search:
    """Step by step to a better neighbour, from the shipped setting, until there is none.

    Attributes:
        played: what is known already.

    """

    load: scenario.Load
    one: scenario.Replica
    most: int
    limits: Slo
    delays: Mapping[str, Any]
    slots: tuple[int, ...]
    tokens: tuple[int, ...]
    played: dict[Candidate, Result]

    @property
    def first(self) -> Candidate:
        """With the shipped autoscaler."""
        door = self.one.door
        slo = door is not None and door.ttft_slo_s is not None
        return Candidate.shipped(self.slots[0], self.tokens[0], slo=slo)

    def play(self, candidate: Candidate) -> Result:
        """What a candidate comes to."""
        if candidate not in self.played:
            self.played[candidate] = result(candidate, self.story(candidate), self.limits)
        return self.played[candidate]

    def story(self, candidate: Candidate) -> Story:
        """What happens, which is too much to be kept of all that are played."""
        scaler = candidate.autoscaler(self.most, self.one.start.total_s)
        return play(candidate, replace(scaler, **self.delays), self.load, self.one)

    def best(self, start: Result, wanted: float) -> Result:
        """The best that is found; the first of equals."""
        found = start
        while True:
            around = neighbours(found.candidate, self.most, self.slots, self.tokens)
            better = min(map(self.play, around), key=lambda result: result.rank(wanted))
            if better.rank(wanted) >= found.rank(wanted):
                return found
            found = better

    def pending_alone(self) -> Result:
        """One metric, and no behaviour in the manifest."""
        scaler = Autoscaler((Metric("pending", 4),), Bounds(1, self.most, None), **self.delays)
        return result(self.first, play(self.first, scaler, self.load, self.one), self.limits)
