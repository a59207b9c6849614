"""Small graphs around each pattern are fused, and mutants of them: fused and equal, or refused with a reason."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from bertfuse.graph_rewrite import fuse
from bertfuse.qualify.mutants.trial import Subject
from tests.graph_rewrite.attentions import HIDDEN, MASKS, Attention, attend
from tests.graph_rewrite.graphs import Builder
from tests.graph_rewrite.lookups import lookup, range_positions, sliced_positions
from tests.graph_rewrite.test_gelu import erf_gelu, tanh_gelu
from tests.graph_rewrite.test_layer_norm import N, spelled_out

# Of each pattern; the same graphs on every machine: what fails here fails there.
COUNT = 80


def gemm_gelu(r: random.Random, b: Builder) -> set[str]:
    k, n = r.randint(1, 40), r.randint(1, 40)
    form = r.choice(["matmul_add", "add_matmul", "matmul", "gemm", "gemm_transposed"])
    y = b.linear(b.input("x", ("B", k) if form.startswith("gemm") else ("B", "S", k)), k, n, form)
    if r.random() < 0.5:
        y = erf_gelu(b, y, r.choice(["div", "mul", "mul_sqrt", "neg"]), "(x f) / 2", False)
    else:
        y = tanh_gelu(b, y, r.choice(["pow", "mul"]), "(x / 2) f", r.random() < 0.5)
    b.output(y)
    return {"FusedGemmGelu"}


def gemm_layer_norm(r: random.Random, b: Builder) -> set[str]:
    gelu = r.random() < 0.5
    y = b.linear(b.input("x", ("B", "S", 8)), 8, N)
    y = b.op("Add", b.gelu(y) if gelu else y, b.input("residual", ("B", "S", N)))
    b.output(spelled_out(b, y, r.choice(["pow", "mul"]), r.random() < 0.5))
    return {"FusedGemmGeluLayerNorm" if gelu else "FusedGemmLayerNorm"}


def attention(r: random.Random, b: Builder) -> set[str]:
    spec = Attention(
        scale=r.choice(["q", "k", "both", "scores_mul", "scores_div", "none"]),
        layout=r.choice(["eager", "sdpa"]),
        mask=r.choice([*MASKS, "select", "none"]),
        linear=r.choice(["matmul_add", "add_matmul", "matmul"]),
        guard=r.random() < 0.5,
        factor=r.uniform(0.05, 2.0),
    )
    x = b.input("x", ("B", "S", HIDDEN))
    b.output(attend(b, x, spec, None if spec.mask == "none" else b.ids("attention_mask")))
    return {"FusedAttention"}


def layer(r: random.Random, b: Builder) -> set[str]:
    """All of a layer: what is missed in one part leaves the others as they are."""
    mask = r.choice([*MASKS, "select", "none"])
    x = b.input("x", ("B", "S", HIDDEN))
    context = attend(b, x, Attention(mask=mask), None if mask == "none" else b.ids("attention_mask"))
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    inner = b.linear(erf_gelu(b, b.linear(y, HIDDEN, 2 * HIDDEN), "div", "(x f) / 2", False), 2 * HIDDEN, HIDDEN)
    b.output(b.layer_norm(b.op("Add", inner, y), HIDDEN))
    return {"FusedAttention", "FusedGemmLayerNorm", "FusedGemmGelu"}


def embeddings(r: random.Random, b: Builder) -> set[str]:
    words, positions = r.randint(2, 60), r.randint(9, 60)
    ids = b.ids()
    y = lookup(b, words, ids)
    y = b.op("Add", y, lookup(b, 2, b.ids("token_type_ids"))) if r.random() < 0.5 else y
    index = range_positions(b, ids) if r.random() < 0.5 else sliced_positions(b, ids, positions)
    b.output(b.layer_norm(b.op("Add", y, lookup(b, positions, index)), HIDDEN))
    return {"EmbedLayerNorm"}


def dressed(r: random.Random, b: Builder) -> None:
    """Changes nothing: shapes of inner tensors are asked for, and nodes stand in another order that ONNX allows."""
    inner = [node.output[0] for node in b.nodes if node.op_type not in ("Shape", "Range", "Constant")]
    for name in r.sample(inner, r.randint(0, min(2, len(inner)))):
        b.output(b.op("Shape", name), element=onnx.TensorProto.INT64)
    waiting, order, made = list(b.nodes), [], {name for node in b.nodes for name in node.output}
    while waiting:
        node = r.choice([node for node in waiting if not made & set(node.input)])
        waiting.remove(node)
        order.append(node)
        made -= set(node.output)
    b.nodes = order


PATTERNS = (gemm_gelu, gemm_layer_norm, attention, layer, embeddings)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.__name__)
def test_mutants(pattern: Callable[[random.Random, Builder], set[str]]) -> None:
    changed = 0
    for seed in range(COUNT):
        r = random.Random(f"{pattern.__name__} {seed}")
        b = Builder(r.choice([13, 17, 18, 21]))
        ops = pattern(r, b)
        assert ops <= set(fuse(b.model()).fused), f"seed {seed}"
        dressed(r, b)
        model, level = b.model(), r.choice(["full", "basic"])
        with np.errstate(all="ignore"):
            trial = Subject(model, seed, level).tried(0, patience=0)
        # NaN in the original: a root of what rounding leaves of 0, or -inf for every key of a row.
        fine = not trial.verdict.bad or ": nan and fused" in trial.verdict.text
        assert fine, f"seed {seed}, {level}: {trial.changes}: {trial.verdict.text}"
        changed += trial.verdict.outcome in ("partly", "refused")
    assert changed, "no mutant stopped a fusion"
