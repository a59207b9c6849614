"""What imports what: no circles, imports for type checkers among them, and nothing that is not there."""

from __future__ import annotations

import ast
import importlib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("graph_rewrite", "export", "runtime", "inference", "serving", "analysis", "qualify", "cli")


def modules() -> dict[str, Path]:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    names = [".".join(("bertfuse", *file.relative_to(ROOT).with_suffix("").parts)) for file in files]
    return {name.removesuffix(".__init__"): file for name, file in zip(names, files, strict=True)}


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


def test_no_circles() -> None:
    known = modules()
    graph = {name: imports(name, file, known) for name, file in known.items()}
    assert len(graph) > 100 and "bertfuse.graph_rewrite.graph" in graph["bertfuse.graph_rewrite.pipeline"]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' imports '.join(reversed(error.args[1]))}")


def test_what_is_imported_is_there() -> None:
    """In tests, too, which import much inside functions."""
    files = modules()
    known = {*files, "bertfuse", "bertfuse.errors", "bertfuse.printable"}
    missing = []
    for file in [*files.values(), *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            ours = [name for name in names if name.partition(".")[0] == "bertfuse"]
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


def test_what_serves_does_not_know_what_examines() -> None:
    """runtime/ and inference/ go into servers: they import nothing of the packages that look at models."""
    known = modules()
    for name, file in known.items():
        if name.split(".")[1] in ("runtime", "inference", "serving"):
            found = {imported.split(".")[1] for imported in imports(name, file, known)}
            assert not found & {"analysis", "qualify", "cli"}, f"{name} imports {found}"


def test_descriptions_do_not_know_the_rules() -> None:
    """spec.py, ops/ and dialect/ describe ops; what fuses imports them, never the other way."""
    known = modules()
    described = [f"bertfuse.graph_rewrite.{name}" for name in ("spec", "ops", "dialect")]

    def describes(name: str) -> bool:
        return any(name == place or name.startswith(place + ".") for place in described)

    for name, file in known.items():
        if describes(name):
            others = {found for found in imports(name, file, known) if not describes(found)}
            assert not others, f"{name} imports {others}"
