"""docs/ecosystem.md: every Python block runs as it stands, and its vectors are the original's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.commands import said

from . import deberta_models
from .gliner_models import made

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SENTENCES = ["A man is eating a piece of bread.", "Someone is having a meal."]

Folders = Callable[[str], Path]


@pytest.fixture(scope="module")
def home(folders: Folders) -> Path:
    for name in ("classifier", "tagger", "reranker"):
        folders(name)
    found = folders("minilm").parent
    made("span", found / "gliner-source", seed=0).export_to_onnx(found / "gliner")
    said("fuse", found / "gliner" / "model.onnx", "-o", found / "gliner" / "fused.onnx", "--strict")
    said("optimize", deberta_models.classifier(found / "nli-source", seed=0), "-o", found / "nli", "--strict")
    return found


def names(block: str) -> str:
    return " ".join(re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE))


@pytest.mark.parametrize("block", BLOCKS, ids=names)
def test_block(block: str, home: Path, sources: Folders, tmp_path: Path) -> None:
    code = block + (
        f"\nif 'vectors' in globals():\n    import numpy\n    numpy.save({str(tmp_path / 'vectors.npy')!r}, vectors)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "vectors.npy").exists() == ("vectors =" in block)
    if "vectors =" in block:
        want = SentenceTransformer(str(sources("minilm")), device="cpu").encode(SENTENCES)
        np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), want, atol=2e-6)


def test_all_tools_have_a_block() -> None:
    together = " ".join(map(names, BLOCKS)).split()
    tools = {"sentence_transformers", "optimum", "transformers", "gliner", "fastembed", "polygraphy", "bertfuse"}
    assert tools <= set(together)


def test_an_older_sentence_transformers(folders: Folders, sources: Folders, tmp_path: Path) -> None:
    """The first series with an ONNX backend reads the folder as the newest one does."""
    older = Path(sys.prefix) / "older"
    if not older.is_dir():
        pytest.skip("no older release here: tests/ecosystem/setup.sh installs it")
    code = (
        f"import sys, numpy; sys.path.insert(0, {str(older)!r})\n"
        "import sentence_transformers as st\n"
        f"model = st.SentenceTransformer({str(folders('minilm'))!r}, backend='onnx')\n"
        f"numpy.save({str(tmp_path / 'vectors.npy')!r}, model.encode({SENTENCES!r}))\n"
        "print(st.__version__, model.max_seq_length)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["3.4.1", "256"]
    want = SentenceTransformer(str(sources("minilm")), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), want, atol=2e-6)
