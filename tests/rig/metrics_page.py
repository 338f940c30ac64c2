"""Writes `docs/metrics.md` from the definitions: `python -m tests.rig.metrics_page`."""

from pathlib import Path

from app.telemetry.metrics import DEFINITIONS, Definition

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

_TEXT = """\
# Metrics

`GET /metrics` answers in Prometheus' text format or in OpenMetrics, as the scraper's `Accept` asks;
on `server.ops_port` when that is set. A scrape refreshes the gauges first, so it is never older
than the engine's last step. This page is made by `python -m tests.rig.metrics_page`; a test
compares it with the code, another the code with a real scrape.

## Our own series

Names, types and labels are a contract: they stay when the engine renames its own. All are in
sequences (a request of m prompts and n samples is m×n), seconds or tokens.

{table}

- The gauges exist with value 0 from the start of the process, while the model loads too, and are
  back at 0 when nothing is in hand, however it ended. A series that counts by `route` exists once
  it has counted something.
- `pending + running = accepted − finished` holds in every scrape.
- With several engines (data parallel) the gauges are sums over all of them, KV cache usage is the
  mean.
- `route` is one of `completions`, `chat_completions`, `responses`, `messages`, `count_tokens`,
  `embeddings`, `tokenize`, `detokenize`, `models`, `version`, `openapi` and `unknown`; probes and
  scrapes are not counted. `status` is the HTTP status, 499 for a client that left; `reason` is the
  end of a sequence (`stop`, `length`, `aborted`, `error`, `invalid`) or the `code` of an error's
  body.
- Counters and histograms have a `…_created` companion, the Unix time of their first sample.

## The engine's series

All that begin with `vllm:` come from vLLM unchanged, with the labels `model_name` and `engine` (the
data-parallel rank). They are reported while the engine steps: an idle engine keeps its last word.

## What to scale on

`vllm_pending_requests` and `vllm_running_requests` together, or `tidegate_demand_sequences` where a
strict time limit keeps the queue short. Not pending alone: it is 0 as long as there are free slots,
so that an autoscaler flaps. Not KV cache usage alone: short prompts fill every slot while most of
the cache is free. A missing series is not 0: let the autoscaler keep its last decision then.

Alerts and a dashboard: [monitoring.md](monitoring.md).
"""


def page() -> str:
    rows = ["| series | type | labels besides `model_name` | meaning |", "|---|---|---|---|"]
    return _TEXT.format(table="\n".join([*rows, *map(_row, DEFINITIONS)]))


def _row(definition: Definition) -> str:
    labels = ", ".join(f"`{label}`" for label in definition.labels) or "–"
    kind = definition.kind.__name__.lower()
    return f"| `{definition.name}` | {kind} | {labels} | {definition.help} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
