"""Part by part: which layer an op is in, which nodes it replaced, and where and why a match broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from bertfuse.graph_rewrite import FusionResult, explain, fuse
from tests.graph_rewrite.attentions import HIDDEN, Attention, attend
from tests.graph_rewrite.graphs import Builder, account, fused
from tests.tiny_models import ATTENTIONS, EXPORTERS, LAYERS, exported


def encoder(layers: int = 3, change: Callable[[Builder, int, str], str] | None = None, **spec) -> onnx.ModelProto:
    """Layers of attention, GELU and two LayerNorms; `change(b, layer, tensor)` is done before each GELU."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    for layer in range(1, layers + 1):
        context = attend(b, x, Attention(**spec), mask)
        y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
        inner = b.linear(y, HIDDEN, HIDDEN)
        inner = b.gelu(change(b, layer, inner) if change else inner)
        x = b.layer_norm(b.op("Add", b.linear(inner, HIDDEN, HIDDEN), y), HIDDEN)
    b.output(x)
    return b.model()


def in_layer(result: FusionResult, layer: int) -> list[str]:
    return [part.op for part in result.parts if part.layer == layer]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_layer_of_a_bert(exporter: str, attention: str) -> None:
    path = exported("fill-mask", exporter, attention)
    result = explain(path)
    assert result.layers == LAYERS and result.complete
    assert in_layer(result, 0) == ["EmbedLayerNorm"]
    for layer in range(1, LAYERS + 1):
        assert in_layer(result, layer) == [
            "FusedAttention",
            "FusedGemmLayerNorm",
            "FusedGemmGelu",
            "FusedGemmLayerNorm",
        ]
    assert in_layer(result, LAYERS + 1) == ["FusedGemmGeluLayerNorm"]
    assert [result.layer_name(layer) for layer in range(LAYERS + 2)] == ["embeddings", "layer 1", "layer 2", "head"]
    # What the ops replaced are nodes of the original, each once; what they became are nodes of the fused model.
    computed = [name for node in onnx.load(path).graph.node for name in node.output]
    replaced = Counter(name for part in result.parts for name in part.replaced)
    assert set(replaced) <= set(computed) and set(replaced.values()) == {1}
    assert all(len(part.replaced) > 1 for part in result.parts)
    layers = [[len(part.replaced) for part in result.parts if part.layer == layer] for layer in (1, 2)]
    assert layers[0][1:] == layers[1][1:] and all(15 < sizes[0] < 60 for sizes in layers)
    nodes = {node.output[0]: node.op_type for node in fuse(path).model.graph.node}
    assert all(nodes[part.output] == part.op for part in result.parts)


def test_explaining_is_fusing_without_a_model() -> None:
    model = encoder()
    before = model.SerializeToString(deterministic=True)
    explained, done = explain(model), fused(model)
    assert explained.parts == done.parts and explained.expected == done.expected and explained.nodes == done.nodes
    assert model.SerializeToString(deterministic=True) == before


def test_basic_level_accounts_for_the_attention_that_it_leaves() -> None:
    result = explain(encoder(), level="basic")
    account(result, encoder())
    assert in_layer(result, 2)[0] == "AddQKVBias" and result.complete
    assert "FusedAttention" not in result.expected


def _break(layer: int, spell: Callable[[Builder, str], str]) -> onnx.ModelProto:
    return encoder(change=lambda b, at, x: spell(b, x) if at == layer else x)


def test_a_node_between_projection_and_gelu() -> None:
    result = fused(_break(2, lambda b, x: b.op("Mul", x, b.const(0.9), name="extra")))
    (miss,) = result.misses
    assert (miss.op, miss.layer) == ("FusedGemmGelu", 2)
    assert miss.node == "extra" and miss.found.endswith(" as Mul by 0.9") and miss.wanted == "Linear"
    assert miss.place.startswith("Mul by 0.9 between node_add_") and " and node_div_" in miss.place
    assert miss.reason == f"{miss.found}, expected {miss.wanted}" and miss.reason in str(miss)
    assert miss.to_dict()["reason"] == miss.reason
    part = next(part for part in result.parts if part.miss)
    assert part.miss is miss and part.layer == 2 and not part.output and not part.replaced


@pytest.mark.parametrize(
    ("op", "constant", "place"),
    [("Div", 11.3137, "Div by 11.3137 between "), ("Pow", 2.0, "Pow to 2 between "), ("Tanh", None, "Tanh between ")],
)
def test_something_else_done_to_the_scores(op: str, constant: float | None, place: str) -> None:
    """A constant scale is fused as it is, with a remark; what no op computes is named with its neighbours."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))

    def change(scores: str) -> str:
        return b.op(op, scores, *([] if constant is None else [b.const(constant)]), name="culprit")

    b.output(attend(b, x, Attention(mask="none", scale="none", parts={"after_mask": change})))
    result = fused(b.model())
    if op == "Div":
        (part,) = result.parts
        assert part.note == "scale 0.0883884 = 1/11.3137, expected 1/sqrt(4); kept as it is"
        return
    (miss,) = result.misses
    assert miss.node == "culprit" and miss.found == f"{op} of the scores" and "constant scale" in miss.wanted
    assert miss.place.startswith(place) and miss.place.endswith(" and node_softmax_" + miss.anchor.rsplit("_", 1)[1])


def test_the_usual_scale_needs_no_remark() -> None:
    assert not any(part.note for part in explain(encoder(factor=0.5)).parts)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_head_is_not_the_last_layers(layers: int) -> None:
    model = encoder(layers)
    b = Builder()
    b.nodes, b.inputs, b.initializers = list(model.graph.node), list(model.graph.input), list(model.graph.initializer)
    b._count = 1000
    b.output(b.layer_norm(b.gelu(b.linear(model.graph.output[0].name, HIDDEN, HIDDEN)), HIDDEN))
    result = fused(b.model())
    assert in_layer(result, layers + 1) == ["FusedGemmGeluLayerNorm"] and len(in_layer(result, layers)) == 4


@pytest.mark.parametrize("layers", [1, 3])
def test_layers_whose_norms_come_first(layers: int) -> None:
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    for _ in range(layers):
        x = b.op("Add", b.linear(attend(b, b.layer_norm(x, HIDDEN), Attention(), mask), HIDDEN, HIDDEN), x)
        x = b.op("Add", b.linear(b.gelu(b.linear(b.layer_norm(x, HIDDEN), HIDDEN, 32)), 32, HIDDEN), x)
    x = b.layer_norm(x, HIDDEN)
    b.output(b.layer_norm(b.gelu(b.linear(x, HIDDEN, HIDDEN)), HIDDEN))
    result = explain(b.model())
    assert result.layers == layers and in_layer(result, layers + 1) == ["FusedGemmGeluLayerNorm"]
    each = [Counter(in_layer(result, layer)) for layer in range(1, layers + 1)]
    norms = [counts.pop("FusedGemmResidualNorm") + counts.pop("FusedGemmLayerNorm", 0) for counts in each]
    assert all(counts == {"FusedAttention": 1, "FusedGemmGelu": 1} for counts in each) and norms == [2] * layers


def test_two_encoders_side_by_side_count_layers_each() -> None:
    b = Builder()
    mask = b.ids("attention_mask")
    for name in ("left", "right"):
        x = b.input(name, ("B", "S", HIDDEN))
        for _ in range(2):
            x = b.layer_norm(b.op("Add", b.linear(attend(b, x, Attention(), mask), HIDDEN, HIDDEN), x), HIDDEN)
        b.output(x)
    result = fused(b.model())
    assert result.layers == 2 and Counter(in_layer(result, 1)) == {"FusedAttention": 2, "FusedGemmLayerNorm": 2}


def test_no_encoder_no_layers() -> None:
    b = Builder()
    b.output(b.op("Relu", b.linear(b.input("x", ("B", 16)), 16, 16)))
    result = explain(b.model())
    assert result.parts == [] and result.layers == 0 and "nothing to fuse" in result.messages[0]


def test_every_near_miss_says_what_it_wanted() -> None:
    """Found and wanted are both given wherever a match breaks at a node's own doing."""
    causes: dict[str, Callable[[Builder, str], str]] = {
        "scaled": lambda b, x: b.op("Mul", x, b.const(2.0)),
        "computed": lambda b, x: b.op("MatMul", x, b.op("Transpose", b.weight(HIDDEN, HIDDEN), perm=[1, 0])),
        "shared": lambda b, x: b.output(b.op("Identity", x)) or x,
        "normalised": lambda b, x: b.layer_norm(x, HIDDEN),
    }
    for name, cause in causes.items():
        for miss in fused(_break(1, cause)).misses:
            assert miss.found and miss.wanted and miss.layer == 1, (name, miss)


def test_numbers_in_attributes() -> None:
    attention = next(part for part in explain(encoder(scale="both", factor=0.5)).parts if part.op == "FusedAttention")
    assert attention.attributes["num_heads"] == 4
    np.testing.assert_allclose(attention.attributes["scale"], 0.5, rtol=1e-6)
    assert attention.to_dict()["attributes"] == attention.attributes
