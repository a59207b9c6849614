"""Families beyond BERT, fused whole, against their exports and PyTorch: proofs, bodies and CPU kernels together."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bertfuse.graph_rewrite import OPS, FusionResult, fuse
from tests.model_coverage.cells import SHAPES, _session
from tests.model_coverage.families import FAMILIES, LONGEST, VOCABULARY
from tests.model_coverage.files import Recipe, feed, make

_TOLERANCE = 2e-4  # as in table.py: two layers of sums in another order
_ATTENTION, _GATE, _NORM = "FusedAttentionVariant", "FusedGatedGemm", "FusedGemmResidualNorm"
_FIRST_NORM = {"FusedRMSNorm": 1}  # of the embeddings
_POST_NORM = {"EmbedLayerNorm": 1, "FusedGemmLayerNorm": 4}
# What is fused in two layers, and the window that the second one has on each side.
WHOLE: dict[str, dict[str, int]] = {
    "modernbert": {"EmbedLayerNorm": 1, _ATTENTION: 2, _GATE: 2, _NORM: 3, "FusedGemmLayerNorm": 1},
    "nomic-bert": {_ATTENTION: 2, _GATE: 2} | _POST_NORM,
    "gte": {_ATTENTION: 2, _GATE: 2} | _POST_NORM,
    "jina-embeddings-v3": {_ATTENTION: 2, "FusedGemmGelu": 2} | _POST_NORM,
    "mpnet": {_ATTENTION: 2, "FusedGemmGelu": 2} | _POST_NORM,
    "eurobert": {_ATTENTION: 2, _GATE: 2, _NORM: 4} | _FIRST_NORM,
    "esm": {_ATTENTION: 2, _NORM: 3, "FusedGemmLayerNorm": 1, "FusedGemmGelu": 2},
    "qwen3": {_ATTENTION: 2, _GATE: 2, _NORM: 4} | _FIRST_NORM,
    "gemma3": {_ATTENTION: 2, _GATE: 2, _NORM: 4} | _FIRST_NORM,
    "vit": {"FusedAttention": 2, _NORM: 3, "FusedGemmLayerNorm": 1, "FusedGemmGelu": 2},
}
# What of these attentions is said at level "basic", where no op takes them.
SAID = {
    "modernbert": ("base 160000; every key", "base 10000; window of 4 to each side"),
    "nomic-bert": ("RoPE over 8 columns in halves, base 1000; every key",) * 2,
    "mpnet": ("bias by head and distance, from -91 to 91",) * 2,
    "qwen3": ("4 heads of 16 columns over 2 of keys and values; RMS norm of each head of Q and K; RoPE", "causal"),
    "gemma3": ("base 10000; window of 4 to each side", "base 1e+06; every key"),
}


def exported(family: str, exporter: str, attention: str) -> Path:
    folder = Path(os.environ["BERTFUSE_TEST_MODELS"]) / "coverage"
    return make(Recipe(family, "feature-extraction", exporter, attention), folder)[0]


def difference(path: Path, result: FusionResult, windowed: bool) -> float:
    """The largest one of any output; with `windowed` of real tokens: padding may see no key in its window."""
    before, after = _session(str(path)), _session(result.model.SerializeToString())
    largest = 0.0
    for shape in SHAPES:
        inputs = feed(before, *shape)
        rows = inputs["attention_mask"] != 0 if windowed else slice(None)
        for a, b in zip(before.run(None, inputs), after.run(None, inputs), strict=True):
            largest = max(largest, float(np.abs(a[rows].astype(np.float64) - b[rows]).max(initial=0)))
    return largest


# One column of each family; the others are measured by hand, as the rest of the tables is.
COLUMNS = [(family, *(("torchscript", "eager") if n % 2 else ("dynamo", "sdpa")))
           for n, family in enumerate(WHOLE)]  # fmt: skip


@pytest.mark.parametrize(("family", "exporter", "attention"), COLUMNS)
def test_families_are_fused_whole(family: str, exporter: str, attention: str) -> None:
    path = exported(family, exporter, attention)
    result = fuse(path)
    assert result.fused == WHOLE[family], [str(miss) for miss in result.misses]
    assert difference(path, result, windowed=family in ("modernbert", "gemma3")) <= _TOLERANCE


# A row of padding may see no key in its window: the op attends to all alike there, PyTorch does not.
@pytest.mark.parametrize("family", ["mpnet", "modernbert", "nomic-bert", "qwen3", "gemma3"])
def test_kernels_compute_what_pytorch_does(family: str, library: Path) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    exporter, attention = next(column[1:] for column in COLUMNS if column[0] == family)
    fused = fuse(exported(family, exporter, attention)).model
    bodies = [function for function in fused.functions if function.name not in OPS]
    del fused.functions[:]  # of the ops with a kernel, so that nothing else can run them
    fused.functions.extend(bodies)
    assert _ATTENTION in {node.op_type for node in fused.graph.node}
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    session = onnxruntime.InferenceSession(fused.SerializeToString(), options, providers=["CPUExecutionProvider"])
    model = FAMILIES[family].build("feature-extraction")
    for batch, length in ((1, 1), (3, int(random.integers(2, 20))), (2, int(random.integers(20, LONGEST + 1)))):
        mask = np.arange(length) < random.integers(1, length + 1, (batch, 1))
        inputs = {"input_ids": random.integers(5, VOCABULARY, (batch, length)), "attention_mask": mask.astype(np.int64)}
        with torch.no_grad():
            wanted = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})[0].numpy()
        names = {given.name for given in session.get_inputs()}
        inputs |= {name: np.zeros_like(inputs["input_ids"]) for name in names - set(inputs)}
        found = session.run(None, {name: inputs[name] for name in names})[0]
        np.testing.assert_allclose(found[mask], wanted[mask], rtol=0, atol=_TOLERANCE)


@pytest.mark.parametrize("family", list(SAID))
def test_what_is_proven_is_said(family: str) -> None:
    exporter, attention = next(column[1:] for column in COLUMNS if column[0] == family)
    result = fuse(exported(family, exporter, attention), level="basic")
    missed = [m for m in result.misses if m.op == "AddQKVBias"]
    assert len(missed) == 2
    for miss, text in zip(missed, SAID[family], strict=True):
        assert text in miss.hint and "key mask 'attention_mask'" in miss.hint, str(miss)


def test_nothing_is_said_to_be_missing() -> None:
    for family in ("nomic-bert", "gte", "mpnet", "eurobert"):
        exporter, attention = next(column[1:] for column in COLUMNS if column[0] == family)
        result = fuse(exported(family, exporter, attention))
        assert not result.misses and result.expected == result.fused == WHOLE[family]


def _texts(random: np.random.Generator, gaps: bool) -> list[np.ndarray]:
    """Mask by mask: right or left padding, and padding between tokens."""
    length = int(random.integers(3, LONGEST - 3))
    real = np.arange(length) < random.integers(1, length + 1, (3, 1))
    if not gaps:
        return [real, real[:, ::-1]]
    holes = random.random((3, length)) < random.choice([0.1, 0.5, 0.9], (3, 1))
    holes[np.arange(3), random.integers(0, length, 3)] = True
    return [real, real[:, ::-1], holes]


# Whose products rotate Q and K: no norms of heads lie between.
ROTATING = ("modernbert", "nomic-bert", "gte", "jina-embeddings-v3", "eurobert", "esm")
PACKED = ("modernbert", "nomic-bert", "gte", "mpnet", "jina-embeddings-v3", "eurobert", "qwen3", "gemma3")


BASES = {"modernbert": 2, "gemma3": 2, "mpnet": 0}  # of RoPE; all others have one


def check_tables(model: onnx.ModelProto, family: str, padding: str) -> None:
    """One launch for each base makes the tables, and none the places in them that packed rows have."""
    ops = Counter(node.op_type for node in model.graph.node)
    assert ops["RotaryTables"] == BASES.get(family, 1)
    if ops["RotaryTables"]:  # no standard operator takes a sine, or counts but for what else a ragged model pads
        assert not ({"Cos", "Sin"} | ({"Range"} if padding != "ragged" else set())) & set(ops)
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    wanted = {"keep": {None}, "remove": {"PackTokens"}, "ragged": {"Cast", "RaggedPositions"}}[padding]
    products = [node for node in model.graph.node if node.op_type == "FusedGemmRotary"]
    assert {made.get(node.input[5]) if len(node.input) > 5 else None for node in products} <= wanted


@pytest.mark.parametrize("family", [*PACKED, "esm"])
def test_tables_of_padded_models(family: str) -> None:
    exporter, attention = next(column[1:] for column in COLUMNS if column[0] == family)
    path = exported(family, exporter, attention)
    result = fuse(path)
    check_tables(result.model, family, "keep")
    assert difference(path, result, windowed=family in ("modernbert", "gemma3")) <= _TOLERANCE


@pytest.mark.parametrize("kernels", [False, True], ids=["bodies", "kernels"])
@pytest.mark.parametrize("padding", ["remove", "ragged"])
@pytest.mark.parametrize("family", PACKED)
def test_real_tokens_alone(family: str, padding: str, kernels: bool, library: Path) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    exporter, attention = next(column[1:] for column in COLUMNS if column[0] == family)
    path = exported(family, exporter, attention)
    result = fuse(path, padding=padding)
    assert result.fused == WHOLE[family]
    report = next(report for report in result.passes if report.changes_padding)
    assert any("2 of 2 attentions" in text for text in report.done) and not report.left
    products = [node for node in result.model.graph.node if node.op_type == "FusedGemmRotary"]
    assert len(products) == (2 if family in ROTATING else 0) and all(node.input[5] for node in products)
    check_tables(result.model, family, padding)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if kernels:
        options.register_custom_ops_library(str(library))
    model = result.model.SerializeToString()
    before = _session(str(path))
    after = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for real in _texts(random, gaps=padding == "remove"):
        ids = np.where(real, random.integers(5, VOCABULARY, real.shape), 1)
        padded = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
        if padding == "remove":
            given = padded
        else:
            lengths = real.sum(axis=1)
            given = {"input_ids": ids[real], "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32)}
            given["max_seqlen"] = np.zeros(lengths.max(), np.int32)
        found = _fed(after, given)
        wanted = _fed(before, padded)
        found = found[real] if padding == "remove" else found
        np.testing.assert_allclose(found, wanted[real], rtol=0, atol=_TOLERANCE)


def _fed(session: onnxruntime.InferenceSession, given: dict[str, np.ndarray]) -> np.ndarray:
    """The first output; an input that is not given is 0."""
    zeros = np.zeros_like(given["input_ids"])
    return session.run(None, {value.name: given.get(value.name, zeros) for value in session.get_inputs()})[0]


@pytest.mark.parametrize("options", [{"dtype": "fp16"}, {"padding": "remove"}], ids=str)
def test_other_options_go_with_families(options: dict[str, str]) -> None:
    path = exported("modernbert", "dynamo", "sdpa")
    result = fuse(path, **options)
    assert result.fused == WHOLE["modernbert"]
    assert difference(path, result, windowed=True) <= (3e-2 if "dtype" in options else _TOLERANCE)
