"""Attributes that change what an operator computes: of Attention, LayerNormalization, Softmax, Gemm and others."""

from __future__ import annotations

from typing import Any

from .build import FLOAT, HEADS, HIDDEN, SIZE, Case, Graph, Random, attend, helper, np, recipe, spelled


def _attention_node(r: Random, opset: int, **attributes: Any) -> Case:
    b = Graph(r, opset)
    x = b.input("x", ("B", "S", HIDDEN))
    mask = b.ids("attention_mask")
    flat = r.random() < 0.4
    q, k, v = (b.linear(x, HIDDEN, HIDDEN) for _ in "qkv")
    if flat:
        attributes |= {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    else:
        q, k, v = (
            b.op("Transpose", b.op("Reshape", t, b.ints([0, 0, HEADS, SIZE])), perm=[0, 2, 1, 3]) for t in (q, k, v)
        )
    inputs = [q, k, v]
    if r.random() < 0.5:
        inputs.append(b.additive(b.cast(b.unsqueeze(mask, 1, 2), 9)))
        length = b.size(x, 1)
        shape = b.op("Concat", b.size(x, 0), b.ints([1]), length, length, axis=0)
        inputs[3] = b.op("Expand", inputs[3], shape)
    context = b.op("Attention", *inputs, **attributes)
    if not flat:
        context = b.op("Reshape", b.op("Transpose", context, perm=[0, 2, 1, 3]), b.ints([0, 0, HIDDEN]))
    b.output(context)
    return Case(b.model(), count=8)


def _scale_of_attention(r: Random) -> Case:
    """Zero is a scale, too, and not the default; ONNX Runtime takes none below it."""
    scale = r.choice([0.0, -0.0, 1e-30, 1.0, 0.5, -0.5, 5.0])
    case = _attention_node(r, 23, scale=scale)
    case.attributes = {"scale": scale}
    return case


def _variant_of_attention(r: Random) -> Case:
    changes = [
        {"is_causal": 1}, {"softcap": r.choice([0.5, 3.0, 1e-3])}, {"softmax_precision": r.choice([1, 10, 11])},
        {"qk_matmul_output_mode": r.choice([0, 1, 2, 3])}, {"is_causal": 0, "softcap": 0.0},
    ]  # fmt: skip
    return _attention_node(r, 23, **r.choice(changes))


def _windowed_attention(r: Random) -> Case:
    """Opset 25's windows; ONNX Runtime may not know them, fusion must not ignore them."""
    side = r.choice(["left_window_size", "right_window_size"])
    case = _attention_node(r, 23)
    for node in case.model.graph.node:
        if node.op_type == "Attention":
            node.attribute.append(helper.make_attribute(side, r.choice([0, 1, 3])))
    case.model.opset_import[0].version = 25
    case.never = "FusedAttention"
    return case


def _normalised(b: Graph, x: str, **attributes: Any) -> str:
    gamma = b.const(1 + 0.2 * b.random.standard_normal(HIDDEN))
    return b.op("LayerNormalization", x, gamma, b.weight(HIDDEN), **attributes)


@recipe(opset=(17, 18, 20, 21), count=6)
def _layer_normalization(b: Graph, r: Random) -> None:
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    total = b.op("Add", b.linear(x, HIDDEN, HIDDEN), y)
    attributes = r.choice(
        [{"epsilon": r.choice([0.0, 1e-12, 0.3, 10.0])}, {"axis": 2}, {"axis": -1}, {"stash_type": 1}, {}]
    )
    b.output(_normalised(b, total, **attributes))


@recipe(opset=(17,), count=6)
def _layer_normalization_over_more(b: Graph, r: Random) -> None:
    """Over the last two axes of a static length."""
    x, y = b.input("x", ("B", 5, HIDDEN)), b.input("y", ("B", 5, HIDDEN))
    total = b.op("Add", b.linear(x, HIDDEN, HIDDEN), y)
    rows = r.choice([1, 5])
    gamma, beta = (b.const(1 + 0.2 * b.random.standard_normal((rows, HIDDEN))) for _ in "gb")
    b.output(b.op("LayerNormalization", total, gamma, beta, axis=r.choice([1, -2]), epsilon=1e-5))


@recipe(opset=(17,), count=6)
def _layer_normalization_with_statistics(b: Graph, r: Random) -> None:
    """Its mean or deviation is an output, too."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    total = b.op("Add", b.linear(x, HIDDEN, HIDDEN), y)
    gamma = b.const(1 + 0.2 * b.random.standard_normal(HIDDEN))
    outputs = b.op("LayerNormalization", total, gamma, b.weight(HIDDEN), outputs=3)
    b.output(outputs[0], outputs[r.choice([1, 2])])


@recipe(count=8)
def _softmax_axis(b: Graph, r: Random) -> None:
    x, mask = b.input("x", ("B", 4, HIDDEN)), b.ids("attention_mask", ("B", 4))
    b.output(attend(b, x, spelled(r, softmax_axis=r.choice([-2, 2, 1, 3, -3])), mask))


@recipe(count=6)
def _gemm(b: Graph, r: Random) -> None:
    x = b.input("x", ("N", HIDDEN))
    y = b.input("y", ("N", HIDDEN))
    attributes = r.choice(
        [{"alpha": 2.0}, {"beta": 0.5}, {"transB": 1}, {"alpha": 0.5, "beta": 0.0, "transB": 1}, {"transB": 3}]
    )
    bias = r.choice([b.weight(HIDDEN), b.const(0.3), b.weight(1, HIDDEN), b.const([0.25])])
    product = b.op("Gemm", x, b.weight(HIDDEN, HIDDEN), bias, **attributes)
    b.output(b.layer_norm(b.op("Add", product, y), HIDDEN) if r.random() < 0.5 else b.gelu(product))


@recipe(opset=(18,), count=6)
def _reduced(b: Graph, r: Random) -> None:
    """A LayerNorm spelled out whose means are over another axis, kept or not."""
    size = HIDDEN
    x, y = b.input("x", ("B", size, size)), b.input("y", ("B", size, size))
    total = b.op("Add", b.linear(x, size, size), y)

    def mean(t: str) -> str:
        axes = r.choice([[-1], [2], [1], [-2], [1, 2], []])
        return b.op("ReduceMean", t, b.ints(axes), keepdims=1, noop_with_empty_axes=r.randrange(2))

    centred = b.op("Sub", total, mean(total))
    variance = mean(b.op("Mul", centred, centred))
    normal = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, b.const(1e-5))))
    b.output(b.op("Add", b.op("Mul", normal, b.const(1 + 0.2 * b.random.standard_normal(size))), b.weight(size)))


@recipe(count=6)
def _dropout(b: Graph, r: Random) -> None:
    """A Dropout that is off: by ratio, by mode, or by default; a training mode that is given is refused or off."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    product = b.linear(x, HIDDEN, HIDDEN)
    inputs = [product, b.const(r.choice([0.0, 0.5]))]
    if r.random() < 0.5:
        inputs.append(b.const(np.asarray(False), dtype=bool))
    dropped = b.op("Dropout", *inputs)
    b.output(b.layer_norm(b.op("Add", dropped, y), HIDDEN))


@recipe(count=6)
def _dropout_in_training(b: Graph, r: Random) -> None:
    """Half of the values are dropped at random: whatever runs must drop some, too."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    training = b.const(np.asarray(True), dtype=bool)
    dropped = b.op("Dropout", b.linear(x, HIDDEN, HIDDEN), b.const(1 - 1e-7), training, seed=3)
    b.output(b.layer_norm(b.op("Add", dropped, y), HIDDEN))


@recipe(opset=(20, 21), count=6)
def _gelu_attribute(b: Graph, r: Random) -> None:
    x = b.input("x", ("B", "S", HIDDEN))
    attributes = r.choice([{}, {"approximate": "none"}, {"approximate": "tanh"}])
    b.output(b.op("Gelu", b.linear(x, HIDDEN, 32), **attributes))


@recipe(count=6)
def _merged_with_other_axes(b: Graph, r: Random) -> None:
    """perm and shapes of views that are almost those of heads."""
    x = b.input("x", ("B", 4, HIDDEN))
    parts: dict[str, Any] = {}
    which = r.choice(["q_perm", "v_perm", "merge_perm"])
    parts[which] = r.choice([(0, 2, 1, 3), (0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)])
    b.output(attend(b, x, spelled(r, mask="none", parts=parts)))


@recipe(count=6)
def _cast_attributes(b: Graph, r: Random) -> None:
    """A way down to float16 and back between product and sum."""
    x, y = b.input("x", ("B", "S", HIDDEN)), b.input("y", ("B", "S", HIDDEN))
    product = b.linear(x, HIDDEN, HIDDEN)
    product = b.cast(b.cast(product, r.choice([10, 11, 7, 6])), FLOAT)
    b.output(b.layer_norm(b.op("Add", product, y), HIDDEN))
