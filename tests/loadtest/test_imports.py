"""The harness measures any server, so it knows nothing of ours."""

import ast
from pathlib import Path


def test_the_harness_imports_nothing_of_the_service() -> None:
    seen: set[str] = set()
    for path in (Path(__file__).parents[2] / "loadtest").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                seen.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                seen.add((node.module or "").split(".")[0])
    assert "loadtest" in seen
    assert not seen & {"app", "vllm", "tests"}
