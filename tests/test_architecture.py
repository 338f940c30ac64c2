"""The house rules that the imports show: arrows point down, no cycles, vllm in its room only."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
APP = ROOT / "app"

# From the top of the house to its ground; a room may import those below it and itself. Rooms on
# one line do not know each other.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"server"}),
    frozenset({"main", "drain"}),
    frozenset({"api"}),
    frozenset({"admission", "auth", "telemetry"}),
    frozenset({"engine"}),
    frozenset({"lifecycle", "permit", "progress", "embedded", "embedded_convert"}),
    frozenset({"workload"}),
    frozenset({"errors", "settings"}),
)
# One part of the telemetry room is below the engine's: engine processes log through it.
GROUND_MODULES = frozenset({"app.telemetry.logs", "app"})


@dataclass(frozen=True)
class Import:
    """One import statement: who imports what, and whether inside a function."""

    importer: str
    imported: str
    lazy: bool
    typing_only: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> list[Path]:
    return sorted(APP.rglob("*.py"))


def imports_of(path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lazy = _inside(tree, (ast.FunctionDef, ast.AsyncFunctionDef))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        for name in _names(node):
            yield Import(module_name(path), name, id(node) in lazy, id(node) in typing_only)


def _inside(tree: ast.AST, kinds: tuple[type[ast.AST], ...]) -> set[int]:
    outer = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    return {id(inner) for node in outer for inner in ast.walk(node)}


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "relative imports hide where an arrow points"
        return [_target(node.module or "", alias.name) for alias in node.names]
    return []


def _target(module: str, name: str) -> str:
    """The module that `from module import name` reads: `name` itself where it is one."""
    path = ROOT.joinpath(*module.split("."), name)
    return f"{module}.{name}" if path.is_dir() or path.with_suffix(".py").exists() else module


def all_imports() -> list[Import]:
    return [found for path in modules() for found in imports_of(path)]


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "app"


def floor(name: str) -> int:
    return next(i for i, rooms in enumerate(FLOORS) if name in rooms)


def points_down(found: Import) -> bool:
    importer, imported = room(found.importer), room(found.imported)
    if importer == imported or found.imported in GROUND_MODULES or found.typing_only:
        return True
    return floor(importer) < floor(imported)


def test_the_reader_sees_imports() -> None:
    found = {(i.importer, i.imported) for i in all_imports()}
    assert ("app.main", "app.engine.loading") in found
    assert ("app.engine.llm", "vllm.v1.engine.async_llm") in found


@pytest.mark.parametrize(
    ("importer", "imported", "right"),
    [
        ("app.api.answer", "app.engine.protocol", True),
        ("app.engine.llm", "app.api.answer", False),
        ("app.permit", "app.engine.llm", False),
        ("app.lifecycle", "app.permit", False),
        ("app.engine.environment", "app.telemetry.logs", True),
        ("app.engine.environment", "app.telemetry.metrics", False),
    ],
)
def test_the_rule_tells_up_from_down(importer: str, imported: str, right: bool) -> None:
    assert points_down(Import(importer, imported, lazy=False, typing_only=False)) is right


def test_every_room_has_a_floor() -> None:
    known = frozenset().union(*FLOORS)
    assert {room(module_name(path)) for path in modules()} - {"app"} == known


def test_arrows_point_down() -> None:
    ours = [i for i in all_imports() if i.imported.split(".")[0] == "app"]
    wrong = [f"{i.importer} -> {i.imported}" for i in ours if not points_down(i)]
    assert wrong == []


def test_no_module_is_part_of_a_cycle() -> None:
    edges: dict[str, set[str]] = {}
    for found in all_imports():
        if found.imported.startswith("app.") and not found.typing_only:
            edges.setdefault(found.importer, set()).add(found.imported)
    assert [module for module in edges if module in _reachable(edges, module)] == []


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(edges.get(start, ()))
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo.extend(edges.get(module, ()))
    return seen


def test_no_import_hides_in_a_function() -> None:
    assert [f"{i.importer}: {i.imported}" for i in all_imports() if i.lazy] == []


def test_only_the_engine_room_imports_vllm() -> None:
    users = {i.importer for i in all_imports() if i.imported.split(".")[0] == "vllm"}
    assert users
    assert {user for user in users if not user.startswith("app.engine.")} == set()


def test_the_engine_room_can_be_seen_without_vllm() -> None:
    """What the other rooms import must not pull vllm in before the port is open."""
    edges: dict[str, set[str]] = {}
    for found in all_imports():
        edges.setdefault(found.importer, set()).add(found.imported)
    reached = _reachable(edges, "app.__main__")
    assert "app.engine.protocol" in reached
    assert {m for m in reached if m.split(".")[0] in {"vllm", "torch", "transformers"}} == set()


def test_the_settings_are_the_only_reader_of_the_environment() -> None:
    readers = {
        module_name(path)
        for path in modules()
        if "os.environ" in path.read_text(encoding="utf-8")
        or "getenv" in path.read_text(encoding="utf-8")
    }
    assert readers == {"app.engine.environment", "app.settings.loading"}
