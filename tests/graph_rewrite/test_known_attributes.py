"""An operator is what it is taken for only where all its attributes are known, with values that are handled."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bertfuse.graph_rewrite import fuse
from bertfuse.graph_rewrite.known_attributes import _ONNX
from tests.graph_rewrite.attentions import HIDDEN, Attention, attend, heads_of
from tests.graph_rewrite.graphs import Builder, fused, refused

WIDTH = 8


@pytest.mark.parametrize("op", _ONNX)
def test_the_table_knows_the_newest_version_and_what_older_ones_had(op: str) -> None:
    """An operator that changes in a coming onnx fails here, and is refused until somebody has looked."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == ""]
    assert _ONNX[op].version == max(schema.since_version for schema in schemas)
    since_13 = [s for s in schemas if s.since_version >= max(t.since_version for t in schemas if t.since_version <= 13)
                ] if min(s.since_version for s in schemas) <= 13 else schemas  # fmt: skip
    assert {name for schema in since_13 for name in schema.attributes} == set(_ONNX[op].attributes)
    for schema in since_13:
        for name, attribute in schema.attributes.items():
            handled = _ONNX[op].attributes[name]
            if handled is not None and attribute.default_value.type:
                value = helper.get_attribute_value(attribute.default_value)
                assert (value.decode() if isinstance(value, bytes) else value) in handled, "a default is refused"


def attention(**attributes: object) -> Builder:
    b = Builder(opset=25)
    x = b.input("x", ("B", "S", HIDDEN))
    y = b.op("Attention", *(heads_of(b, b.linear(x, HIDDEN, HIDDEN), (0, 2, 1, 3)) for _ in "qkv"), **attributes)
    b.output(b.op("Reshape", b.op("Transpose", y, perm=[0, 2, 1, 3]), b.const([0, 0, HIDDEN])))
    return b


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["left_window_size", "right_window_size"])
def test_windows_of_the_attention_node(name: str, seed: int) -> None:
    size = random.Random(f"{name}{seed}").randrange(0, 100)
    model = attention(**{name: size}).model()
    refused(model, f"{name} is {size}, expected -1", "FusedAttention", optimise=False)


def test_a_window_of_any_size() -> None:
    result = fused_without_running(attention(left_window_size=-1, right_window_size=-1))
    assert result.fused == {"FusedAttention": 1}


@pytest.mark.parametrize("scale", [0.0, 1.0, None])
def test_scale_of_the_attention_node(scale: float | None) -> None:
    """0 is a scale, too: all keys alike. None: one drawn here, since test processes have to agree on parameters."""
    if scale is None:
        scale = float(np.float32(np.random.default_rng().uniform(0.1, 2)))
        print(f"scale {scale!r}")
    result = fused(attention(scale=scale).model()) if scale else fused_without_running(attention(scale=scale))
    assert result.fused == {"FusedAttention": 1}
    (node,) = (n for n in result.model.graph.node if n.op_type == "FusedAttention")
    assert next(a.f for a in node.attribute if a.name == "scale") == pytest.approx(scale)


@pytest.mark.parametrize("op", ["Gelu", "FastGelu"])
def test_unknown_attribute_of_another_domain(op: str) -> None:
    b = Builder()
    x = b.input("x", ("B", "S", WIDTH))
    b.output(b.op(op, b.linear(x, WIDTH, WIDTH), domain="com.microsoft", bend=2.5), shape=("B", "S", WIDTH))
    refused(b.model(), "has the attribute 'bend', which is not known", "FusedGemmGelu", optimise=False)


def test_layer_norm_with_statistics_in_another_type() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", WIDTH))
    total = b.op("Add", b.linear(x, WIDTH, WIDTH), x)
    b.output(b.op("LayerNormalization", total, b.weight(WIDTH), b.weight(WIDTH), stash_type=TensorProto.BFLOAT16))
    refused(b.model(), "stash_type is 16, expected 1", "FusedGemmLayerNorm")


@pytest.mark.parametrize("to", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("place", ["scores", "probabilities", "heads", "layer norm"])
def test_casts_that_round(place: str, to: int) -> None:
    """Through a half precision type and back: not the same function."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    rounded = lambda t: b.op("Cast", b.op("Cast", t, to=to), to=TensorProto.FLOAT)  # noqa: E731
    if place == "layer norm":
        total = b.op("Cast", b.op("Add", b.linear(x, HIDDEN, HIDDEN), x), to=to)
        half = helper.tensor_dtype_to_np_dtype(to)
        vectors = (b.const(np.ones(HIDDEN), dtype=half), b.const(np.zeros(HIDDEN), dtype=half))
        b.output(b.op("Cast", b.op("LayerNormalization", total, *vectors), to=TensorProto.FLOAT))
        assert not fused_without_running(b).fused
        return
    where = {"scores": "after_mask", "probabilities": "after_softmax"}.get(place)
    parts = {where: rounded} if where else {"q": rounded(b.linear(x, HIDDEN, HIDDEN))}
    b.output(attend(b, x, Attention(mask="none", parts=parts)))
    result = fused_without_running(b)
    assert not result.fused.get("FusedAttention") and any(
        said in str(result.misses[0]) for said in ("rounds to", "narrower type")
    )


def fused_without_running(b: Builder):
    """ONNX Runtime's CPU has no bfloat16, no windows and no scale of 0 to compare with."""
    return fuse(b.model())


@pytest.mark.parametrize("ranks", [(4, 3, 4), (3, 4, 4), (4, 4, 3), (3, 4, 3)])
def test_one_head_with_and_without_an_axis(ranks: tuple[int, int, int]) -> None:
    """Q [B, 1, S, H] by K [B, S, H] is a product of every row of the batch with every other."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    q, k, v = (b.linear(x, HIDDEN, HIDDEN) for _ in "qkv")
    k = b.op("Transpose", k, perm=[0, 2, 1])
    q, k, v = (b.op("Unsqueeze", t, b.const([1])) if n == 4 else t for t, n in zip((q, k, v), ranks, strict=True))
    context = b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k)), v)
    b.output(b.op("ReduceSum", context, b.const([0]), keepdims=0))
    refused(b.model(), "different numbers of axes", "FusedAttention")
