"""Exported tiny models of several families, padded feeds with masks of every kind, and what packing must not change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import bertfuse
from bertfuse import InferenceSession
from bertfuse.export import export_model
from bertfuse.graph_rewrite import FusionResult, fuse
from bertfuse.measuring.differences import TOLERANCES
from tests import made_once
from tests.model_coverage.families import FAMILIES, LONGEST, VOCABULARY

# Packed and padded rows are summed in other orders, in two layers: the tolerance of whole models.
ATOL, RTOL = TOLERANCES["float32"]


# One layer with one head, of texts so long that scores of more would not fit.
LONG = replace(
    FAMILIES["bert"],
    name="long",
    changes={"max_position_embeddings": 4096, "num_hidden_layers": 1, "num_attention_heads": 1},
)


@cache
def exported(family: str, task: str, exporter: str = "torchscript") -> Path:
    """model.onnx of the family's tiny model, made by the first process that asks for it."""

    def make(folder: Path) -> None:
        model = (FAMILIES | {"long": LONG})[family].build(task)
        export_model(model, folder, task=task, exporter=exporter, attention="sdpa")

    return made_once(f"packing-{family.split()[0]}-{task}-{exporter}", make) / "onnx" / "model.onnx"


@cache
def fused(family: str, task: str, exporter: str = "torchscript", padding: str = "keep", rows: bool = False):
    return fuse(exported(family, task, exporter), padding=padding, output_rows=rows)


def session(model: onnx.ModelProto, library: str = "never", threads: int = 0) -> InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    return InferenceSession(model.SerializeToString(), library=library, sess_options=options)


def random_mask(rng: np.random.Generator, right_only: bool = False) -> np.ndarray:
    """[B, S] of 0 and 1: padding on the right, on the left, holes, rows without a token, rows without padding."""
    batch, sequence = int(rng.integers(1, 7)), int(rng.integers(1, LONGEST - 3))
    mask = np.zeros((batch, sequence), np.int64)
    kinds = ("right", "full", "empty") if right_only else ("right", "left", "holes", "full", "empty")
    for row in mask:
        kind, length = rng.choice(kinds), int(rng.integers(1, sequence + 1))
        if kind == "right":
            row[:length] = 1
        elif kind == "left":
            row[sequence - length :] = 1
        elif kind == "holes":
            row[:] = rng.integers(0, 2, sequence)
        elif kind == "full":
            row[:] = 1
    if not mask.any():
        mask[0, 0] = 1
    return mask


def random_feed(names: list[str], mask: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Ids without the tokens that RoBERTa takes for padding, but where there is padding."""
    feed = {
        "input_ids": np.where(mask != 0, rng.integers(4, VOCABULARY, mask.shape), 1),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, mask.shape),
    }
    return {name: feed[name] for name in names}


def run(runner: InferenceSession, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in runner.get_outputs()]
    return dict(zip(names, runner.run(names, dict(feed)), strict=True))


def token_outputs(padded: InferenceSession) -> set[str]:
    """The outputs that have a row for each token."""
    axes = padded.get_inputs()[0].shape
    return {value.name for value in padded.get_outputs() if value.shape[:2] == axes}


def check(
    padded: Mapping[str, np.ndarray],
    packed: Mapping[str, np.ndarray],
    mask: np.ndarray,
    of_tokens: set[str],
    ragged: bool,
    first: bool,
) -> None:
    """Real tokens are what they were, padding is zeros; so is what is pooled, where there is a token to pool."""
    assert padded.keys() == packed.keys()
    some = mask[:, 0] != 0 if first else mask.any(axis=1)
    for name, want in padded.items():
        got = packed[name]
        assert np.isfinite(got).all(), name
        if name not in of_tokens:
            assert got.shape == want.shape, name
            np.testing.assert_allclose(got[some], want[some], RTOL, ATOL, err_msg=name)
        elif ragged:
            assert got.shape == (mask.sum(), *want.shape[2:]), name
            np.testing.assert_allclose(got, want[mask != 0], RTOL, ATOL, err_msg=name)
        else:
            assert got.shape == want.shape, name
            np.testing.assert_allclose(got[mask != 0], want[mask != 0], RTOL, ATOL, err_msg=name)
            assert not got[mask == 0].any(), name


def check_model(
    plain: FusionResult, packed: FusionResult, library: str, seeds: range, ragged: bool, first: bool
) -> None:
    one, other = session(plain.model), session(packed.model, library)
    names = [value.name for value in one.get_inputs()]
    for seed in seeds:
        rng = np.random.default_rng(seed)
        mask = random_mask(rng, right_only=ragged)
        feed = random_feed(names, mask, rng)
        print(f"seed {seed}, mask {mask.tolist()}")
        given = bertfuse.ragged(feed) if ragged else feed
        check(run(one, feed), run(other, given), mask, token_outputs(one), ragged, first)
