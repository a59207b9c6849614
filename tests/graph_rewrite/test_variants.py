"""Attention variants: proven and written where they are shown to be, refused with the node where they are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from bertfuse.graph_rewrite import FusionResult, fuse, oracle
from bertfuse.graph_rewrite.ops import OPS
from tests.graph_rewrite.graphs import Builder, run
from tests.graph_rewrite.variants import HIDDEN, Variant, distances, model

OP = "FusedAttentionVariant"


def drawn(random: np.random.Generator) -> Variant:
    """Any variant: groups, rotations of any part and pairing, windows on any side."""
    size = int(random.choice([4, 6, 8, 16]))
    side = lambda: None if random.integers(2) else int(random.integers(0, 9))  # noqa: E731
    return Variant(
        heads=4,
        shared=int(random.choice([1, 2, 4])),
        size=size,
        rotated=2 * int(random.integers(0, size // 2 + 1)),
        base=float(random.choice([1e-4, 100.0, 1e4, 1.6e5])),
        pairs=str(random.choice(["halves", "neighbours"])),
        left=side(),
        right=side(),
        masked=bool(random.integers(2)),
        norm=bool(random.integers(2)),
        divided=bool(random.integers(2)),
        stored=int(random.choice([0, 40, 300])),
    )


def check_equal(before: onnx.ModelProto, result: FusionResult, random: np.random.Generator, variant: Variant) -> None:
    """The fused model gives what the original gives, in rows of queries that see a key."""
    for batch, length in ((1, 1), (2, int(random.integers(2, 9))), (1, int(random.integers(9, 40)))):
        mask = np.ones((batch, length), np.int64)
        if variant.masked:
            mask[-1] = random.integers(0, 2, length)
            mask[-1, random.integers(length)] = 1
        feed = {"x": random.standard_normal((batch, length, HIDDEN)).astype(np.float32), "mask": mask}
        feed = {i.name: feed[i.name] for i in before.graph.input}
        distance = np.arange(length)[None] - np.arange(length)[:, None]
        seen = np.full((length, length), True)
        seen &= True if variant.left is None else distance >= -variant.left
        seen &= True if variant.right is None else distance <= variant.right
        rows = (seen[None] & (mask[:, None] != 0)).any(-1)
        for a, b in zip(run(before, feed), run(result.model, feed), strict=True):
            np.testing.assert_allclose(b[rows], a[rows], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("number", range(12))
def test_any_variant(number: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    variant = drawn(random)
    print(variant)
    before = model(variant, seed)
    result = fuse(before)
    assert sum(result.fused.values()) == 1, [str(miss) for miss in result.misses]
    onnx.checker.check_model(result.model, full_check=True)
    check_equal(before, result, random, variant)
    if OP in result.fused:
        (node,) = (n for n in result.model.graph.node if n.op_type == OP)
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        assert given["window_left"] == (-1 if variant.left is None else variant.left)
        assert given["window_right"] == (-1 if variant.right is None else variant.right)
        assert given["kv_num_heads"] == variant.heads // variant.shared


def test_nothing_is_written_at_level_basic() -> None:
    """The attention is explained, and left as it is."""
    before = model(Variant(left=64, right=64, base=160000.0), 0)
    result = fuse(before, level="basic")
    assert not result.fused and result.model is before
    (miss,) = result.misses
    assert "RoPE over 8 columns in halves, base 160000; window of 64 to each side; key mask 'mask'" in miss.hint
    assert "takes it at level full" in miss.hint


def _squared(b: Builder, angle: str, column: str) -> str:
    return b.op("Mul", angle, column)


def _shifted(b: Builder, angle: str, column: str) -> str:
    return b.op("Add", angle, b.const(0.5))


def _one_way(b: Builder, first: str, second: str, cos: str, sin: str, name: str) -> list[str]:
    """Queries turned one way, keys the other: their distance does not count, their sum does."""
    plus, minus = ("Add", "Sub") if name == "q" else ("Sub", "Add")
    return [
        b.op(minus, b.op("Mul", first, cos), b.op("Mul", second, sin)),
        b.op(plus, b.op("Mul", second, cos), b.op("Mul", first, sin)),
    ]


def _mirrored(b: Builder, first: str, second: str, cos: str, sin: str, name: str) -> list[str]:
    """Both signs alike: no rotation."""
    return [
        b.op("Add", b.op("Mul", first, cos), b.op("Mul", second, sin)),
        b.op("Add", b.op("Mul", second, cos), b.op("Mul", first, sin)),
    ]


def _of_two_angles(b: Builder, first: str, second: str, cos: str, sin: str, name: str) -> list[str]:
    flipped = b.op("Slice", sin, b.const([-1]), b.const([-(2**31)]), b.const([-1]), b.const([-1]))
    return [
        b.op("Sub", b.op("Mul", first, cos), b.op("Mul", second, flipped)),
        b.op("Add", b.op("Mul", second, cos), b.op("Mul", first, flipped)),
    ]


ROTATIONS = {
    "the square of the place": ({"angle": _squared}, "angle"),
    "an angle that begins elsewhere": ({"angle": _shifted}, "angle"),
    "queries and keys by other bases": ({"k_frequencies": lambda f: f * np.linspace(1, 0.9, len(f))}, "rotated in two"),
    "queries and keys the other way": ({"rotated": _one_way}, "pairs the columns of"),
    "a mirror": ({"rotated": _mirrored}, "pairs the columns of"),
    "cosine and sine of two angles": ({"rotated": _of_two_angles}, "two angles"),
}


def test_a_table_is_looked_at_whole() -> None:
    """A rotation that is another at one place of hundreds is none."""
    before = model(Variant(stored=300), 0)
    assert fuse(before).fused == {OP: 1}
    for tensor in before.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.shape == (300, 4):
            array = array.copy()
            array[299] = array[298]
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    result = fuse(before)
    assert not result.fused and "no cosines and sines" in str(result.misses[0]), result.misses


@pytest.mark.parametrize("what", list(ROTATIONS))
def test_what_is_no_rotation_is_refused(what: str) -> None:
    parts, reason = ROTATIONS[what]
    before = model(Variant(parts=parts), 0)
    result = fuse(before)
    assert not result.fused and reason in str(result.misses[0]), [str(miss) for miss in result.misses]


def _every_other(b: Builder, mask: str, seen: str) -> str:
    return b.op("And", seen, b.op("Equal", b.op("Mod", b.op("Abs", distances(b, mask)), b.const(2)), b.const(0)))


def _for_the_first_queries(b: Builder, mask: str, seen: str) -> str:
    length = b.op("Gather", b.op("Shape", mask), b.const(1), axis=0)
    places = b.op("Range", b.const(0), length, b.const(1))
    return b.op("And", seen, b.op("Less", b.op("Unsqueeze", places, b.const([1])), b.const(100)))


def _by_length(b: Builder, mask: str, seen: str) -> str:
    length = b.op("Gather", b.op("Shape", mask), b.const(1), axis=0)
    return b.op("And", seen, b.op("Less", distances(b, mask), b.op("Div", length, b.const(2))))


def _not_itself(b: Builder, mask: str, seen: str) -> str:
    return b.op("And", seen, b.op("Less", distances(b, mask), b.const(0)))


def _window_or_mask(b: Builder, mask: str, seen: str) -> str:
    return b.op("Or", seen, b.op("LessOrEqual", b.op("Abs", distances(b, mask)), b.const(3)))


RANGES = {
    "every other key": _every_other,
    "for the first hundred queries": _for_the_first_queries,
    "half of the text": _by_length,
    "keys before the query alone": _not_itself,
    "a window that shows padding": _window_or_mask,
}


@pytest.mark.parametrize("what", list(RANGES))
def test_what_is_no_range_of_keys_is_refused(what: str) -> None:
    result = fuse(model(Variant(parts={"hidden": RANGES[what]}), 0))
    assert not result.fused and result.misses[0].node, result.misses


def buckets(b: Builder, distance: str) -> str:
    """[1, 4, S, S] as T5 and MPNet have it: exact near by, logarithmic farther off, one bucket beyond 40."""
    behind = b.op("Mul", b.op("Cast", b.op("Greater", distance, b.const(0)), to=7), b.const(8))
    far = b.op("Abs", distance)
    ratio = b.op("Log", b.op("Div", b.op("Cast", far, to=1), b.const(4.0)))
    large = b.op("Cast", b.op("Mul", b.op("Div", ratio, b.const(float(np.log(10)))), b.const(4.0)), to=7)
    large = b.op("Min", b.op("Add", large, b.const(4)), b.const(7))
    bucket = b.op("Add", behind, b.op("Where", b.op("Less", far, b.const(4)), far, large))
    table = b.const(b.random.standard_normal((16, 4)))
    return b.op("Unsqueeze", b.op("Transpose", b.op("Gather", table, bucket, axis=0), perm=[2, 0, 1]), b.const([0]))


def test_a_bias_by_distance() -> None:
    variant = Variant(rotated=0, parts={"bias": buckets})
    before = model(variant, 1)
    result = fuse(before)
    assert result.fused == {OP: 1}, result.misses
    check_equal(before, result, np.random.default_rng(1), variant)
    long = np.random.default_rng(2).standard_normal((1, 130, HIDDEN)).astype(np.float32)
    feed = {"x": long, "mask": np.ones((1, 130), np.int64)}
    np.testing.assert_allclose(run(result.model, feed)[0], run(before, feed)[0], rtol=2e-5, atol=2e-5)


def test_a_bias_by_place_is_refused() -> None:
    def by_key(b: Builder, distance: str) -> str:
        places = b.op("Slice", distance, b.const([0]), b.const([1]), b.const([0]))
        bucket = b.op("Min", b.op("Abs", places), b.const(7))
        table = b.const(b.random.standard_normal((8, 4)))
        return b.op("Unsqueeze", b.op("Transpose", b.op("Gather", table, bucket, axis=0), perm=[2, 0, 1]), b.const([0]))

    result = fuse(model(Variant(rotated=0, parts={"bias": by_key}), 0))
    assert not result.fused and "distance" in str(result.misses[0]), result.misses


# ---- bodies against the oracle, which shares no code with them


def _called(op: str, inputs: dict[str, np.ndarray], **attributes) -> list[np.ndarray]:
    from bertfuse.graph_rewrite import functions

    spec = OPS[op]
    given = {name: array for name, array in inputs.items() if array is not None}
    names = [t.name if t.name in given else "" for t in spec.inputs]
    while not names[-1]:
        names.pop()
    outputs = [t.name for t in spec.outputs]
    node = onnx.helper.make_node(op, names, outputs, domain="bertfuse", **attributes)
    kind = onnx.helper.np_dtype_to_tensor_dtype
    values = [onnx.helper.make_tensor_value_info(n, kind(a.dtype), None) for n, a in given.items()]
    made = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs]
    graph = onnx.helper.make_graph([node], "one", values, made)
    opsets = [onnx.helper.make_opsetid("", int(attributes.pop("opset", 18)))]
    whole = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    functions.import_domain(whole)
    functions.attach(whole, {outputs[0]: onnx.TensorProto.FLOAT})
    return run(whole, given)


@pytest.mark.parametrize("number", range(8))
def test_attention_body(number: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    shared, groups, size = (int(n) for n in random.integers(1, 4, 3))
    batch, length = int(random.integers(1, 3)), int(random.integers(1, 12))
    half = int(random.integers(1, size + 1))
    width = (shared * groups + 2 * groups) * 2 * size
    maybe = lambda *shape: random.standard_normal(shape).astype(np.float32) if random.integers(2) else None  # noqa: E731
    angle = random.standard_normal((length, half)).astype(np.float32)
    rotated = bool(random.integers(2))
    gammas = (maybe(2 * size),) * 2
    mask = random.integers(0, 2, (batch, length)) if random.integers(2) else None
    inputs = {
        "qkv": random.standard_normal((batch, length, width)).astype(np.float32),
        "bias": maybe(width),
        "mask": mask,
        "cos": np.cos(angle) if rotated else None,
        "sin": np.sin(angle) if rotated else None,
        "q_gamma": gammas[0],
        "k_gamma": gammas[1],
        "distance_bias": maybe(1, int(random.choice([1, shared * groups])), int(random.integers(1, 9))),
    }
    settings = {
        "num_heads": shared * groups, "kv_num_heads": groups, "scale": 0.3, "epsilon": 1e-5,
        "pairs": str(random.choice(["halves", "neighbours"])), "window_left": int(random.integers(-1, 4)),
        "window_right": int(random.integers(-1, 4)), "bias_left": int(random.integers(0, 5)),
        "gamma_offset": float(random.integers(2)),
    }  # fmt: skip
    (wanted,) = oracle(OP, inputs, settings)
    (found,) = _called(OP, inputs, **settings)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "quick_gelu"])
def test_gated_body(activation: str) -> None:
    random = np.random.default_rng(0)
    shapes = {"x": (2, 3, 5), "weight": (14, 5), "bias": (14,)}
    inputs = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (wanted,) = oracle("FusedGatedGemm", inputs, {"activation": activation})
    (found,) = _called("FusedGatedGemm", inputs, activation=activation)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("norm", ["layer", "rms", "rms of both"])
def test_residual_norm_body(norm: str, offset: float) -> None:
    random = np.random.default_rng(0)
    shapes = {"x": (2, 3, 5), "weight": (7, 5), "residual": (2, 3, 7), "gamma": (7,), "bias": (7,), "beta": (7,)}
    if norm == "rms of both":
        shapes["product_gamma"], norm = (1, 7), "rms"
    inputs = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    if norm == "rms":
        del inputs["beta"]
    settings = {"epsilon": 1e-5, "norm": norm, "gamma_offset": offset}
    for wanted, found in zip(
        oracle("FusedGemmResidualNorm", inputs, settings),
        _called("FusedGemmResidualNorm", inputs, **settings),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def _without_hidden_tokens(b: Builder, mask: str, scores: str) -> str:
    """As DeBERTa does: a hidden token neither sees nor is seen."""
    real = b.op("Cast", mask, to=9)
    both = b.op("And", b.op("Unsqueeze", real, b.const([1, 2])), b.op("Unsqueeze", real, b.const([1, 3])))
    return b.op("Where", both, scores, b.const(float(np.finfo(np.float32).min)))


def _near(b: Builder, mask: str, scores: str) -> str:
    near = b.op("LessOrEqual", b.op("Abs", distances(b, mask)), b.const(3))
    return b.op("Where", near, scores, b.const(-1e9))


@pytest.mark.parametrize("mask_is_last", [True, False])
def test_hidden_tokens_and_a_window(mask_is_last: bool) -> None:
    """What a hidden token attends to is said by the last thing that is done to its scores."""
    steps = (_near, _without_hidden_tokens) if mask_is_last else (_without_hidden_tokens, _near)
    both = lambda b, mask, scores: steps[1](b, mask, steps[0](b, mask, scores))  # noqa: E731
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    before = model(Variant(rotated=0, masked=False, parts={"scores": both}), seed)
    result = fuse(before)
    if not mask_is_last:
        assert OP not in result.fused
        assert any("changes scores that a mask has made all alike" in str(miss) for miss in result.misses)
        return
    assert result.fused[OP] == 1, [str(miss) for miss in result.misses]
    random = np.random.default_rng(seed)
    mask = random.integers(0, 2, (3, 17))
    mask[:, 4] = 1
    feed = {"x": random.standard_normal((3, 17, HIDDEN)).astype(np.float32), "mask": mask}
    for a, b in zip(run(before, feed), run(result.model, feed), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)
