"""Inputs are valid: ids in the vocabulary, masks with padding, text by the model's own tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.model_folder.files import find_model, longest_sequence
from bertfuse.runtime import InferenceSession, random_inputs, text_inputs
from bertfuse.runtime.inputs import fit_inputs, read_npz, vocabulary_sizes
from tests.tiny_models import LONGEST, VOCABULARY, exported, inputs, save_checkpoint


def test_sizes_from_config_or_from_the_tables(tmp_path: Path) -> None:
    sizes = {"input_ids": VOCABULARY, "token_type_ids": 2}
    assert vocabulary_sizes(exported()) == sizes
    alone = tmp_path / "model.onnx"
    alone.write_bytes(exported().read_bytes())
    assert vocabulary_sizes(alone) == sizes
    fused = tmp_path / "model.fused.onnx"
    fuse_file(alone, fused)
    assert vocabulary_sizes(fused) == sizes


def test_random_inputs_are_valid() -> None:
    session = InferenceSession(exported())
    feed = random_inputs(session, vocabulary_sizes(exported()), 4, 16, seed=3)
    assert {name: (array.shape, array.dtype) for name, array in feed.items()} == {
        name: ((4, 16), np.dtype(np.int64)) for name in ("input_ids", "attention_mask", "token_type_ids")
    }
    assert feed["input_ids"].min() >= 0 and feed["input_ids"].max() < VOCABULARY
    assert set(np.unique(feed["token_type_ids"])) == {0, 1}
    lengths = feed["attention_mask"].sum(axis=1)
    assert lengths[0] == 16 and (lengths >= 8).all() and (lengths < 16).any()
    assert (np.diff(feed["attention_mask"], axis=1) <= 0).all()  # padding is at the end
    assert (random_inputs(session, vocabulary_sizes(exported()), 4, 16, padded=False)["attention_mask"] == 1).all()
    with pytest.raises(BertfuseError, match="'input_ids': its vocabulary is unknown"):
        random_inputs(session, {})


def test_text_inputs(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path)
    feed = text_inputs(folder, ["word0 word1", "word2"], ["word3", "word4"])
    cls, sep, first = 2, 3, 5
    assert feed["input_ids"].tolist() == [
        [cls, first, first + 1, sep, first + 3, sep],
        [cls, first + 2, sep, first + 4, sep, 0],
    ]
    assert feed["attention_mask"].tolist() == [[1] * 6, [1] * 5 + [0]]
    assert feed["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 0]]
    assert text_inputs(folder, ["word1 " * 100])["input_ids"].shape == (1, LONGEST)
    longer = text_inputs(folder, ["word0 word1", "word2"], at_least=6)
    assert longer["input_ids"].tolist() == [[cls, first, first + 1, sep, 0, 0], [cls, first + 2, sep, 0, 0, 0]]
    assert longer["attention_mask"].tolist() == [[1] * 4 + [0] * 2, [1] * 3 + [0] * 3]
    assert text_inputs(folder, ["word0 word1"], at_least=2)["input_ids"].shape == (1, 4)
    with pytest.raises(BertfuseError, match="2 texts but 1 second texts"):
        text_inputs(folder, ["a", "b"], ["c"])


def test_positions_that_start_behind_the_padding(tmp_path: Path) -> None:
    """RoBERTa's table of 514 rows is for 512 tokens."""
    assert longest_sequence({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}) == 512
    for kind in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        assert longest_sequence({"model_type": kind, "max_position_embeddings": 514, "pad_token_id": 1}) == 512
        assert longest_sequence({"model_type": kind, "max_position_embeddings": 514, "pad_token_id": None}) == 512
    assert longest_sequence({}) is longest_sequence({"max_position_embeddings": None}) is None
    folder = save_checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "roberta", "pad_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    assert text_inputs(folder, ["word1 " * 100])["input_ids"].shape == (1, LONGEST - 2)


def test_arrays_are_fitted_to_the_model() -> None:
    session = InferenceSession(exported())
    feed = {name: array.astype(np.int32) for name, array in inputs(1, 3).items()}
    assert {array.dtype for array in fit_inputs(session, feed, "here").values()} == {np.dtype(np.int64)}
    for wrong in (np.full((1, 3), 1.7), np.array([["a", "b", "c"]])):
        with pytest.raises(BertfuseError, match=r"^here: input 'attention_mask' holds .*, the model takes int64$"):
            fit_inputs(session, feed | {"attention_mask": wrong}, "here")
    mask = SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name="mask", type="tensor(bool)", shape=["n", 3])])
    assert fit_inputs(mask, {"mask": np.array([[1, 1, 0]])}, "here")["mask"].tolist() == [[True, True, False]]


def test_npz_files(tmp_path: Path) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, input_ids=np.ones((1, 2)))
    assert read_npz(path)["input_ids"].shape == (1, 2)
    np.savez(path, x=np.array([object()], dtype=object))
    for content in (path.read_bytes(), b"", b"PK\x03\x04", b"nonsense"):
        path.write_bytes(content)
        with pytest.raises(BertfuseError, match=r"not an \.npz file"):
            read_npz(path)
    np.save(tmp_path / "in.npy", np.ones(3))
    with pytest.raises(BertfuseError, match=r"not an \.npz file"):
        read_npz(tmp_path / "in.npy")
    with pytest.raises(BertfuseError, match="no such file"):
        read_npz(tmp_path / "absent.npz")


def test_find_model(tmp_path: Path) -> None:
    with pytest.raises(BertfuseError, match="holds neither"):
        find_model(tmp_path)
    with pytest.raises(BertfuseError, match="no such file or folder"):
        find_model(tmp_path / "absent")
    (tmp_path / "model.onnx").write_bytes(b"")
    assert find_model(tmp_path).name == "model.onnx"
    (tmp_path / "model.fused.onnx").write_bytes(b"")
    assert find_model(tmp_path).name == "model.fused.onnx"
    assert find_model(tmp_path, prefer_fused=False).name == "model.onnx"
