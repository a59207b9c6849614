"""Hidden scores whose weights are set to 0 again behind the Softmax, as DeBERTa's code did up to transformers 4.46."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import bertfuse
from bertfuse.graph_rewrite import fuse
from tests.graph_rewrite.graphs import Builder, run
from tests.graph_rewrite.variants import HIDDEN, Variant, attend, model

OP = "FusedAttentionVariant"
LEAST = float(np.finfo(np.float32).min)


def by_product(b: Builder, mask: str, spelled: int) -> tuple[str, bool]:
    """[B, 1, S, S] of the mask times itself as a condition, and whether it hides where it is true."""
    rows, columns = b.op("Unsqueeze", mask, b.const([1, 3])), b.op("Unsqueeze", mask, b.const([1, 2]))
    product = b.op("Mul", rows, columns)
    if spelled == 0:  # transformers' own way
        return b.op("Cast", b.op("Sub", b.const(1), product), to=9), True
    if spelled == 1:
        return b.op("Equal", product, b.const(1)), False
    return b.op("Equal", product, b.const(0)), True


def hidden_twice(variant: Variant, condition: Callable, spelled: int, zero: float = 0.0) -> Variant:
    """The variant with scores and weights that one condition hides."""
    made: list[tuple[str, bool]] = []

    def select(b: Builder, value: float, x: str) -> str:
        seen, hides = made[0]
        return b.op("Where", seen, *((b.const(value), x) if hides else (x, b.const(value))))

    def scores(b: Builder, mask: str, x: str) -> str:
        made.append(condition(b, mask, spelled))
        return select(b, LEAST, x)

    variant.parts |= {"scores": scores, "weights": lambda b, mask, x: select(b, zero, x)}
    return variant


def masks(random: np.random.Generator, shape: tuple[int, int], greatest: int) -> np.ndarray:
    mask = random.integers(0, greatest + 1, shape)
    mask[0, random.integers(shape[1])] = 1
    mask[-1] = 0  # a text of padding alone
    return mask


@pytest.mark.parametrize("spelled", range(3))
def test_weights_of_hidden_tokens_are_zeros(spelled: int) -> None:
    """Every row is what it was, of hidden tokens, too; numbers above 1 hide where 1 of the product alone shows."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    variant = Variant(rotated=int(random.choice([0, 8])), masked=False, left=None if random.integers(2) else 5)
    before = model(hidden_twice(variant, by_product, spelled), seed)
    result = fuse(before)
    assert result.fused == {OP: 1}, [str(miss) for miss in result.misses]
    onnx.checker.check_model(result.model, full_check=True)
    for greatest in (1, 3):
        mask = masks(random, (3, int(random.integers(2, 40))), greatest)
        feed = {"x": random.standard_normal((*mask.shape, HIDDEN)).astype(np.float32), "mask": mask}
        (wanted,), (found,) = run(before, feed), run(result.model, feed)
        shown = mask == 1 if spelled < 2 else mask != 0
        assert not found[~shown].any()
        # A token that is shown and sees none within its window has no row to compare.
        distance = np.arange(mask.shape[1])[None] - np.arange(mask.shape[1])[:, None]
        sees = (shown[:, None] & shown[..., None] & (distance >= -(variant.left or mask.size))).any(-1)
        np.testing.assert_allclose(found[sees], wanted[sees], rtol=2e-5, atol=2e-5)
        assert not wanted[~shown].any()


def of_keys(b: Builder, mask: str, spelled: int) -> tuple[str, bool]:
    keys = b.op("Unsqueeze", mask, b.const([1, 2]))
    return (b.op("Equal", keys, b.const(0)), True) if spelled else (b.op("Cast", keys, to=9), False)


@pytest.mark.parametrize("spelled", range(2))
def test_a_mask_of_keys(spelled: int) -> None:
    """Only a text without any key would have other weights."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    before = model(hidden_twice(Variant(rotated=0, masked=False), of_keys, spelled), seed)
    result = fuse(before)
    assert sum(result.fused.values()) == 1, [str(miss) for miss in result.misses]
    mask = masks(random, (3, 17), 1)
    feed = {"x": random.standard_normal((3, 17, HIDDEN)).astype(np.float32), "mask": mask}
    for a, b in zip(run(before, feed), run(result.model, feed), strict=True):
        np.testing.assert_allclose(b[:-1], a[:-1], rtol=2e-5, atol=2e-5)
        assert np.isfinite(b).all()


def _another_mask(b: Builder, mask: str, weights: str) -> str:
    return b.op("Where", by_product(b, b.op("Sub", b.const(1), mask), 0)[0], b.const(0.0), weights)


def _one_number(b: Builder, mask: str, weights: str) -> str:
    """Weights below a threshold are dropped."""
    return b.op("Where", b.op("Less", weights, b.const(0.01)), b.const(0.0), weights)


def _of_places(b: Builder, mask: str, weights: str) -> str:
    length = b.op("Gather", b.op("Shape", mask), b.const(1), axis=0)
    odd = b.op("Equal", b.op("Mod", b.op("Range", b.const(0), length, b.const(1)), b.const(2)), b.const(1))
    return b.op("Where", odd, b.const(0.0), weights)


@pytest.mark.parametrize("weights", [_another_mask, _one_number, _of_places])
def test_other_weights_set_to_zero(weights: Callable) -> None:
    variant = hidden_twice(Variant(rotated=0, masked=False), by_product, 0)
    variant.parts["weights"] = weights
    _check_refused(variant)


def test_another_number_than_zero() -> None:
    _check_refused(hidden_twice(Variant(rotated=0, masked=False), by_product, 0, zero=0.001))


def test_the_other_way_round() -> None:
    """Weights of what is shown are set to 0."""
    variant = hidden_twice(Variant(rotated=0, masked=False), by_product, 0)
    scores, seen = variant.parts["scores"], []

    def keep(b: Builder, mask: str, x: str) -> str:
        made = scores(b, mask, x)
        seen.append(b.nodes[-1].input[0])
        return made

    variant.parts |= {"scores": keep, "weights": lambda b, mask, x: b.op("Where", seen[0], x, b.const(0.0))}
    _check_refused(variant)


@pytest.mark.parametrize("after", ["Mul", "Add"])
def test_scores_that_change_after_they_are_hidden(after: str) -> None:
    """What is hidden need not be so any more: nothing is said of it."""
    variant = hidden_twice(Variant(rotated=0, masked=False), by_product, 0)
    scores = variant.parts["scores"]
    variant.parts["scores"] = lambda b, mask, x: b.op(after, scores(b, mask, x), b.const(1e-3))
    _check_refused(variant)


def test_scores_that_are_read_elsewhere() -> None:
    """Nothing of what was begun is left."""
    variant = hidden_twice(Variant(rotated=0, masked=False), by_product, 0)
    scores = variant.parts["scores"]

    def shown(b: Builder, mask: str, x: str) -> str:
        b.output(x, shape=("B", 4, "S", "S"))
        return scores(b, mask, x)

    variant.parts["scores"] = shown
    before = model(variant, 0)
    result = fuse(before)
    assert OP not in result.fused and "needed elsewhere" in str(result.misses[0]), result.misses
    onnx.checker.check_model(result.model, full_check=True)
    feed = {"x": np.random.default_rng().standard_normal((2, 5, HIDDEN)).astype(np.float32)}
    feed["mask"] = masks(np.random.default_rng(), (2, 5), 1)
    for a, b in zip(run(before, feed), run(result.model, feed), strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("spelled", range(3))
def test_one_of_two_attentions(spelled: int) -> None:
    """What was made for the first one, which is refused, serves the second one."""
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    b = Builder(seed=seed)
    x, mask = b.input("x", ("B", "S", HIDDEN)), b.ids("mask")
    shown: list[str] = []
    for _ in range(2):
        variant = hidden_twice(Variant(rotated=0, masked=False, heads=3), by_product, spelled)
        scores = variant.parts["scores"]
        if not shown:
            variant.parts["scores"] = lambda b, mask, x, scores=scores: scores(b, mask, shown.append(x) or x)
        x = attend(b, variant, x, mask)
    b.output(x, shape=("B", "S", HIDDEN))
    b.output(shown[0], shape=("B", 3, "S", "S"))
    before = b.model()
    result = fuse(before)
    assert result.fused == {OP: 1} and "needed elsewhere" in str(result.misses[0]), result.misses
    onnx.checker.check_model(result.model, full_check=True)
    random = np.random.default_rng(seed)
    given = masks(random, (3, 12), 1)
    feed = {"x": random.standard_normal((3, 12, HIDDEN)).astype(np.float32), "mask": given}
    for wanted, found in zip(run(before, feed), run(result.model, feed), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def _check_refused(variant: Variant) -> None:
    before = model(variant, 0)
    result = fuse(before)
    assert OP not in result.fused and "FusedAttention" not in result.fused
    assert result.misses and all("Where" in str(miss) or "Softmax" in str(miss) for miss in result.misses)


@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
def test_deberta(padding: str, tmp_path: Path) -> None:
    """The attention of today's export with the weights of older ones."""
    from tests.model_coverage.files import Recipe, make

    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    recipe = Recipe("deberta-v2", "feature-extraction", "torchscript", "eager", 17)
    older = _older(onnx.load(make(recipe, tmp_path)[0]))
    result = fuse(older, padding=padding)
    assert result.fused[OP] == 2 and not result.misses, result.misses
    mask = (np.arange(19) < np.array([[19], [1], [7]])).astype(np.int64)
    feed = {"input_ids": random.integers(1, 50, mask.shape), "attention_mask": mask}
    feed |= {"token_type_ids": np.zeros_like(mask)}
    (wanted,) = run(older, {value.name: feed[value.name] for value in older.graph.input})
    if padding == "ragged":
        counts = mask.sum(1)
        rows = {name: [row[:n] for row, n in zip(feed[name], counts, strict=True)] for name in feed}
        given = bertfuse.ragged({value.name: rows[value.name] for value in older.graph.input if value.name in rows})
        (found,) = run(result.model, {value.name: given[value.name] for value in result.model.graph.input})
        np.testing.assert_allclose(found.reshape(-1, found.shape[-1]), wanted[mask == 1], rtol=1e-4, atol=1e-5)
        return
    (found,) = run(result.model, {value.name: feed[value.name] for value in result.model.graph.input})
    rows = mask == 1 if padding == "remove" else np.full(mask.shape, True)
    np.testing.assert_allclose(found[rows], wanted[rows], rtol=1e-4, atol=1e-5)


def _older(model: onnx.ModelProto) -> onnx.ModelProto:
    """`attention_mask` times itself hides where it is not 1, scores and then weights."""
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 3]), "of_rows"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2]), "of_columns"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one_alone"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "no_weight"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.float32(LEAST), "least"))
    made = onnx.helper.make_node
    nodes = [
        made("Unsqueeze", ["attention_mask", "of_rows"], ["mask_of_rows"]),
        made("Unsqueeze", ["attention_mask", "of_columns"], ["mask_of_columns"]),
        made("Mul", ["mask_of_rows", "mask_of_columns"], ["mask_of_pairs"]),
        made("Sub", ["one_alone", "mask_of_pairs"], ["no_pairs"]),
        made("Cast", ["no_pairs"], ["hides"], to=9),
    ]
    for node in graph.node:
        if node.op_type == "Softmax":
            hiding = producers[node.input[0]]
            assert hiding.op_type == "Where"
            nodes.remove(hiding)
            scores = next(name for name in hiding.input[1:] if producers[name].op_type in ("Reshape", "Add"))
            nodes.append(made("Where", ["hides", "least", scores], [f"{node.name}_hidden"]))
            (output,) = node.output
            node.input[0], node.output[0] = f"{node.name}_hidden", f"{node.name}_weights"
            nodes += [node, made("Where", ["hides", "no_weight", f"{node.name}_weights"], [output])]
        else:
            nodes.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    return model
