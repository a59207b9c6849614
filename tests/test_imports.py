"""No two files import each other, directly or around a corner, imports for type checkers among them."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("graph_rewrite", "export", "runtime", "qualify", "cli")


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
