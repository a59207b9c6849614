"""Linear layers that are in no other op: FusedGemm at level "full", whatever shape and spelling they have."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import TensorProto, helper

from bertfuse.export import export_model
from bertfuse.graph_rewrite import FusionResult, fuse
from bertfuse.graph_rewrite.spec import DOMAIN
from tests.graph_rewrite.graphs import Builder, assert_agree, fused, linear_layers
from tests.graph_rewrite.running import counts, run, session
from tests.tiny_models import EXPORTERS, exported

NAME = "linear layers in no other op"


def fresh_seed() -> int:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    return seed


def constant_products(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    matrices = {t.name for t in model.graph.initializer if len(t.dims) == 2}
    return [n for n in model.graph.node if n.op_type in ("MatMul", "Gemm") and n.input[1] in matrices]


def report(result: FusionResult) -> tuple[list[str], list[str]]:
    """What the pass did, and what it left."""
    found = [(r.done, r.left) for r in result.passes if r.name == NAME]
    return found[0] if found else ([], [])


def with_head(b: Builder, shape: tuple[int | str, ...], form: str, k: int, n: int) -> str:
    """x to a fused layer, and from that to the linear layer that is left over."""
    y = b.gelu(b.linear(b.input("x", (*shape, 16)), 16, k))
    return b.op("Tanh", b.linear(y, k, n, form))


MATMULS = ("matmul_add", "add_matmul", "matmul")
GEMMS = ("gemm", "gemm_transposed", "gemm_without_bias")  # Gemm takes two axes
SPELLINGS = [*itertools.product([("B",)], MATMULS + GEMMS), *itertools.product([("B", "S"), (2, 3, "S")], MATMULS)]


@pytest.mark.parametrize(("shape", "form"), SPELLINGS)
def test_every_spelling(shape: tuple[int | str, ...], form: str) -> None:
    random = np.random.default_rng(seed := fresh_seed())
    b = Builder(seed=seed)
    b.output(with_head(b, shape, form, int(random.integers(1, 40)), int(random.integers(1, 40))))
    model = b.model()
    result = fused(model)
    assert result.fused == {"FusedGemmGelu": 1} and constant_products(result.model) == []
    assert len(linear_layers(result.model, model)) == 1 and "FusedGemm computes node_" in report(result)[0][0]
    adds = sum(node.op_type == "Add" for node in result.model.graph.node)
    assert adds == (form not in ("matmul", "gemm_without_bias"))
    basic = fused(model, level="basic")
    assert len(constant_products(basic.model)) == 1 and not linear_layers(basic.model, model) and not basic.passes


@pytest.mark.parametrize("opset", [13, 17, 18, 20, 22])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_opsets_and_types(opset: int, dtype: type) -> None:
    b = Builder(opset, dtype)
    b.output(with_head(b, ("B", "S"), "matmul_add", 16, 7))
    model = b.model()
    result = fused(model, tol=2e-5 if dtype is np.float32 else 1e-2)
    assert len(linear_layers(result.model, model)) == 1


def test_an_output_of_the_model_keeps_its_name() -> None:
    """The sum, and the product where that is one too; a vector is a row like others."""
    b = Builder()
    y = b.gelu(b.linear(b.input("x", ("B", 16)), 16, 16))
    product = b.linear(y, 16, 3, "matmul")
    total = b.op("Add", product, b.weight(3))
    vector = b.linear(b.input("vector", (16,)), 16, 5, "matmul")
    b.output(b.linear(y, 16, 3), product, total, vector)
    model = b.model()
    result = fused(model)
    assert len(linear_layers(result.model, model)) == 3 and not constant_products(result.model)


def test_weights_that_others_read() -> None:
    """The same matrix as it is, transposed, looked up and read by another operator; each where the op wants [N, K]."""
    b = Builder()
    x = b.input("x", ("B", 8))
    y = b.gelu(b.linear(x, 8, 8))
    weight = b.weight(8, 8, name="weight")
    once = b.linear(y, 8, 8, "matmul", weight)
    again = b.op("MatMul", once, b.op("Transpose", weight, perm=[1, 0]))
    third = b.op("Gemm", again, weight, transB=1)
    looked_up = b.op("Gather", weight, b.ids(shape=("B",)))
    b.output(b.op("Add", third, looked_up), b.op("Mul", b.op("ReduceSum", weight, keepdims=1), third))
    model = b.model()
    result = fused(model, sizes={"ids": 8})
    gemms = linear_layers(result.model, model)
    assert len(gemms) == 3 and not constant_products(result.model)
    assert len({node.input[1] for node in gemms}) == 2  # "weight", and its transpose once
    assert sum(list(t.dims) == [8, 8] for t in result.model.graph.initializer) == 3


def test_a_weight_that_may_be_fed_is_no_constant() -> None:
    b = Builder()
    y = b.gelu(b.linear(b.input("x", ("B", 8)), 8, 8))
    weight = b.weight(8, 4, name="weight")
    b.output(b.linear(y, 8, 4, "matmul", weight))
    model = b.model()
    model.graph.input.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, [8, 4]))
    result = fuse(model)
    assert result.fused == {"FusedGemmGelu": 1} and report(result) == ([], [])
    fed = {"x": np.ones((2, 8), np.float32), "weight": np.full((8, 4), 3, np.float32)}
    assert_agree(model, result.model, fed, 1e-5)


def test_what_a_body_reads_is_there_for_it() -> None:
    """The product without its bias, and the weight, are read within If."""
    b = Builder()
    y = b.gelu(b.linear(b.input("x", ("B", 8)), 8, 8))
    weight = b.weight(8, 8, name="weight")
    product = b.linear(y, 8, 8, "matmul", weight)
    biased = b.op("Add", product, b.weight(8))
    value = helper.make_tensor_value_info
    branches = [
        helper.make_graph([helper.make_node(op, [product, "weight"], [op])], op, [], [value(op, 1, ["B", 8])])
        for op in ("MatMul", "Gemm")
    ]
    branches[1].node[0].op_type = "MatMul"
    branches[1].node[0].input[0] = biased
    chosen = b.op("If", b.input("choice", (), bool), then_branch=branches[0], else_branch=branches[1])
    b.output(chosen, biased)
    model = b.model()
    result = fused(model)
    assert len(linear_layers(result.model, model)) == 1
    half = fuse(model, dtype="fp16").model
    for choice in (True, False):
        fed = {"x": np.random.default_rng(fresh_seed()).standard_normal((3, 8)), "choice": np.array(choice)}
        want = run(session(model), fed | {"x": fed["x"].astype(np.float32)})
        got = run(session(half), fed | {"x": fed["x"].astype(np.float16)})
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(mine.astype(np.float32), theirs, rtol=2e-2, atol=2e-2)


def test_an_output_that_remains_float32() -> None:
    """A float16 model that gives float32: the Cast stays behind the product."""
    b = Builder(dtype=np.float16)
    y = b.linear(b.gelu(b.linear(b.input("x", ("B", 8)), 8, 8)), 8, 3)
    b.output(b.op("Cast", y, to=TensorProto.FLOAT), element=TensorProto.FLOAT)
    model = b.model()
    result = fused(model, tol=1e-2)
    assert len(linear_layers(result.model, model)) == 1
    assert result.model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_products_that_stay_and_why() -> None:
    """Of float64; of integers, since places must be as exact as they were, converted or not; Gemm of other forms."""
    b = Builder()
    x = b.input("x", ("B", 16))
    y = b.gelu(b.linear(x, 16, 16))
    b.output(y)
    places = b.op("Cast", b.op("Shape", x), to=TensorProto.FLOAT)
    row = b.op("Unsqueeze", places, b.const([0]))
    b.output(b.linear(row, 2, 4, "matmul"))
    wide = b.op("Cast", x, to=TensorProto.DOUBLE)
    weight = b.const(b.random.standard_normal((16, 3)), dtype=np.float64)
    b.output(b.op("MatMul", wide, weight), element=TensorProto.DOUBLE)
    b.output(b.op("Gemm", y, b.weight(16, 4), alpha=0.5), b.op("Gemm", b.weight(16, 3), b.weight(16, 4), transA=1))
    b.output(b.op("Gemm", y, b.weight(16, 4), b.op("Slice", y, *(b.const([i]) for i in (0, 4, 1)))))
    b.output(b.op("MatMul", b.weight(3, 16), b.op("Transpose", y, perm=[1, 0])))
    model = b.model()
    result = fused(model)
    assert result.fused == {"FusedGemmGelu": 1} and not linear_layers(result.model, model)
    done, left = report(result)
    reasons = [
        "made of integers",
        "float64, expected float32",
        "alpha is 0.5, expected 1.0",
        "expected a constant vector of 4",
    ]
    assert done == [] and len(left) == len(reasons)
    assert all(reason in line for reason, line in zip(reasons, left, strict=True)), left
    half = fuse(model, dtype="fp16")
    assert half.fused == result.fused and report(half) == (done, left)


def test_what_is_made_of_weights_alone_stays() -> None:
    """And runs as it did where an axis of the matrix is empty."""
    b = Builder()
    y = b.gelu(b.linear(b.input("x", ("B", 16)), 16, 16))
    b.output(b.op("MatMul", y, b.const(np.zeros((16, 0)))))
    b.output(b.op("Mul", y, b.op("MatMul", b.weight(1, 2), b.weight(2, 16))))
    model = b.model()
    done, left = report(fused(model))
    assert done == [] and len(left) == 1 and "a matrix with elements" in left[0]


@pytest.mark.parametrize("task", ["token-classification", "text-classification"])
def test_packed_rows(task: str) -> None:
    """A classifier of tokens works on real rows only; one behind the first token has none to leave out."""
    result = fuse(exported(task), padding="remove")
    assert report(result)[0]
    made = {name: node for node in result.model.graph.node for name in node.output}
    gemms = [n for n in made.values() if n.domain == DOMAIN and n.op_type == "FusedGemm"]
    packed = [node for node in gemms if len(node.input) == 4 and made[node.input[3]].op_type == "PackTokens"]
    assert len(gemms) - len(packed) == (2 if task == "text-classification" else 0)
    ragged = fuse(exported(task), padding="ragged").model
    assert ragged.ir_version == onnx.load(exported(task)).ir_version
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    feed = {"input_ids": np.arange(10).reshape(2, 5), "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
    for got, want in zip(run(session(result.model), feed), run(session(str(exported(task))), feed), strict=True):
        real = mask.astype(bool) if task == "token-classification" else slice(None)
        np.testing.assert_allclose(got[real], want[real], rtol=1e-4, atol=1e-4)


def test_electra(tmp_path: Path) -> None:
    """Embedding projection and classifier: no product with a constant matrix is left to another kernel."""
    random = np.random.default_rng(seed := fresh_seed())
    heads = int(random.integers(1, 4))
    config = transformers.ElectraConfig(
        vocab_size=97,
        embedding_size=int(random.integers(3, 20)),
        hidden_size=heads * 2 * int(random.integers(11, 20)),
        num_hidden_layers=1,
        num_attention_heads=heads,
        intermediate_size=int(random.integers(5, 50)),
        max_position_embeddings=40,
        initializer_range=0.2,
        num_labels=int(random.integers(2, 6)),
    )
    torch.manual_seed(seed)
    network = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    path = export_model(network, tmp_path, task="text-classification", exporter=str(random.choice(EXPORTERS)))
    model = onnx.load(path)
    result = fuse(path)
    assert result.misses == [] and result.fused["FusedAttention"] == 1
    assert constant_products(result.model) == [] and report(result)[1] == []
    # The embedding projection and the end of the classifier, which begins with FusedGemmGelu; one beside the attention.
    assert len(linear_layers(result.model, model)) == 2 and counts(result.model)["FusedGemm"] == 3
    assert result.model.ir_version == model.ir_version
    for batch, length in ((1, 1), (int(random.integers(2, 5)), int(random.integers(2, 40)))):
        mask = (np.arange(length) < random.integers(1, length + 1, (batch, 1))).astype(np.int64)
        feed = {
            "input_ids": random.integers(0, 97, (batch, length)),
            "attention_mask": mask,
            "token_type_ids": random.integers(0, 2, (batch, length)),
        }
        for got, want in zip(run(session(result.model), feed), run(session(str(path)), feed), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
