"""All rules, in the order in which a reader wants to hear of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from deploy.check import custom, metrics, network, pods, promtool, scaling, schemas, served
from deploy.check.findings import Finding, Findings
from deploy.check.metrics import Series
from deploy.check.tree import Overlay, Tree

OverlayRule: TypeAlias = Callable[[Overlay], Findings]

OF_SHAPE: Final[Sequence[OverlayRule]] = (schemas.objects, schemas.templates, custom.objects)
OF_SENSE: Final[Sequence[OverlayRule]] = (
    served.settings,
    pods.graces,
    pods.workers,
    pods.groups,
    pods.probes,
    pods.ports,
    pods.rights,
    pods.images,
    pods.resources,
    pods.files,
    pods.rollouts,
    network.selectors,
    network.budgets,
    network.own_labels,
    network.references,
    network.routes,
    network.mounts,
    network.callers,
    network.scrapes,
    network.policies,
    scaling.alone,
    scaling.bounds,
    scaling.targets,
    scaling.steps,
    scaling.keda,
)
OF_TREE: Final[Sequence[Callable[[Tree], Findings]]] = (
    network.picker,
    promtool.rules,
    promtool.unit_tests,
)
OF_METRICS: Final[Sequence[Callable[[Tree, Series], Findings]]] = (
    metrics.named,
    metrics.expressions,
    metrics.adapter,
    metrics.templates,
)


def check(tree: Tree, scraped: Series) -> list[Finding]:
    """Everything that is wrong; each line once, however many overlays share its cause."""
    return list(dict.fromkeys(_all(tree, scraped)))


def _all(tree: Tree, scraped: Series) -> Iterator[Finding]:
    yield from tree.findings
    for overlay in tree.overlays:
        misshapen = [finding for rule in OF_SHAPE for finding in rule(overlay)]
        yield from misshapen
        # What has not its shape cannot be asked whether it makes sense.
        if not misshapen:
            for rule in OF_SENSE:
                yield from rule(overlay)
    for of_tree in OF_TREE:
        yield from of_tree(tree)
    for of_metrics in OF_METRICS:
        yield from of_metrics(tree, scraped)
