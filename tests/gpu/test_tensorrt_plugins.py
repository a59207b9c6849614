"""The TensorRT plugins executed by a host that plays TensorRT's part: every op, dtype and set of inputs over dynamic
shapes, bitwise equal to the kernel called directly (which is what ONNX Runtime gets) and close to the float64 oracle.

On a GPU host, with the package installed and what `cmake -DBERTFUSE_CUDA=ON -DBERTFUSE_GPU_TESTS=ON` builds in lib/:
    export BERTFUSE_TRT_HOST_LIBRARY=lib/libbertfuse_trt_host.so  # libbertfuse_trt.so beside it, or:
    export BERTFUSE_TRT_LIBRARY=lib/libbertfuse_trt.so
    python -m pytest tests/gpu/test_tensorrt_plugins.py
With BERTFUSE_TRT_HOST_FORM=8 the host plays TensorRT 8's part, through IPluginV2DynamicExt.
BERTFUSE_CUDA_TEST_LIBRARY names another library with the kernels to compare with than the package's. Under
compute-sanitizer: python -m tests.gpu.sanitize --plugins
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bertfuse.graph_rewrite.dialect.reference import oracle  # noqa: E402
from bertfuse.graph_rewrite.ops import MODEL_OPS, OPS  # noqa: E402
from tests.gpu.harness import FLOATS, GPU, check, near_one, poisoned, randint, randn, turns  # noqa: E402
from tests.gpu.kernels import Bound  # noqa: E402
from tests.gpu.packed import expect  # noqa: E402
from tests.gpu.tensorrt_host import Engine, Host, HostError, Input, host_file, plugin_file  # noqa: E402


def _without_host() -> str | None:
    if host_file() is None:
        return "BERTFUSE_TRT_HOST_LIBRARY is not set"
    missing = [str(file) for file in (host_file(), plugin_file()) if not file.is_file()]
    return f"{', '.join(missing)}: no such library" if missing else None


pytestmark = [*GPU, pytest.mark.skipif(_without_host() is not None, reason=str(_without_host()))]


@dataclass(frozen=True)
class Sizes:
    """Axis symbols that weights fix, and a number of heads. Tables are longer than any sequence here."""

    label: str
    symbols: Mapping[str, int]
    heads: int
    others: int = 64
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.label

    def __getitem__(self, symbol: str) -> int:
        return self.symbols.get(symbol, self.others)


BERT = Sizes("bert", dict(K=768, N=768, H=768, V=1000, P=512, T=2), 12)
WIDE = Sizes("wide", dict(K=4096, N=1024, H=1024, V=1000, P=512, T=2), 16, attributes={"approximate": "tanh"})
LONG = Sizes("long", dict(K=3072, N=768, H=768), 12)
ODD = Sizes("odd", dict(K=31, N=101, H=77, V=53, P=600, T=3), 7, attributes={"epsilon": 1e-5})

# Of the contexts that run at once. compute-sanitizer keeps books of every launch under way: fewer there.
ROUNDS = int(os.environ.get("BERTFUSE_TEST_ROUNDS", "20"))

# (batch, sequence): lowest, usual and highest of the profile.
PROFILE = ((1, 1), (2, 64), (4, 160))
SWEEP = ((2, 64), (1, 1), (4, 160), (1, 160), (4, 1), (3, 37), (1, 128))


def absences(op: str) -> list[frozenset[str]]:
    """Every set of optional inputs that may be left out."""
    spec = OPS[op]
    names = spec.optional_inputs
    subsets = itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))
    return [
        frozenset(absent)
        for absent in subsets
        if not any(tensor.needs in absent and tensor.name not in absent for tensor in spec.inputs if tensor.needs)
    ]


class Layer:
    """One op with sizes, dtypes and absent inputs, as a plugin layer and as a call of the kernel."""

    def __init__(self, op: str, sizes: Sizes, dtype, absent=frozenset(), index=torch.int64, packed=False) -> None:
        self.op, self.spec, self.sizes = op, OPS[op], sizes
        self.dtypes = {"T": dtype, "W": dtype, "I": index, "C": torch.int32, "S": torch.float32}
        self.present = [
            t for t in self.spec.inputs if t.name not in absent and not t.of_quantized_form and (packed or not t.packed)
        ]
        known = {
            "num_heads": sizes.heads,
            "kv_num_heads": sizes.heads,
            "scale": 1 / math.sqrt(sizes["H"] // sizes.heads),
            **sizes.attributes,
        }
        self.attributes = {
            attr.name: known.get(attr.name, attr.default)
            for attr in self.spec.attributes
            if attr.default is None or attr.name in known
        }

    def shape(self, tensor, batch: int, sequence: int) -> tuple[int, ...]:
        head = self.sizes["H"] // self.sizes.heads
        free = {"B": batch, "S": sequence, "C": sequence, "D": head, "R": head // 2, "J": 1, "G": self.sizes.heads}
        if self.op == "FusedAttentionVariant":
            free |= {"P": 2, "M": 64}  # vectors by distance: for Q and for K
        if self.op == "FusedGemmRotary":
            free |= {"N": 3 * self.sizes["H"]}
        shape = (batch, sequence) if tensor.leading else ()
        for axis in tensor.trailing:
            size = self.attributes[axis.symbol] if axis.is_attribute else free.get(axis.symbol, self.sizes[axis.symbol])
            shape += (axis.times(self.attributes) * size // (self.attributes[axis.divisor] if axis.divisor else 1),)
        return shape

    def shapes(self, batch: int, sequence: int) -> list[tuple[int, ...]]:
        return [self.shape(tensor, batch, sequence) for tensor in self.present]

    def build(self, host: Host, profile=PROFILE) -> Engine:
        bounds = [self.shapes(*sizes) for sizes in profile]
        inputs = [
            Input(self.dtypes[tensor.dtype], *shapes, own_type=tensor.dtype == "S")
            for tensor, *shapes in zip(self.present, *bounds, strict=True)
        ]
        return host.build(self.op, self.attributes, inputs)

    def inputs(self, batch: int, sequence: int) -> list[torch.Tensor]:
        """Random values: ids within their tables, the scale of a product or a rotation that of its input."""
        tables = {"ids": "V", "token_type_ids": "T", "position_ids": "P"}
        rotation = turns(sequence, self.sizes["H"] // self.sizes.heads // 2, self.dtypes["T"])
        values = []
        for tensor, shape in zip(self.present, self.shapes(batch, sequence), strict=True):
            if tensor.name == "row_count":
                values.append(torch.tensor(batch * sequence * 2 // 3, dtype=torch.int32).cuda())
            elif tensor.name == "places":
                values.append(randint(sequence, shape, torch.int32))
            elif tensor.dtype == "I":
                below = self.sizes[tables[tensor.name]] if tensor.name in tables else 2
                values.append(randint(below, shape, self.dtypes["I"]))
            elif tensor.name == "frequencies":
                values.append(10000.0 ** -torch.rand(shape, device="cuda"))
            elif tensor.name in ("cos", "sin"):
                values.append(rotation[tensor.name == "sin"])
            elif tensor.name.endswith("gamma"):
                values.append(near_one(shape[-1], self.dtypes["T"]).view(shape))
            else:
                # With positions of deviation 1, float16's rounding of Q and K takes nearly all of the tolerance.
                gain = 0.5 if tensor.name == "positions" else 1.0
                gain = 1 / math.sqrt(shape[-1]) if tensor.name == "weight" else gain  # (a scalar has no axis)
                values.append(randn(*shape, dtype=self.dtypes["T"], gain=gain))
        return values

    def bound(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> Bound:
        """The kernel itself on the same tensors."""
        given = dict(zip((tensor.name for tensor in self.present), inputs, strict=True))
        defaults = {attr.name: attr.default for attr in self.spec.attributes}
        return Bound(
            self.op,
            [given.get(tensor.name) for tensor in self.spec.inputs],
            outputs,
            list((defaults | self.attributes).values()),
        )

    def expected(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """float64, by the op's own description."""
        arrays = {
            tensor.name: (value.double() if tensor.is_float else value).cpu().numpy()
            for tensor, value in zip(self.present, inputs, strict=True)
        }
        return [torch.from_numpy(array).cuda() for array in oracle(self.op, arrays, self.attributes)]

    def empty(self, shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        kinds = (self.dtypes[tensor.dtype] for tensor in self.spec.outputs)
        return [poisoned(*shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)]


def same(outputs: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    """Bit for bit, not-a-number included."""
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(outputs, wanted, strict=True))


@pytest.fixture(scope="module")
def host() -> Host:
    return Host(host_file(), plugin_file())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", [BERT, ODD], ids=str)
@pytest.mark.parametrize("op", MODEL_OPS)
def test_shapes_of_a_profile(host, op, sizes, dtype):
    """One context through shapes up and down: each result bitwise the kernel's and close to the oracle."""
    for absent in absences(op):
        layer = Layer(op, sizes, dtype, absent)
        engine = layer.build(host)
        assert engine.output_types == [layer.dtypes[tensor.dtype] for tensor in layer.spec.outputs]
        context = engine.attach()
        for batch, sequence in SWEEP:
            where = f"{op} without {sorted(absent)} at {batch} x {sequence}"
            inputs = layer.inputs(batch, sequence)
            shapes = context.set_shapes([tuple(tensor.shape) for tensor in inputs])
            outputs, direct = layer.empty(shapes), layer.empty(shapes)
            context.workspace.fill_(0xFF)
            context.enqueue(inputs, outputs)
            layer.bound(inputs, direct).run()
            torch.cuda.synchronize()
            assert context.guard_is_whole(), f"{where}: wrote behind the workspace"
            check(op, outputs, layer.expected(inputs))
            assert same(outputs, direct), f"{where}: not what the kernel gives"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", [BERT, ODD], ids=str)
@pytest.mark.parametrize("op", [op for op in MODEL_OPS if "Gemm" in op])
def test_small_counts_of_packed_rows(host, op, sizes, dtype):
    """Of packed rows those that are real: two thirds of them here."""
    layer = Layer(op, sizes, dtype, packed=True)
    context = layer.build(host).attach()
    packing = Layer("PackTokens", sizes, dtype)
    packing_context = packing.build(host).attach()
    for batch, sequence in SWEEP:
        inputs = layer.inputs(batch, sequence)
        (rows,) = (int(t) for t, given in zip(inputs, layer.present, strict=True) if given.name == "row_count")
        # What was packed before told each library, the plugins' and the kernels', how many rows to expect, by which it
        # chooses a tactic: all of them now.
        (mask,) = packing.inputs(batch, sequence)
        packed = packing_context.set_shapes([tuple(mask.shape)])
        counts = [torch.zeros(shape, dtype=torch.int32, device="cuda") for shape in packed]
        packing_context.enqueue([mask.fill_(1)], counts)
        expect(batch * sequence, batch * sequence)
        for tensor, given in zip(layer.present, inputs, strict=True):
            if tensor.leading:
                given.view(-1, given.shape[-1])[rows:] = float("nan")
        shapes = context.set_shapes([tuple(tensor.shape) for tensor in inputs])
        outputs, direct = layer.empty(shapes), layer.empty(shapes)
        context.workspace.fill_(0xFF)
        context.enqueue(inputs, outputs)
        layer.bound(inputs, direct).run()
        torch.cuda.synchronize()
        assert context.guard_is_whole(), f"{op} at {batch} x {sequence}: wrote behind the workspace"
        width = shapes[0][-1]
        got, wanted = (values[0].view(-1, width)[:rows] for values in (outputs, direct))
        assert torch.isfinite(got).all() and same([got], [wanted]), (
            f"{op} at {batch} x {sequence}: not what the kernel gives"
        )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("sizes", [BERT, ODD], ids=str)
@pytest.mark.parametrize("op", MODEL_OPS)
def test_small_with_int32(host, op, sizes, dtype):
    layer = Layer(op, sizes, dtype, index=torch.int32)
    context = layer.build(host).attach()
    inputs = layer.inputs(3, 33)
    outputs = layer.empty(context.set_shapes([tuple(tensor.shape) for tensor in inputs]))
    context.enqueue(inputs, outputs)
    torch.cuda.synchronize()
    assert context.guard_is_whole()
    check(op, outputs, layer.expected(inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [BERT, WIDE], ids=str)
@pytest.mark.parametrize("op", MODEL_OPS)
def test_a_wide_profile(host, op, sizes, dtype):
    """1 x 16 to 32 x 512: the workspace is enough for whatever tactic a shape of it has."""
    layer = Layer(op, sizes, dtype)
    context = layer.build(host, ((1, 16), (8, 128), (32, 512))).attach()
    random = [(int(b), int(s)) for b, s in zip(torch.randint(1, 33, (3,)), torch.randint(16, 513, (3,)), strict=True)]
    for batch, sequence in ((1, 16), (1, 128), (1, 511), (3, 170), (4, 511), (8, 128), (16, 128), (32, 512), *random):
        inputs = layer.inputs(batch, sequence)
        shapes = context.set_shapes([tuple(tensor.shape) for tensor in inputs])
        outputs, direct = layer.empty(shapes), layer.empty(shapes)
        context.enqueue(inputs, outputs)
        bound = layer.bound(inputs, direct)
        bound.run()
        torch.cuda.synchronize()
        assert context.guard_is_whole(), f"{op} at {batch} x {sequence}: wrote behind the workspace"
        if bound.call.workspace_size <= context.engine.workspace:
            assert same(outputs, direct), f"{op} at {batch} x {sequence}: not what the kernel gives"
        else:  # then the plugin has chosen a tactic that needs less, and sums in another order
            check(op, outputs, [tensor.double() for tensor in direct], 2.0)


@pytest.mark.parametrize("op", MODEL_OPS)
def test_captured_in_a_graph(host, op):
    layer = Layer(op, BERT, torch.float16)
    context = layer.build(host).attach()
    inputs = layer.inputs(4, 128)
    shapes = context.set_shapes([tuple(tensor.shape) for tensor in inputs])
    outputs = layer.empty(shapes)
    context.enqueue(inputs, outputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            context.enqueue(inputs, outputs)
    for _ in range(2):
        for tensor, fresh in zip(inputs, layer.inputs(4, 128), strict=True):
            tensor.copy_(fresh)
        direct = layer.empty(shapes)
        layer.bound(inputs, direct).run()
        for tensor in outputs:
            tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert same(outputs, direct), f"{op}: the replay gives something else"


@pytest.mark.parametrize("op", MODEL_OPS)
def test_two_contexts_at_once(host, op):
    """Two contexts of one engine, each with its thread, stream and shapes that keep changing."""
    layer = Layer(op, BERT, torch.float16)
    engine = layer.build(host)
    failures: list[str] = []
    ready = threading.Barrier(2)

    def work(sweep) -> None:
        try:
            context, stream = engine.attach(), torch.cuda.Stream()
            jobs = []
            for batch, sequence in sweep:
                inputs = layer.inputs(batch, sequence)
                shapes = [tuple(tensor.shape) for tensor in inputs]
                output_shapes = context.set_shapes(shapes)
                outputs, direct = layer.empty(output_shapes), layer.empty(output_shapes)
                layer.bound(inputs, direct).run()
                jobs.append((shapes, inputs, outputs, direct))
            torch.cuda.synchronize()
            ready.wait(timeout=60)
            with torch.cuda.stream(stream):
                for _ in range(ROUNDS):
                    for shapes, inputs, outputs, _ in jobs:
                        context.set_shapes(shapes)
                        for tensor in outputs:
                            tensor.fill_(float("nan"))
                        context.enqueue(inputs, outputs)
            stream.synchronize()
            failures.extend(f"{shapes}" for shapes, _, outputs, direct in jobs if not same(outputs, direct))
        except Exception as error:
            ready.abort()
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(sweep,)) for sweep in (SWEEP, SWEEP[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, f"{op}: {failures}"


def test_contexts_do_not_share_shapes(host):
    """Shapes set in one context leave another as it was."""
    layer = Layer("FusedGemmLayerNorm", BERT, torch.float16)
    engine = layer.build(host)
    first, second = engine.attach(), engine.attach()
    inputs = layer.inputs(2, 64)
    outputs = layer.empty(first.set_shapes([tuple(tensor.shape) for tensor in inputs]))
    second.set_shapes(layer.shapes(4, 160))
    first.enqueue(inputs, outputs)
    torch.cuda.synchronize()
    check(layer.op, outputs, layer.expected(inputs))


def test_less_workspace_than_wanted(host):
    """Shapes beyond the profile stand for a GPU that the engine was not built on: another tactic, or a clear error."""
    profile, rows = ((1, 1), (1, 8), (2, 8)), (2, 24)
    many = (2, 1 << 15)  # whose sums are more than what cuBLASLt had asked for, of few rows, too
    layer = Layer("FusedGemmLayerNorm", BERT, torch.float32)
    with pytest.raises(HostError, match=r"the engine has \d+ bytes of workspace for it, too few on this GPU"):
        layer.build(host, profile).attach().set_shapes(layer.shapes(*many))
    if torch.cuda.get_device_capability()[0] != 9:
        return  # only Hopper's kernels have tactics that need less
    # Few rows and many steps along k: parts of k, which are summed up in the workspace.
    layer = Layer("FusedGemmLayerNorm", LONG, torch.float16)
    context = layer.build(host, profile).attach()
    inputs = layer.inputs(*rows)
    outputs = layer.empty(context.set_shapes([tuple(tensor.shape) for tensor in inputs]))
    assert layer.bound(inputs, outputs).call.workspace_size > context.engine.workspace
    context.enqueue(inputs, outputs)
    torch.cuda.synchronize()
    assert context.guard_is_whole()
    check(layer.op, outputs, layer.expected(inputs))


def test_failure_is_reported(host):
    """A shape that the op cannot have: a code, the log, and the recorder of that context; the process lives on."""
    layer = Layer("FusedGemmLayerNorm", BERT, torch.float16)
    context = layer.build(host).attach()
    shapes = layer.shapes(2, 64)
    shapes[0] = (2, 64, 700)
    with pytest.raises(HostError, match="FusedGemmLayerNorm: input 'weight' axis 1 is 768, expected K = 700"):
        context.set_shapes(shapes)
    if os.environ.get("BERTFUSE_TRT_HOST_FORM") != "8":  # plugins of TensorRT 8 are given no recorder
        assert context.recorded().startswith("FusedGemmLayerNorm: input 'weight' axis 1 is 768")
    assert len(context.set_shapes(layer.shapes(2, 64))) == 1
