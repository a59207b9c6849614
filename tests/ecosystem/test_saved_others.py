"""Folders of sentence-transformers' other classes: CLIP, SparseEncoder, MultiVectorEncoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import bertfuse
from tests.commands import said

from .test_saved_folders import saver

ATOL = 1e-4  # of logits up to 60, in another order
SAVED = {
    "3.4.1": ("clip",),
    "5.7.0": ("clip", "splade", "sparse-routes"),
    "6.2.0": ("clip", "splade", "sparse-routes", "late-interaction"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return saver(tmp_path_factory, "tests.ecosystem.saved_others")


@pytest.mark.parametrize(("release", "name"), [(release, name) for release in SAVED for name in SAVED[release]])
def test_optimized(release: str, name: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    folder = saved(release)
    said("optimize", folder / name, "-o", tmp_path / "out", "--exporter", "torchscript")
    encoder, want = bertfuse.Encoder(tmp_path / "out"), np.load(folder / f"{name}.npz")
    if name == "clip":
        texts, images = json.loads((folder / "pair_texts.json").read_text()), sorted(folder.glob("*.png"))
        np.testing.assert_allclose(encoder.encode(texts), want["texts"], atol=ATOL)
        np.testing.assert_allclose(encoder.encode(images), want["images"], atol=ATOL)
        return
    given = json.loads((folder / "texts.json").read_text())
    for method in ("encode", "encode_query", "encode_document"):
        found = getattr(encoder, method)(given)
        if name == "late-interaction":
            assert [len(one) for one in found] == want[f"{method}:counts"].tolist()
            found = np.concatenate(found)
        else:
            found = found.to_dense()
        np.testing.assert_allclose(found, want[method], atol=ATOL, err_msg=f"{name} {method}")


def test_an_optimized_splade_folder_in_sentence_transformers(saved: Callable[[str], Path], tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder

    folder = saved("5.7.0")
    said("optimize", folder / "splade", "-o", tmp_path / "out", "--exporter", "torchscript")
    given = json.loads((folder / "texts.json").read_text())
    model = SparseEncoder(str(tmp_path / "out"), backend="onnx", device="cpu")
    np.testing.assert_allclose(
        model.encode(given).to_dense().numpy(), np.load(folder / "splade.npz")["encode"], atol=ATOL
    )
