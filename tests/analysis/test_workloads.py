"""Batches of unequal lengths for the benchmark, and models of ragged batches behind the padded interface."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from bertfuse import InferenceSession
from bertfuse.analysis.workloads import DISTRIBUTIONS, make_workload
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.measuring.compare import compare_models
from tests.tiny_models import VOCABULARY, exported, inputs, save_checkpoint

SIZES = {"input_ids": VOCABULARY, "token_type_ids": 2}


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(exported())


def test_lengths_and_distributions(session: InferenceSession, tmp_path: Path) -> None:
    given = make_workload("9,31,0,14", session, SIZES, tmp_path)
    assert given.size == (4, 31) and given.tokens == 54
    assert given.feed["attention_mask"].sum(axis=1).tolist() == [9, 31, 0, 14]
    assert given.feed["input_ids"].max() < VOCABULARY
    for name, (count, longest, _) in DISTRIBUTIONS.items():
        drawn = make_workload(name, session, SIZES, tmp_path)
        assert drawn.size == (count, longest)
        few = make_workload(f"{name}:5", session, SIZES, tmp_path)
        # Fewer texts are the first ones of more.
        np.testing.assert_array_equal(few.feed["attention_mask"], drawn.feed["attention_mask"][:5])
    assert (
        "2,048 places, 353 tokens, 83% padding" in make_workload("sentences:16", session, SIZES, tmp_path).description
    )


def test_lines_of_a_file(session: InferenceSession, tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    texts = tmp_path / "texts.txt"
    texts.write_text("word1 word2 word3\n\nword4\n")
    made = make_workload(str(texts), session, SIZES, tmp_path)
    assert made.name == "texts.txt" and made.size == (2, 5) and made.tokens == 8


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sentences:none", "'none' is not a number of texts"),
        ("sentences:0", "'0' is not a number of texts"),
        ("0,0", "not all of them 0"),
        ("haiku", "give sentences, passages, pairs"),
        ("3,-1", "lengths as in 9,31,77"),
    ],
)
def test_what_is_no_workload(text: str, reason: str, session: InferenceSession, tmp_path: Path) -> None:
    with pytest.raises(BertfuseError, match=reason):
        make_workload(text, session, SIZES, tmp_path)


@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_compare_leaves_padding_out_and_says_so(padding: str, tmp_path: Path) -> None:
    path = tmp_path / "packed.onnx"
    fuse_file(exported(), path, padding=padding)
    feed = inputs(3, 9)
    found = compare_models(exported(), path, inputs=feed)
    assert found.passed
    assert found.left_out == "4 of 27 places are padding, which one of the models does not compute: left out"
    assert found.to_dict()["left_out"] == found.left_out
    # A wrong model is still found out.
    model = onnx.load(path)
    bias = next(t for t in model.graph.initializer if t.name.endswith("layer.1.output.LayerNorm.bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 0.01, bias.name))
    onnx.save(model, path)
    assert not compare_models(exported(), path, inputs=feed).passed


def test_compare_of_padded_models_compares_everything(tmp_path: Path) -> None:
    path = tmp_path / "fused.onnx"
    fuse_file(exported(), path)
    assert compare_models(exported(), path, inputs=inputs(3, 9)).left_out == ""
