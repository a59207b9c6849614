"""Constants in another float type: none becomes one that gives infinities or NaN where it gave none."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bertfuse.graph_rewrite import fuse
from bertfuse.graph_rewrite.weights import cast_array
from tests.graph_rewrite.attentions import HIDDEN, Attention, attend
from tests.graph_rewrite.graphs import Builder, run

SMALLEST, LARGEST = 6e-8, 65504


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (1e-9, SMALLEST),
        (-1e-9, -SMALLEST),
        ([[1e-9, 0, -1e-12]], [[SMALLEST, 0, -SMALLEST]]),
        ([1e-9, 1], [0, 1]),
        ([0, 0], [0, 0]),
        ([1e9, -1e9, np.inf, -np.inf, np.nan], [LARGEST, -LARGEST, np.inf, -np.inf, np.nan]),
        ([], []),
    ],
)
def test_range_of_float16(given: object, wanted: object, dtype: type) -> None:
    cast = cast_array(np.array(given, dtype), onnx.TensorProto.FLOAT16)
    assert isinstance(cast, np.ndarray) and cast.dtype == np.float16
    np.testing.assert_array_equal(cast, np.array(wanted, np.float16))


def test_mean_of_no_token() -> None:
    """The sum of the mask under the division is kept from 0 by 1e-9."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    y = attend(b, x, Attention(), mask)
    kept = b.op("Unsqueeze", b.op("Cast", mask, to=1), b.const([2]))
    total = b.op("ReduceSum", b.op("Mul", y, kept), b.const([1]), keepdims=0)
    b.output(b.op("Div", total, b.op("Clip", b.op("ReduceSum", kept, b.const([1]), keepdims=0), b.const(1e-9))))
    feed = {"x": np.ones((2, 3, HIDDEN), np.float16), "attention_mask": np.array([[1, 1, 0], [0, 0, 0]])}
    result = fuse(b.model(), dtype="fp16")
    assert result.fused == {"FusedAttention": 1}
    (mean,) = run(result.model, feed)
    assert np.isfinite(mean).all() and not mean[1].any()


def places(b: Builder, ids: str, element: int = TensorProto.FLOAT) -> str:
    """0, 1, ..., S-1 as floats."""
    length = b.op("Squeeze", b.op("Slice", b.op("Shape", ids), b.const([1]), b.const([2])), b.const([0]))
    return b.op("Cast", b.op("Range", b.const(0), length, b.const(1)), to=element)


def with_attention(b: Builder) -> str:
    """Something that is fused, so that the rest is converted."""
    return attend(b, b.input("x", ("B", "S", HIDDEN)), Attention(mask="none"))


def through_floats(b: Builder, mask: str, ids: str) -> list[str]:
    """Integers that were floats on the way: places, a running sum, lengths, ids, the last token, a comparison."""
    numbers = b.op("Cast", mask, to=TensorProto.FLOAT)
    total = b.op("ReduceSum", numbers, b.const([1]), keepdims=1)
    halved = b.op("Div", b.op("Sub", total, b.const(1.0)), b.const(2.0))
    floats = [
        places(b, ids),
        b.op("CumSum", numbers, b.const(1)),
        total,
        b.op("Floor", halved),
        b.op("Mul", b.op("Cast", ids, to=TensorProto.FLOAT), b.const(1.0)),
        b.op("Where", b.op("Cast", mask, to=TensorProto.BOOL), b.const(2049.0), b.const(4097.0)),
    ]
    whole = [b.op("Cast", number, to=TensorProto.INT64) for number in floats]
    whole.append(b.op("Cast", b.op("Less", floats[0], halved), to=TensorProto.INT64))
    return whole


@pytest.mark.parametrize("seed", range(3))
def test_whole_numbers_are_the_same(seed: int) -> None:
    random = np.random.default_rng(seed)
    b = Builder(seed=seed)
    mask, ids = b.ids("mask"), b.ids("ids")
    b.output(with_attention(b))
    b.output(*through_floats(b, mask, ids), element=TensorProto.INT64)
    model = b.model()
    result = fuse(model, dtype="fp16")
    assert result.fused == {"FusedAttention": 1}
    length = int(random.integers(2100, 3000))
    feed = {
        "x": random.standard_normal((1, length, HIDDEN)).astype(np.float32),
        "mask": (random.random((1, length)) < 0.98).astype(np.int64),
        "ids": random.integers(0, 60_000, (1, length)),
    }
    wanted = run(model, feed)
    given = run(result.model, feed | {"x": feed["x"].astype(np.float16)})
    for a, c in zip(wanted[1:], given[1:], strict=True):
        np.testing.assert_array_equal(a, c, err_msg=f"seed {seed}")
    np.testing.assert_allclose(wanted[0], given[0].astype(np.float32), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_what_leads_to_integers_is_kept_in_float32(dtype: str) -> None:
    """By the types in the file: ONNX Runtime's CPU has no bfloat16."""
    b = Builder()
    mask, ids = b.ids("mask"), b.ids("ids")
    b.output(with_attention(b))
    b.output(*through_floats(b, mask, ids), element=TensorProto.INT64)
    converted = fuse(b.model(), dtype=dtype).model
    half = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[dtype]
    casts = [helper.get_attribute_value(n.attribute[0]) for n in converted.graph.node if n.op_type == "Cast"]
    assert casts and half not in casts
    onnx.checker.check_model(converted, full_check=True)


@pytest.mark.parametrize("opset", [17, 20])
def test_ids_that_are_fed_as_floats(opset: int) -> None:
    """The input stays float32, and the same input times an activation is rounded there."""
    b = Builder(opset)
    ids = b.input("ids", ("B", "S"))
    rows = b.op("Gather", b.weight(5000, HIDDEN), b.op("Cast", b.op("Abs", ids), to=TensorProto.INT64), axis=0)
    y = b.op("Add", with_attention(b), rows)
    b.output(b.op("Mul", y, b.op("Unsqueeze", b.op("Sign", ids), b.const([2]))))
    model = b.model()
    converted = fuse(model, dtype="fp16").model
    types = {value.name: value.type.tensor_type.elem_type for value in converted.graph.input}
    assert types == {"ids": TensorProto.FLOAT, "x": TensorProto.FLOAT16}
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 9, HIDDEN)).astype(np.float32)
    numbers = random.integers(2049, 5000, (2, 9)).astype(np.float32)
    (wanted,) = run(model, {"x": x, "ids": numbers})
    (given,) = run(converted, {"x": x.astype(np.float16), "ids": numbers})
    np.testing.assert_allclose(given.astype(np.float32), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("seed", range(2))
def test_rotations_by_thousands(seed: int) -> None:
    """x cos + rotated(x) sin over 3000 places, and sinusoids that are an output themselves."""
    random = np.random.default_rng(seed)
    b = Builder(seed=seed)
    ids = b.ids("ids")
    y = with_attention(b)
    frequencies = b.const(1.0 / float(random.uniform(2_000, 20_000)) ** (np.arange(HIDDEN) / HIDDEN))
    angles = b.op("Mul", b.op("Unsqueeze", places(b, ids), b.const([1])), frequencies)
    cosine, sine = b.op("Cos", angles), b.op("Sin", angles)
    rotated = b.op("Neg", b.op("Slice", y, b.const([-1]), b.const([-1 << 31]), b.const([2]), b.const([-1])))
    b.output(b.op("Add", b.op("Mul", y, cosine), b.op("Mul", rotated, sine)), cosine)
    model = b.model()
    length = int(random.integers(2500, 3000))
    feed = {"x": random.standard_normal((1, length, HIDDEN)).astype(np.float32), "ids": np.ones((1, length), np.int64)}
    wanted = run(model, feed)
    given = run(fuse(model, dtype="fp16").model, feed | {"x": feed["x"].astype(np.float16)})
    for a, c in zip(wanted, given, strict=True):
        assert c.dtype == np.float16
        np.testing.assert_allclose(c.astype(np.float32), a, atol=5e-3, rtol=5e-3)


def test_an_output_that_is_rounded_is_read_as_it_was() -> None:
    """Places are an output, in half precision, and an index within the graph."""
    b = Builder()
    ids = b.ids("ids")
    y, floats = with_attention(b), places(b, ids)
    rows = b.op("Gather", b.weight(4000, HIDDEN), b.op("Cast", floats, to=TensorProto.INT64), axis=0)
    b.output(b.op("Add", y, rows), floats)
    model = b.model()
    random = np.random.default_rng(0)
    feed = {"x": random.standard_normal((1, 3000, HIDDEN)).astype(np.float32), "ids": np.ones((1, 3000), np.int64)}
    wanted = run(model, feed)
    given = run(fuse(model, dtype="fp16").model, feed | {"x": feed["x"].astype(np.float16)})
    np.testing.assert_allclose(given[0].astype(np.float32), wanted[0], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("length", [3, 2500])
def test_norms_of_loud_activations(length: int) -> None:
    """Squares beyond 65504, sums of them, and sums over a long sequence."""
    b = Builder()
    y = b.op("Mul", with_attention(b), b.const(300.0))
    norm = b.op("Sqrt", b.op("ReduceSum", b.op("Mul", y, y), b.const([-1]), keepdims=1))
    b.output(b.op("Div", y, b.op("Max", norm, b.const(1e-12))))
    mean = b.op("Div", b.op("ReduceSum", b.op("Abs", y), b.const([1])), places_count(b, y))
    b.output(mean)
    model = b.model()
    feed = {"x": np.random.default_rng(1).standard_normal((2, length, HIDDEN)).astype(np.float32)}
    wanted = run(model, feed)
    given = run(fuse(model, dtype="fp16").model, {"x": feed["x"].astype(np.float16)})
    for a, c in zip(wanted, given, strict=True):
        np.testing.assert_allclose(c.astype(np.float32), a, atol=1e-2, rtol=2e-2)


def places_count(b: Builder, y: str) -> str:
    return b.op("Cast", b.op("Slice", b.op("Shape", y), b.const([1]), b.const([2])), to=TensorProto.FLOAT)


@pytest.mark.parametrize("least", [float(np.finfo(np.float32).min), -np.inf, -1e9])
def test_added_masks_hide_and_nothing_more(least: float) -> None:
    """A bias by place keeps the attention from being fused: its mask is computed in the model's types."""
    b = Builder()
    ids, mask = b.ids("ids"), b.ids("mask")
    y = with_attention(b)
    hidden = b.op("Where", b.op("Cast", b.op("Unsqueeze", mask, b.const([1, 2])), to=9), b.const(0.0), b.const(least))
    bias = b.op("Mul", places(b, ids), b.const(-0.01))
    b.output(attend(b, y, Attention(parts={"mask": b.op("Add", hidden, bias)}, mask="subtract")))
    model = b.model()
    result = fuse(model, dtype="fp16")
    random = np.random.default_rng(0)
    x, shown = random.standard_normal((3, 40, HIDDEN)).astype(np.float32), random.integers(0, 2, (3, 40))
    shown[:, 0] = 1
    if np.isfinite(least):
        shown[1] = 0
    feed = {"x": x, "mask": shown, "ids": np.ones((3, 40), np.int64)}
    (wanted,), (given,) = run(model, feed), run(result.model, feed | {"x": x.astype(np.float16)})
    assert np.isfinite(given).all()
    np.testing.assert_allclose(given[[0, 2]].astype(np.float32), wanted[[0, 2]], atol=2e-2, rtol=2e-2)


def test_bodies_keep_their_types() -> None:
    """What an If reads and gives is float32 as its branches are, whatever the graph around them is."""
    b = Builder()
    y, flag = with_attention(b), b.input("flag", (), dtype=bool)
    bodies = {}
    for name, op in (("then_branch", "Exp"), ("else_branch", "Neg")):
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        bodies[name] = helper.make_graph([helper.make_node(op, [y], [f"{name}_y"])], name, [], [out])
    b.output(b.op("If", flag, **bodies), y, shape=("B", "S", HIDDEN))
    model = b.model()
    converted = fuse(model, dtype="fp16").model
    x = np.random.default_rng(0).standard_normal((2, 5, HIDDEN)).astype(np.float32)
    for chosen in (True, False):
        wanted = run(model, {"x": x, "flag": np.array(chosen)})
        given = run(converted, {"x": x.astype(np.float16), "flag": np.array(chosen)})
        for a, c in zip(wanted, given, strict=True):
            np.testing.assert_allclose(c.astype(np.float32), a, atol=2e-2, rtol=2e-2)


def test_least_float32_in_bfloat16() -> None:
    least = np.finfo(np.float32).min
    cast = cast_array(np.array([least, -np.inf, 1.5]), onnx.TensorProto.BFLOAT16)
    assert np.isfinite(cast[0]) and np.isinf(cast[1]) and cast[2] == 1.5


@pytest.mark.parametrize("op", ["Where", "Tanh", "CumSum", "Range"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("opset", [13, 17])
def test_operators_of_opsets_that_do_not_have_the_type(op: str, dtype: str, opset: int) -> None:
    """Where takes bfloat16 from opset 16 on, CumSum and Range never: they stay float32, between Casts."""
    b = Builder(opset)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask")
    y = attend(b, x, Attention(), mask)
    if op == "Where":
        y = b.op("Where", b.op("Cast", b.op("Unsqueeze", mask, b.const([2])), to=TensorProto.BOOL), y, b.const(0.5))
    elif op == "CumSum":
        y = b.op("CumSum", y, b.const(1))
    elif op == "Range":
        count = b.op("Cast", b.op("Size", mask), to=TensorProto.FLOAT)
        y = b.op("Add", y, b.op("ReduceSum", b.op("Range", b.const(0.0), count, b.const(1.0)), keepdims=0))
    else:
        y = b.op("Tanh", y)
    b.output(y)
    model = fuse(b.model(), dtype=dtype).model
    onnx.checker.check_model(model, full_check=True)
    wanted = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[dtype]
    assert model.graph.output[0].type.tensor_type.elem_type == wanted


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_functions_of_the_model_keep_their_types(dtype: str) -> None:
    """Its constants are float32, and so is what it reads and gives; a weight that it shares with others, too."""
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    y = attend(b, x, Attention(mask="none"))
    gamma = b.weight(HIDDEN)
    y = b.op("Halved", b.op("Mul", y, gamma), gamma, domain="of.user")
    b.output(b.op("Tanh", y), shape=("B", "S", HIDDEN))
    model = b.model()
    model.functions.append(
        helper.make_function(
            "of.user",
            "Halved",
            ["a", "g"],
            ["c"],
            [
                helper.make_node(
                    "Constant", [], ["half"], value=helper.make_tensor("half", TensorProto.FLOAT, [], [0.5])
                ),
                helper.make_node("Mul", ["a", "half"], ["b"]),
                helper.make_node("Mul", ["b", "g"], ["c"]),
            ],
            [helper.make_opsetid("", b.opset)],
        )
    )
    feed = {"x": np.random.default_rng(0).standard_normal((2, 5, HIDDEN)).astype(np.float32)}
    (wanted,) = run(model, feed)
    result = fuse(model, dtype=dtype)
    onnx.checker.check_model(result.model, full_check=True)
    assert result.fused == {"FusedAttention": 1}
    if dtype == "fp16":
        (given,) = run(result.model, {"x": feed["x"].astype(np.float16)})
        np.testing.assert_allclose(given, wanted, 2e-2, 2e-2)


def test_scores_beyond_the_type_before_they_are_scaled() -> None:
    """Attention in standard operators scales Q, and not a product that float16 does not hold."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask", ("B", "S"))
    b.output(attend(b, x, Attention(mask="where", factor=0.1), mask))
    model = b.model()
    fused = fuse(model, level="basic", dtype="fp16")
    assert fused.fused["AddQKVBias"] == 1
    random = np.random.default_rng(0)
    feed = {"x": 150 * random.standard_normal((2, 3, HIDDEN)), "attention_mask": np.ones((2, 3), np.int64)}
    product = np.abs(_product(model, feed, np.float32)).max()
    assert product > 1.5 * LARGEST and 0.1 * product < 0.7 * LARGEST
    assert np.isfinite(_product(fused.model, feed, np.float16)).all()


def _product(model: onnx.ModelProto, feed: dict[str, np.ndarray], dtype: type) -> np.ndarray:
    """The first product of activations, as the runtime gives it between nodes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    weights = {t.name for t in model.graph.initializer}
    node = next(n for n in model.graph.node if n.op_type == "MatMul" and not weights & set(n.input))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    copy.graph.output.append(helper.make_tensor_value_info(node.output[0], element, None))
    return run(copy, feed | {"x": feed["x"].astype(dtype)})[-1]
