"""The harness measures any server, so it knows nothing of ours."""

import ast
from pathlib import Path

RUN_VLLM = {"vllm_library.py"}
"""What is about the engine itself: no server is between."""


def imported(path: Path) -> set[str]:
    seen: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            seen.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            seen.add((node.module or "").split(".")[0])
    return seen


def test_the_harness_imports_nothing_of_the_service() -> None:
    seen = {p: imported(p) for p in (Path(__file__).parents[2] / "loadtest").rglob("*.py")}
    assert any("loadtest" in names for names in seen.values())
    for path, names in seen.items():
        allowed = {"vllm"} if path.name in RUN_VLLM else set()
        assert not names & ({"app", "vllm", "tests"} - allowed), path
