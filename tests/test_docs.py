"""What the documentation names is there: files, lines in them, sections, tests, and options of commands."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from bertfuse.cli import app
from tests import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("cmake", "docs", "export", "graph_rewrite", "plugins", "src", "tests")
FILE = re.compile(r"[\w./-]+\.(?:py|cc|cu|cuh|h|md|sh|cmake|svg)(?::\d+)?")
FOLDER = re.compile(r"(?:[\w.-]+/)+")
MODULE = re.compile(r"-m ((?:tests|bertfuse)\.[\w.]+)")
# Of TensorRT, of Triton's repositories, what CONTRIBUTING's example of a new op writes, and what `make wheels` does.
THEIRS = ("NvInferPlugin.h", "model.py", "add_layer_norm.py", "add_layer_norm.cc", "dist")


@cache
def files() -> tuple[str, ...]:
    found = [path.relative_to(ROOT).as_posix() for name in FOLDERS for path in (ROOT / name).rglob("*")]
    return tuple(f"/{path}" for path in [*found, *(path.name for path in ROOT.iterdir())])


def spans(page: Path) -> list[str]:
    """Inline code, and the lines of code blocks."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        text = text.replace(block, "")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return re.findall(r"`([^`\n]+)`", text) + lines + [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_lines(page: Path) -> None:
    missing = []
    for span in spans(page):
        named = [word for word in span.split() if word.startswith(tuple(f"{folder}/" for folder in FOLDERS))]
        named += [span] if FILE.fullmatch(span) or FOLDER.fullmatch(span) else []
        named += [module.replace(".", "/").replace("bertfuse/", "") for module in MODULE.findall(span)]
        for name in named:
            path, _, line = name.rstrip("/.,").partition(":")
            ends = (f"/{path}", f"/{path}.py")
            there = [ROOT / found[1:] for found in files() if found.endswith(ends)]
            short = line.isdigit() and all(len(file.read_text().splitlines()) < int(line) for file in there)
            if (not there or short) and not path.endswith(THEIRS) and not set(path) & set("*…<"):
                missing.append(name)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path) -> None:
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path, _, section = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (section and section not in sections(file)):
            missing.append(target)
    assert not missing


def sections(page: Path) -> set[str]:
    """What links to the page's headings are called."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests(page: Path) -> None:
    """Tests and their modules that are named."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\b(test_\w+)", page.read_text(encoding="utf-8")))
    stems = {path.stem for path in (ROOT / "tests").rglob("test_*.*")}
    assert not [name for name in named if name not in stems and f"def {name}(" not in sources]


@cache
def options() -> dict[str, set[str]]:
    """The options of each command, of those in groups by their last name."""
    found: dict[str, set[str]] = {}

    def add(command: click.Command, name: str) -> None:
        for inner, child in getattr(command, "commands", {}).items():
            add(child, inner)
        found[name] = {"--help"}.union(*(set(param.opts) | set(param.secondary_opts) for param in command.params))

    add(typer.main.get_command(app), "bertfuse")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(page: Path) -> None:
    """Commands and their options in examples."""
    wrong = []
    for span in spans(page):
        for call in re.findall(r"(?:^|[;&|(] *|bin/)bertfuse ([a-z-]+)\b(?! \d)([^;&|)]*)", span.partition(" #")[0]):
            name, rest = call
            given = re.findall(r"(?:^|\s)(--?[a-z][\w-]*)", rest)
            wrong += [f"{span}: {option}" for option in given if option not in options().get(name, ())]
            wrong += [] if name in options() else [span]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_order(page: Path) -> None:
    """No two examples of a page write the same folder, which the second one would refuse."""
    seen: set[str] = set()
    twice = []
    text = page.read_text(encoding="utf-8")
    for name, rest in re.findall(r"^    bertfuse (export|fuse|optimize|quantize) (.*)", text, re.MULTILINE):
        call = rest.partition(" #")[0]
        for target in re.findall(r"(?:^|\s)-o (\S+)", call):
            if target.rstrip("/") in seen and "--overwrite" not in call:
                twice.append(f"{name} {call.strip()}")
            seen.add(target.rstrip("/"))
    assert not twice
