"""One scrape of /metrics, as tests read it."""

from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Samples: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """By name and labels."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of that name that have these labels among theirs. Raises KeyError."""
    wanted = labels.items()
    found = [value for (key, own), value in samples.items() if key == name and wanted <= own]
    if not found:
        raise KeyError(f"{name}{labels or ''} is not exported")
    return sum(found)


def shown(samples: Samples) -> str:
    """Our own series and the engine's that are not 0, as lines."""
    return "\n".join(
        f"{name}{dict(sorted(labels))} {value:g}"
        for (name, labels), value in sorted(samples.items(), key=str)
        if value
        and name.startswith(("vllm", "tidegate_"))
        and not name.endswith(("_bucket", "_created"))
    )
