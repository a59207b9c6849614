"""Tables of cosines and sines: by one op for each base where a size is free, else as runtimes fold them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from bertfuse.graph_rewrite import functions, fuse, oracle
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.measuring.differences import TOLERANCES
from bertfuse.qualify.tolerances import assert_close
from tests.cases import FLOATS, Shape, make_case
from tests.graph_rewrite.graphs import Builder
from tests.graph_rewrite.running import session
from tests.graph_rewrite.variants import HIDDEN, Variant, attend, model, turn
from tests.one_node import as_float64, run
from tests.one_node import model as one_node
from tests.one_node import session as one_session

TABLES, ROTARY = "RotaryTables", "FusedGemmRotary"
COUNTED = {"Range", "Cos", "Sin"}  # what makes tables in standard operators


def named(found: onnx.ModelProto, op: str) -> list[dict[str, str]]:
    """The inputs of each node of an op, by name."""
    names = [tensor.name for tensor in OPS[op].inputs]
    return [dict(zip(names, node.input, strict=False)) for node in found.graph.node if node.op_type == op]


def settings(found: onnx.ModelProto, op: str) -> list[dict[str, object]]:
    nodes = [node for node in found.graph.node if node.op_type == op]
    return [{a.name: helper.get_attribute_value(a) for a in node.attribute} for node in nodes]


def ops(found: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in found.graph.node)


def embedded(*variants: Variant) -> onnx.ModelProto:
    """Ids, their rows of a table, one attention after the other."""
    b = Builder(seed=0)
    b.ids("ids"), b.ids("mask")
    x = b.op("Gather", b.weight(30, HIDDEN), "ids")
    for variant in variants:
        context = attend(b, variant, x=x)
        x = b.op("Add", x, b.linear(context, variant.heads * variant.size, HIDDEN, "matmul"))
    b.output(x)
    return b.model()


def fed(random: np.random.Generator, padding: str, length: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Three texts with padding on either side and gaps, one of them without a token; and which tokens are real."""
    ids = random.integers(0, 30, (3, length))
    mask = (random.random(ids.shape) < 0.6).astype(np.int64)
    mask[0, -1], mask[2] = 1, 0
    if padding != "ragged":
        return {"ids": ids, "mask": mask}, mask != 0
    mask = np.sort(mask, axis=1)[:, ::-1]  # gaps are not counted there
    lengths = mask.sum(axis=1)
    feed = {"ids": ids[mask != 0], "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32)}
    return feed | {"max_seqlen": np.zeros(lengths.max(), np.int32), "padded": ids}, mask != 0


@pytest.mark.parametrize("kernels", [False, True], ids=["bodies", "kernels"])
@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
def test_one_op_for_each_base(padding: str, kernels: bool, library: Path) -> None:
    """Of three attentions two share their tables; whatever was counted by standard operators is gone."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    bases = [float(10 ** random.uniform(1, 6)) for _ in range(2)]
    variants = [Variant(base=bases[n], divided=n == 1, left=3 if n else None) for n in (0, 1, 0)]
    before = embedded(*variants)
    result = fuse(before, padding=padding)
    found = ops(result.model)
    assert found[TABLES] == 2 and found[ROTARY] == 3 and not COUNTED & set(found)
    assert [given["angle"] for given in settings(result.model, TABLES)] == [b"product", b"quotient"]
    tokens = {given["tokens"] for given in named(result.model, TABLES)}
    assert tokens == {"max_seqlen" if padding == "ragged" else "ids"}
    onnx.checker.check_model(result.model, full_check=True)
    original, runner = session(before), session(result.model, library if kernels else None)
    atol, rtol = TOLERANCES["float32"]
    for length in (1, 2, 9, 40):
        feed, real = fed(random, padding, length)
        ids = feed.pop("padded", feed["ids"])
        wanted = original.run(None, {"ids": ids, "mask": real.astype(np.int64)})[0][real]
        got = runner.run(None, feed)[0]
        np.testing.assert_allclose(got if padding == "ragged" else got[real], wanted, atol=atol, rtol=rtol)


@pytest.mark.parametrize("scaling", [1.1386, 0.5, 3e4])
def test_attention_scaling_goes_into_tables(scaling: float) -> None:
    """As YaRN has it, of heads that turn in part; one out of every model's range is left to standard operators."""

    def scaled(b: Builder, first: str, second: str, cos: str, sin: str, name: str) -> list[str]:
        factor = b.const(scaling)
        return turn(b, first, second, b.op("Mul", cos, factor), b.op("Mul", sin, factor))

    before = embedded(Variant(rotated=4, parts={"rotated": scaled}))
    result = fuse(before)
    assert ops(result.model)[ROTARY] == 1
    found = settings(result.model, TABLES)
    assert [np.float32(given["scaling"]) for given in found] == ([np.float32(scaling)] if scaling < 1e4 else [])
    feed, real = fed(np.random.default_rng(1), "keep", 9)
    atol, rtol = TOLERANCES["float32"]
    got, wanted = (session(m).run(None, feed)[0][real] for m in (result.model, before))
    np.testing.assert_allclose(got, wanted, atol=atol, rtol=rtol)


def test_packed_rows_are_where_the_padded_batch_had_them() -> None:
    result = fuse(embedded(Variant(), Variant()), padding="remove")
    index = next(node.output[0] for node in result.model.graph.node if node.op_type == "PackTokens")
    assert [given["places"] for given in named(result.model, ROTARY)] == [index, index]
    assert [given["places_in"] for given in settings(result.model, ROTARY)] == [b"batch", b"batch"]


def test_tables_of_the_model_stay() -> None:
    """They end somewhere: places of packed rows are rows of them, so that a longer text is noticed."""
    result = fuse(embedded(Variant(stored=40)), padding="remove")
    assert TABLES not in ops(result.model) and "places_in" not in settings(result.model, ROTARY)[0]
    assert named(result.model, ROTARY)[0]["places"]
    feed = {"ids": np.ones((1, 41), np.int64), "mask": np.ones((1, 41), np.int64)}
    with pytest.raises(Exception, match=r"(?i)gather|indices|places"):
        session(result.model).run(None, feed)


def test_a_fixed_size_is_left_to_the_runtime() -> None:
    before = model(Variant(), 0)
    for value in (*before.graph.input, *before.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = 7
    result = fuse(before)
    assert TABLES not in ops(result.model) and ops(result.model)[ROTARY] == 1


def test_without_integers_by_token_operators_count() -> None:
    """Only x tells how many tokens there are."""
    b = Builder(seed=0)
    b.input("x", ("B", "S", HIDDEN))
    b.output(attend(b, Variant(masked=False), mask="x"))
    before = b.model()
    result = fuse(before)
    found = ops(result.model)
    assert found[ROTARY] == 1 and found["Cos"] == 1 and TABLES not in found
    feed = {"x": np.random.default_rng(0).standard_normal((2, 5, HIDDEN)).astype(np.float32)}
    atol, rtol = TOLERANCES["float32"]
    got, wanted = (session(m).run(None, feed)[0] for m in (result.model, before))
    np.testing.assert_allclose(got, wanted, atol=atol, rtol=rtol)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_angles_stay_float32(dtype: str) -> None:
    result = fuse(embedded(Variant()), dtype=dtype)
    (given,) = named(result.model, TABLES)
    types = {tensor.name: tensor.data_type for tensor in result.model.graph.initializer}
    half = onnx.TensorProto.FLOAT16 if dtype == "fp16" else onnx.TensorProto.BFLOAT16
    assert (types[given["frequencies"]], types[given["like"]]) == (onnx.TensorProto.FLOAT, half)
    assert not COUNTED & set(ops(result.model))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kernels", [False, True], ids=["bodies", "kernels"])
def test_any_frequencies(kernels: bool, dtype: str, library: Path) -> None:
    """Random sizes, bases and scalings against float64, up to the 8,191st place."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    for number in range(12):
        places = 8192 if number == 0 else int(random.integers(1, 600))
        sizes = {"C": places, "R": int(random.integers(1, 100))}
        leading = tuple(random.integers(1, 4, random.integers(0, 3)).tolist())
        angle = str(random.choice(["product", "quotient"]))
        attributes = {"angle": angle, "scaling": float(np.float32(random.uniform(-2, 2)))}
        case = make_case(TABLES, Shape(f"random_{seed}_{number}", sizes, leading, attributes), dtype=dtype)
        base = 10 ** random.uniform(0, 6)
        frequencies = base ** -(np.arange(sizes["R"]) / sizes["R"])
        case.inputs["frequencies"][:] = frequencies if angle == "product" else 1 / frequencies
        wanted = oracle(TABLES, as_float64(case.inputs), dict(case.attributes))
        proto = one_node(case)
        if not kernels:
            functions.attach(proto, {"cos": proto.graph.output[0].type.tensor_type.elem_type})
        runner = one_session(proto, library) if kernels else session(proto)
        for got, table in zip(run(runner, case, [array.shape for array in wanted]), wanted, strict=True):
            assert_close(got, table, TABLES, dtype)


def test_tables_that_an_attention_given_up_leaves_to_the_next() -> None:
    """Whatever the first of two attentions cannot be fused for, the tables of the second are there."""
    before = embedded(Variant(rotated=8), Variant(rotated=8))
    typed = onnx.shape_inference.infer_shapes(before)
    first = [node.output[0] for node in before.graph.node if node.op_type in ("MatMul", "Reshape", "Transpose")][:8]
    partly = 0
    for name in first:
        changed = onnx.ModelProto()
        changed.CopyFrom(before)
        changed.graph.output.extend(value for value in typed.graph.value_info if value.name == name)
        result = fuse(changed)
        onnx.checker.check_model(result.model)  # every input of a node is made before it
        partly += result.fused.get("FusedAttentionVariant", 0) == 1
    assert partly > 0
