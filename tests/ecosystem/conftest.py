"""Folders of every task, made once by `bertfuse optimize` in this environment; without its packages all is skipped."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

PACKAGES = (
    "sentence_transformers", "optimum", "fastembed", "gliner", "sentencepiece", "ray", "openai", "tritonclient"
)  # fmt: skip
missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    # Without the packages only one file is collected, which says why the others are not.
    if missing and collection_path.name.startswith("test_"):
        return collection_path.name != "test_environment.py"
    return None


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint of that name, as save_pretrained writes it; "minilm" has real weights."""
    from tests.checkpoints import minilm, save

    base = tmp_path_factory.mktemp("sources")

    def source(name: str) -> Path:
        if name == "minilm":
            return minilm()
        folder = base / name
        return folder if folder.exists() else save(name, folder)

    return source


@pytest.fixture(scope="session")
def folders(sources: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder that `bertfuse optimize` makes of that checkpoint, all of them side by side."""
    from tests.commands import said

    base = tmp_path_factory.mktemp("optimized")

    def folder(name: str) -> Path:
        if not (base / name).exists():
            exporter = () if name == "minilm" else ("--exporter", "torchscript")
            report = said("optimize", sources(name), "-o", base / name, "--strict", *exporter)
            assert report["comparison"]["passed"]
        return base / name

    return folder
