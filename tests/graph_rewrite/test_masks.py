"""Everything that exporters and users have for a padding mask, and what comes close to one."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import onnx
import pytest

from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.attentions import HIDDEN, MASKS, Attention, attend, unsqueezed
from tests.graph_rewrite.graphs import Builder, assert_agree, feeds, fused, refused, run

PAD = 1
BOOL = onnx.TensorProto.BOOL


def additive(b: Builder, visible: str, hidden: float = -10000.0) -> str:
    """[B, S] or [B, 1, 1, S] of bool to a mask that is added."""
    return b.op("Where", visible, b.const(0.0), b.const(hidden))


def places(b: Builder, like: str) -> str:
    """0 .. S-1."""
    length = b.op("Squeeze", b.op("Gather", b.op("Shape", like), b.const([1]), axis=0), b.const([0]))
    return b.op("Range", b.const(0), length, b.const(1))


def looked_up(b: Builder, ids: str) -> str:
    """Rows of a table of 97: what makes ids ids."""
    return b.op("Gather", b.weight(97, HIDDEN), ids, axis=0)


def _typed(dtype: type) -> Callable[[Builder, str], str]:
    return lambda b, x: MASKS["where"](b, b.ids("attention_mask", dtype=dtype))


def _not_padding(b: Builder, x: str) -> str:
    return additive(b, unsqueezed(b, b.op("Not", b.op("Equal", "ids", b.const(PAD)))))


def _padding(b: Builder, x: str) -> str:
    hidden = unsqueezed(b, b.op("Equal", "ids", b.const(PAD)))
    return b.op("Where", hidden, b.const(-10000.0), b.const(0.0))


def _compared_by_head(b: Builder, x: str) -> str:
    return additive(b, b.op("Not", b.op("Equal", unsqueezed(b, "ids"), b.const(PAD))))


def _cast_ids(b: Builder, x: str) -> str:
    return additive(b, unsqueezed(b, b.op("Not", b.op("Equal", b.op("Cast", "ids", to=6), b.const(PAD, dtype="i4")))))


def _lengths(b: Builder, x: str) -> str:
    lengths = b.input("lengths", ("B",), np.int64)
    return additive(b, unsqueezed(b, b.op("Less", places(b, "ids"), b.op("Unsqueeze", lengths, b.const([1])))))


def _both(pad: int) -> Callable[[Builder, str], str]:
    def make(b: Builder, x: str) -> str:
        given = b.op("Cast", b.ids("attention_mask"), to=BOOL)
        return additive(b, unsqueezed(b, b.op("And", given, b.op("Not", b.op("Equal", "ids", b.const(pad))))))

    return make


def _one_for_hidden(b: Builder, x: str) -> str:
    return b.op("Mul", b.op("Cast", unsqueezed(b, b.ids("padding_mask")), to=1), b.const(-10000.0))


def _four_axes(b: Builder, x: str) -> str:
    numbers = b.op("Cast", b.input("attention_mask", ("B", 1, 1, "S"), np.int64), to=1)
    return b.op("Mul", b.op("Sub", b.const(1.0), numbers), b.const(-10000.0))


GOOD = {
    "int32": _typed(np.int32),
    "int64": _typed(np.int64),
    "bool": _typed(np.bool_),
    "uint8": _typed(np.uint8),
    "float32": _typed(np.float32),
    "ids that are not padding": _not_padding,
    "ids that are padding": _padding,
    "ids compared with four axes": _compared_by_head,
    "ids of another type": _cast_ids,
    "lengths": _lengths,
    "a mask and ids": _both(PAD),
    "a mask and ids of which one in many is padding": _both(70),
    "1 for hidden": _one_for_hidden,
    "four axes": _four_axes,
}


def build(make: Callable[[Builder, str], str]) -> onnx.ModelProto:
    b = Builder()
    ids = b.ids()
    x = looked_up(b, ids)
    b.output(attend(b, x, Attention(parts={"mask": make(b, x)}), ids))
    return b.model()


def tried(model: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    """Feeds in which ids are below 97 and lengths up to S, each with a row without padding."""
    random = np.random.default_rng(1)
    made = []
    for seed in range(3):
        feed = feeds(model, seed=seed)
        feed["ids"] = random.integers(0, 97, feed["ids"].shape)
        feed["ids"][0, -2:] = PAD
        feed["ids"][:, 0] = 5
        feed["ids"][1, 1] = 70
        if "lengths" in feed:
            feed["lengths"] = np.array([2, 5])
        if "attention_mask" in feed:
            given = feed["attention_mask"]
            feed["attention_mask"] = (np.indices(given.shape)[-1] < 3 + seed).astype(given.dtype)
        if "padding_mask" in feed:
            feed["padding_mask"][:, 0] = 0
        made.append(feed)
    return made


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("name", list(GOOD))
def test_masks(name: str, level: str) -> None:
    model = build(GOOD[name])
    result = fuse(model, level=level)
    assert result.fused == result.expected == {"FusedAttention" if level == "full" else "AddQKVBias": 1}, result.misses
    onnx.checker.check_model(result.model, full_check=True)
    for feed in tried(model):
        assert_agree(model, result.model, feed, 2e-5)


@pytest.mark.parametrize("reversed_operands", [False, True])
@pytest.mark.parametrize("given", [np.int64, np.bool_])
def test_scores_selected(reversed_operands: bool, given: type) -> None:
    """Where(visible, scores, -inf), and Where(hidden, -inf, scores)."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask", dtype=given)
    visible = unsqueezed(b, mask if given is np.bool_ else b.op("Cast", mask, to=BOOL))

    def select(scores: str) -> str:
        if reversed_operands:
            return b.op("Where", b.op("Not", visible), b.const(-np.inf), scores)
        return b.op("Where", visible, scores, b.const(-np.inf))

    b.output(attend(b, x, Attention(mask="none", parts={"after_mask": select})))
    assert fused(b.model()).fused == {"FusedAttention": 1}


def test_layers_share_one_made_mask() -> None:
    b = Builder()
    ids = b.ids()
    x = looked_up(b, ids)
    mask = _not_padding(b, x)
    for _ in range(3):
        x = attend(b, x, Attention(parts={"mask": mask}), ids)
    b.output(x)
    result = fused(b.model())
    assert result.fused == {"FusedAttention": 3}
    masks = {node.input[2] for node in result.model.graph.node if node.op_type == "FusedAttention"}
    assert len(masks) == 1


def _less_than_query(b: Builder, x: str) -> str:
    """Keys with a smaller id than the query's."""
    return additive(b, b.op("Less", unsqueezed(b, "ids"), b.op("Unsqueeze", "ids", b.const([1, 3]))))


def _by_query(b: Builder, x: str) -> str:
    real = b.op("Not", b.op("Equal", "ids", b.const(PAD)))
    rows, keys = b.op("Unsqueeze", real, b.const([1, 3])), unsqueezed(b, real)
    return additive(b, b.op("And", rows, keys))


def _weak(b: Builder, x: str) -> str:
    return additive(b, unsqueezed(b, b.op("Not", b.op("Equal", "ids", b.const(PAD)))), -5.0)


@pytest.mark.parametrize("make", [_less_than_query, _by_query, _weak], ids=["by id", "by query", "weak"])
def test_near_misses(make: Callable[[Builder, str], str]) -> None:
    refused(build(make), "more than a key mask", "FusedAttention")


def test_scores_given_from_outside() -> None:
    b = Builder()
    x = b.input("x", ("B", "S", HIDDEN))
    mask = b.input("additive", ("B", 1, 1, "S"))
    b.output(attend(b, x, Attention(parts={"mask": mask}), "additive"))
    refused(b.model(), "is an input of the model", "FusedAttention")


def masked(dtype: type, make: Callable[[Builder, str], str]) -> onnx.ModelProto:
    """x [B, S, 16] attends to keys that are visible where `make`, of a mask [B, 1, 1, S], is true."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask", dtype=dtype)
    b.output(attend(b, x, Attention(parts={"mask": additive(b, make(b, unsqueezed(b, mask)))})))
    return b.model()


# By type and condition: values that the mask is made of, each of them beside one that shows its key.
RULES = {
    "equal": (np.int64, lambda b, m: b.op("Equal", m, b.const(1)), [-1, 0, 1, 2, 1 << 32]),
    "not equal": (np.int64, lambda b, m: b.op("Not", b.op("Equal", m, b.const(3))), [-1, 0, 1, 2, 3, 1 << 32]),
    "positive": (np.int32, lambda b, m: b.op("Greater", m, b.const(0, dtype="i4")), [-(1 << 31), -1, 0, 1, 5]),
    "between": (
        np.int64,
        lambda b, m: b.op("And", b.op("Greater", m, b.const(-2)), b.op("Less", m, b.const(9))),
        [-3, -2, -1, 0, 8, 9],
    ),
    "inverted by 1 - m": (
        np.int64,
        lambda b, m: b.op("Not", b.op("Cast", b.op("Sub", b.const(1), m), to=BOOL)),
        [-1, 0, 1, 2, 3],
    ),
    "above a half": (
        np.float32,
        lambda b, m: b.op("Greater", m, b.const(0.5)),
        [0.0, 0.3, 0.5, 0.6, 1.0, np.inf, np.nan],
    ),
    "any float": (np.float32, lambda b, m: b.op("Cast", m, to=BOOL), [0.0, -0.0, 1e-40, 0.5, -1.0, np.nan]),
    "unsigned": (np.uint8, lambda b, m: b.op("Cast", b.op("Sub", b.const(1, dtype="u1"), m), to=BOOL), [0, 1, 2, 255]),
    "long": (np.uint64, lambda b, m: b.op("Cast", m, to=BOOL), [0, 1, 1 << 32, 1 << 63]),
}


@pytest.mark.parametrize("level", ["full", "basic"])
@pytest.mark.parametrize("name", list(RULES))
def test_the_rule_is_the_models(name: str, level: str) -> None:
    """Whatever values the mask holds."""
    dtype, make, values = RULES[name]
    model = masked(dtype, make)
    result = fuse(model, level=level)
    assert len(result.fused) == 1, result.misses
    values = np.array(values, dtype)
    for rest in values:
        feed = feeds(model, {"B": len(values), "S": 4})
        feed["attention_mask"] = np.stack([np.array([v, rest, rest, v], dtype) for v in values])
        (x,) = run(masked_weights(model), feed)
        kept = [row for row in range(len(values)) if np.isfinite(x[row]).all()]
        shown = {key: value[kept] for key, value in feed.items()}
        if kept:
            assert_agree(model, result.model, shown, 2e-5)


def masked_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with -inf for -10000: NaN tells rows of which every key is hidden."""
    other = deepcopy(model)
    for tensor in other.graph.initializer:
        if onnx.numpy_helper.to_array(tensor).shape == () and onnx.numpy_helper.to_array(tensor) == -10000.0:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(-np.inf), tensor.name))
    return other


@pytest.mark.parametrize("downwards", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("opset", [14, 18])
def test_a_mask_that_lifts_keys(dtype: type, downwards: bool, opset: int) -> None:
    """(1 - mask) * -10000 at 2, mask * -10000 at -1: such keys take the weight of all others."""
    b = Builder(opset)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("attention_mask", dtype=dtype)
    number = b.op("Cast", unsqueezed(b, mask), to=1)
    number = number if downwards else b.op("Sub", b.const(1.0), number)
    b.output(attend(b, x, Attention(parts={"mask": b.op("Mul", number, b.const(-10000.0))})))
    model = b.model()
    result = fuse(model)
    assert result.fused == {"FusedAttention": 1}
    feed = feeds(model)
    feed["attention_mask"][:, 1:3] = [0, 1]
    assert_agree(model, result.model, feed, 2e-5)
    if downwards and dtype == np.uint8:
        return  # nothing is below 0
    rows = np.array([[3, 2, 3, 1], [1, 2, 0, -1], [0, 1, 1, 0], [5, 5, 5, 5], [2, 1, 1, 5], [0, 1, -3, 4]])
    rows = rows if dtype != np.uint8 else np.abs(rows)
    feed = feeds(model, {"B": len(rows), "S": 4})
    feed["attention_mask"] = (1 - rows if downwards else rows).astype(dtype)
    assert_agree(model, result.model, feed, 2e-3)  # scores of 1 beside 10000 are rounded to 1e-3
    feed["attention_mask"][:, 2] = 0
    assert_agree(model, result.model, {"x": feed["x"], "attention_mask": feed["attention_mask"][:, ::-1]}, 2e-3)


@pytest.mark.parametrize("form", ["at most 1", "squared", "uint64"])
def test_a_mask_that_lifts_keys_by_other_steps(form: str) -> None:
    b = Builder()
    x, mask = (
        b.input("x", ("B", "S", HIDDEN)),
        b.ids("attention_mask", dtype=np.uint64 if form == "uint64" else np.int64),
    )
    number = b.op("Sub", b.op("Cast", unsqueezed(b, mask), to=1), b.const(1.0))
    if form == "at most 1":
        number = b.op("Min", number, b.const(1.0))
    elif form == "squared":
        number = b.op("Mul", number, b.op("Abs", number))
    b.output(attend(b, x, Attention(parts={"mask": b.op("Mul", number, b.const(10000.0))})))
    refused(b.model(), "raise the scores of a key", "FusedAttention")


@pytest.mark.parametrize(
    ("hidden", "why"), [(-10000.0, "hide keys in part"), (float(np.finfo(np.float32).min), "raise the scores")]
)
def test_a_float_mask_that_hides_in_part(hidden: float, why: str) -> None:
    """(1 - 0.9999) * -10000 is -1: no key is hidden by that. And 1.1 lifts one."""
    b = Builder()
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.input("attention_mask", ("B", "S"), np.float32)
    number = b.op("Mul", b.op("Sub", b.const(1.0), unsqueezed(b, mask)), b.const(hidden), name="the_mask")
    b.output(attend(b, x, Attention(parts={"mask": number})))
    (miss,) = refused(b.model(), why, "FusedAttention").misses
    assert miss.node == "the_mask"
