"""What imports what: in order, imports for type checkers among them, and nothing that is not there."""

from __future__ import annotations

import ast
import importlib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each imports only what stands before it.
ORDER = (
    *("lazy", "printable", "errors", "files", "garbage", "model_folder"),
    *("graph_rewrite", "runtime", "export", "measuring", "optimization", "quantization", "inference", "serving"),
    *("qualify", "analysis", "cli"),
)


def modules() -> dict[str, Path]:
    """Every module of the package by its name, but bertfuse itself, which imports lazily."""
    found = {}
    for folder, above in (
        (ROOT / "src", ()),
        (ROOT / "graph_rewrite", ("bertfuse",)),
        (ROOT / "export", ("bertfuse",)),
    ):
        base = folder if not above else folder.parent
        for file in folder.rglob("*.py"):
            name = ".".join((*above, *file.relative_to(base).with_suffix("").parts)).removesuffix(".__init__")
            if name != "bertfuse":
                found[name] = file
    return found


def imports(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            found.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base)
    return found & set(known) - {name}


@cache
def imports_of_modules() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(name, file, known) for name, file in known.items()}


def test_no_circles() -> None:
    graph = imports_of_modules()
    assert len(graph) > 100 and "bertfuse.graph_rewrite.graph" in graph["bertfuse.graph_rewrite.pipeline"]
    check_order(graph)


def check_order(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' imports '.join(reversed(error.args[1]))}")


@pytest.mark.parametrize("name", ["bertfuse", *(n for n, file in modules().items() if file.name == "__init__.py")])
def test_no_circles_of_packages(name: str) -> None:
    """Neither do the packages and modules in a package import each other in a circle, each taken as a whole."""
    graph: dict[str, set[str]] = {}
    for module, found in imports_of_modules().items():
        if module.startswith(f"{name}."):
            part = module.removeprefix(f"{name}.").split(".")[0]
            inside = {other for other in found if other.startswith(f"{name}.")}
            parts = {other.removeprefix(f"{name}.").split(".")[0] for other in inside}
            graph[part] = graph.get(part, set()) | parts - {part}
    check_order(graph)


def test_order_of_packages() -> None:
    """What runs and serves models knows nothing of what examines them; what reads model folders, of nothing above."""
    for name, found in imports_of_modules().items():
        allowed = ORDER[: ORDER.index(name.split(".")[1]) + 1]
        later = {other for other in found if other.split(".")[1] not in allowed}
        assert not later, f"{name} imports {later}, which stand later in ORDER"


def test_what_is_imported_is_there() -> None:
    """In tests, too, which import much inside functions."""
    tests = {file: ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in (ROOT / "tests").rglob("*.py")}
    files = modules() | {name.removesuffix(".__init__"): file for file, name in tests.items()}
    known = {*files, *(name.rpartition(".")[0] for name in tests.values()), "bertfuse"}
    missing = []
    for file in files.values():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            ours = [name for name in names if name.partition(".")[0] in ("bertfuse", "tests")]
            absent = [name for name in ours if name not in known]
            if isinstance(node, ast.ImportFrom) and ours and not absent and node.module in files:
                source = files[node.module].read_text(encoding="utf-8")
                made = (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in source)
                absent = [name for name in made if name not in known]
            missing += [f"{file.relative_to(ROOT)}:{node.lineno}: {name}" for name in absent]
    assert not missing


@pytest.mark.parametrize("name", ["bertfuse", *(n for n, file in modules().items() if file.name == "__init__.py")])
def test_what_is_exported_is_there(name: str) -> None:
    """Most of it is imported on first use, from a module that is named by a string."""
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", []):
        assert getattr(module, exported) is not None


def test_descriptions_do_not_know_the_rules() -> None:
    """spec.py, ops/ and dialect/ describe ops; what fuses imports them, never the other way."""
    described = [f"bertfuse.graph_rewrite.{name}" for name in ("spec", "ops", "dialect")]

    def describes(name: str) -> bool:
        return any(name == place or name.startswith(place + ".") for place in described)

    for name, found in imports_of_modules().items():
        if describes(name):
            others = {other for other in found if not describes(other)}
            assert not others, f"{name} imports {others}"
