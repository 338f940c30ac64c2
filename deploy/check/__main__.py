"""The command line: `python -m deploy.check [DIR] [--scrape URL]`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from app.engine.environment import prepared
from app.settings import load
from deploy.check.metrics import series
from deploy.check.rules import check
from deploy.check.scrape import of_a_service, scrape
from deploy.check.served import engine_arguments
from deploy.check.tree import read

KUBECTL = Path(".venv/kubectl")


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong; the result is the exit status."""
    options = _parser().parse_args(arguments)
    tree = read(options.directory, options.kubectl)
    scraped = series(scrape(options.scrape) if options.scrape else of_a_service())
    findings = check(tree, scraped)
    if not findings:
        with prepared(load([], {})):
            findings = list(engine_arguments(tree.overlays))
    for finding in findings:
        print(finding)
    counts = f"{len(tree.overlays)} overlays, {len(tree.texts)} files, {len(scraped)} metrics"
    print(f"deploy-check: {counts}: {f'{len(findings)} findings' if findings else 'clean'}")
    return 1 if findings else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.check", description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path("deploy"), metavar="DIR")
    parser.add_argument(
        "--scrape",
        metavar="URL",
        help="/metrics of a running service that has been used; none: one is started",
    )
    parser.add_argument("--kubectl", type=Path, default=KUBECTL, help="deploy/kubectl.sh gets it")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
