"""Small graphs around each pattern, and what every one of them must satisfy after fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from bertfuse.graph_rewrite import FusionResult, fuse
from bertfuse.graph_rewrite.graph import FusionGraph
from bertfuse.graph_rewrite.io import split
from bertfuse.graph_rewrite.nodes import NoMatch, node_name
from bertfuse.graph_rewrite.normalize import NORMALIZERS, clutter
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.spec import DOMAIN

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


class Builder:
    """Builds a graph node by node; tensors are names. Names are given in order: the same calls give the same graph."""

    def __init__(self, opset: int = 17, dtype: Any = np.float32, seed: int = 0) -> None:
        self.opset, self.dtype = opset, np.dtype(dtype)
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.domains: set[str] = set()
        self._count = 0

    def name(self, base: str) -> str:
        self._count += 1
        return f"{base}_{self._count}"

    def input(self, name: str, shape: Sequence[int | str | None], dtype: Any = None) -> str:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.dtype))
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def ids(self, name: str = "ids", shape: Sequence[int | str] = ("B", "S"), dtype: Any = np.int64) -> str:
        return self.input(name, shape, dtype)

    def const(self, value: Any, name: str | None = None, dtype: Any = None) -> str:
        """An initialiser; floats become the graph's type unless `dtype` says otherwise."""
        array = np.asarray(value)
        array = array.astype(dtype or (self.dtype if array.dtype.kind == "f" else np.int64))
        name = name or self.name("const")
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def weight(self, *shape: int, name: str | None = None) -> str:
        """Random values whose product with a unit vector is about one."""
        return self.const(self.random.standard_normal(shape) / np.sqrt(shape[0] if len(shape) > 1 else 1), name)

    def op(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", name: str | None = None, **attrs: Any):
        made = [self.name(op.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), made, name or f"node_{made[0]}", domain=domain, **attrs))
        if domain:
            self.domains.add(domain)
        return made[0] if outputs == 1 else tuple(made)

    def output(self, *names: str, shape: Sequence[int | str | None] | None = None, element: int | None = None) -> None:
        element = element or helper.np_dtype_to_tensor_dtype(self.dtype)
        for name in names:
            self.outputs.append(helper.make_tensor_value_info(name, element, shape))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "small", self.inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(self.domains))]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        # The checker wants the rank of every output.
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        for ours, theirs in zip(graph.output, inferred.graph.output, strict=True):
            if not ours.type.tensor_type.HasField("shape"):
                ours.CopyFrom(theirs)
        model.graph.CopyFrom(graph)
        return model

    # ---- pieces of an encoder, in their usual spelling

    def linear(self, x: str, k: int, n: int, form: str = "matmul_add", weight: str = "", bias: str = "") -> str:
        """x Wᵀ + b; `weight` is an initialiser [k, n] to share."""
        if form.startswith("gemm"):
            transposed = form == "gemm_transposed"
            weight = weight or self.weight(*((n, k) if transposed else (k, n)))
            inputs = [x, weight] if form == "gemm_without_bias" else [x, weight, bias or self.weight(n)]
            return self.op("Gemm", *inputs, transB=int(transposed))
        product = self.op("MatMul", x, weight or self.weight(k, n))
        if form == "matmul":
            return product
        bias = bias or self.weight(n)
        return self.op("Add", *((bias, product) if form == "add_matmul" else (product, bias)))

    def gelu(self, x: str) -> str:
        erf = self.op("Erf", self.op("Div", x, self.const(np.sqrt(2.0))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.const(1.0))), self.const(0.5))

    def mean(self, x: str, axes: Sequence[int] = (-1,)) -> str:
        if self.opset >= 18:
            return self.op("ReduceMean", x, self.const(np.array(axes)), keepdims=1)
        return self.op("ReduceMean", x, axes=list(axes), keepdims=1)

    def layer_norm(self, x: str, n: int, epsilon: float = 1e-5, gamma: str = "", beta: str = "") -> str:
        gamma = gamma or self.const(1 + 0.2 * self.random.standard_normal(n))
        beta = beta or self.weight(n)
        if self.opset >= 17:
            return self.op("LayerNormalization", x, gamma, beta, axis=-1, epsilon=epsilon)
        centred = self.op("Sub", x, self.mean(x))
        variance = self.mean(self.op("Pow", centred, self.const(2.0)))
        deviation = self.op("Sqrt", self.op("Add", variance, self.const(epsilon)))
        return self.op("Add", self.op("Mul", self.op("Div", centred, deviation), gamma), beta)


def feeds(model: onnx.ModelProto, sizes: Mapping[str, int] | None = None, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs: floats around 1; integers 0 and 1, the first column 1 so that no mask hides everything."""
    sizes = {"B": 2, "S": 5, "T": 7} | dict(sizes or {})
    random = np.random.default_rng(seed)
    initial = {tensor.name for tensor in model.graph.initializer}
    made = {}
    for value in model.graph.input:
        if value.name in initial:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else sizes[d.dim_param] for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if np.issubdtype(dtype, np.integer) or np.issubdtype(dtype, np.bool_):
            array = np.asarray(random.integers(0, 2, shape))
            if array.size and shape:
                array[..., 0] = 1
        else:
            array = random.standard_normal(shape)
        made[value.name] = np.asarray(array).astype(dtype)
    return made


def run(model: onnx.ModelProto, feed: Mapping[str, np.ndarray], optimise: bool = False) -> list[np.ndarray]:
    """The outputs in ONNX Runtime without our library."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, dict(feed))


def assert_agree(
    before: onnx.ModelProto, after: onnx.ModelProto, feed: Mapping[str, np.ndarray], tol: float, optimise: bool = True
) -> None:
    """Both models give the same outputs, of the same names, types and shapes; `optimise` the second one."""
    assert [o.name for o in before.graph.output] == [o.name for o in after.graph.output]
    for value, a, b in zip(before.graph.output, run(before, feed), run(after, feed, optimise), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype, value.name
        np.testing.assert_allclose(b.astype(np.float64), a.astype(np.float64), rtol=tol, atol=tol, err_msg=value.name)


def fused(
    model: onnx.ModelProto,
    level: str = "full",
    sizes: Mapping[str, int] | None = None,
    tol: float = 2e-5,
    optimise: bool = True,
) -> FusionResult:
    """Fuse, and check what holds for every model: valid, numerically the same, accounted for, the input untouched."""
    before = model.SerializeToString(deterministic=True)
    result = fuse(model, level=level)
    assert model.SerializeToString(deterministic=True) == before, "the caller's model was changed"
    account(result, model)
    known = {node_name(node) for node in gs.import_onnx(model).nodes}
    known |= {name for node in model.graph.node for name in (*node.input, *node.output)}
    assert all({miss.node, miss.anchor} <= known for miss in result.misses), result.misses
    if not result.fused:
        assert result.model is model and result.messages
        return result
    onnx.checker.check_model(result.model, full_check=True)
    for seed in range(2):
        assert_agree(model, result.model, feeds(model, sizes, seed), tol, optimise)
    again = fuse(result.model, level=level)
    assert again.model.SerializeToString() == result.model.SerializeToString()
    return result


def account(result: FusionResult, original: onnx.ModelProto) -> None:
    """What was expected is fused or missed with a reason; what was fused is in the model."""
    present: dict[str, int] = {}
    for node in result.model.graph.node:
        if node.domain == DOMAIN:
            present[node.op_type] = present.get(node.op_type, 0) + 1
    from_passes = {op: present.pop(op) for op in list(present) if OPS[op].by_pass}
    assert present == result.fused
    attentions = sum(present.get(op, 0) for op in ("FusedAttention", "AddQKVBias"))
    gemms = linear_layers(result.model, original)
    assert from_passes == ({"FusedGemm": attentions + len(gemms)} if attentions or gemms else {})
    missed: dict[str, int] = {}
    for miss in result.misses:
        assert miss.reason and miss.node and miss.anchor, miss
        assert "\n" not in str(miss)
        missed[miss.op] = missed.get(miss.op, 0) + 1
    in_parts = [part.op for part in result.parts if part.miss is None]
    assert {op: in_parts.count(op) for op in in_parts} == result.fused
    assert [part.miss for part in result.parts if part.miss is not None] == result.misses
    assert all(0 <= part.layer <= result.layers + 1 for part in result.parts)
    for op, count in result.expected.items():
        assert count == result.fused.get(op, 0) + missed.get(op, 0), (op, result)
    assert set(missed) | set(result.fused) <= set(result.expected)


def linear_layers(model: onnx.ModelProto, original: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The FusedGemms beside no attention; each, with the Add behind it, gives what a linear layer gave."""
    made = {name: node for node in original.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = []
    for gemm in [n for n in model.graph.node if n.domain == DOMAIN and n.op_type == "FusedGemm"]:
        assert len(gemm.input) == 2
        behind = readers.get(gemm.output[0], [])
        if [node.op_type for node in behind] in (["FusedAttention"], ["AddQKVBias"]):
            continue
        found.append(gemm)
        name = gemm.output[0]
        while name not in made:
            (node,) = readers[name]
            assert node.op_type in ("Add", "Reshape")
            (name,) = node.output
        node = made[name]
        if node.op_type == "Reshape":
            node = made[node.input[0]]
        if node.op_type == "Add":
            (product,) = (name for name in node.input if name in made and made[name].op_type == "MatMul")
            node = made[product]
        assert node.op_type in ("MatMul", "Gemm"), node
    return found


def refused(model: onnx.ModelProto, reason: str, op: str, level: str = "full", **options: Any) -> FusionResult:
    """`op` is expected, and not fused for this reason; everything else holds as for any model."""
    result = fused(model, level, **options)
    assert not result.fused.get(op), result.fused
    reasons = [str(miss) for miss in result.misses if miss.op == op]
    assert any(reason in text for text in reasons), reasons or f"no miss of {op}: {result}"
    return result


def normalised(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, str]]:
    """How many nodes of each dialect op normalising gives, and why it gave none: node name -> reason."""
    graph = FusionGraph(*split(model))
    clutter.remove(graph)
    reasons: dict[str, str] = {}
    for module in NORMALIZERS:
        for node in module.anchors(graph):
            if graph.is_live(node):
                name = node_name(node)
                try:
                    module.rewrite(graph, node)
                except NoMatch as miss:
                    reasons[name] = miss.reason
    counts: dict[str, int] = {}
    for node in graph.gs.nodes:
        if graph.is_live(node) and node.outputs and graph.is_normalisation(node):
            counts[node.op] = counts.get(node.op, 0) + 1
    return counts, reasons
