"""A plugin's enqueue and the kernel called directly: the same launches, in the same time.

    python -m pytest tests/gpu/test_tensorrt_speed.py -s     # prints the table

Both are captured in CUDA graphs of many calls on the same tensors, which are replayed in turn, so that what is compared
is a ratio of times taken within a millisecond of each other. How far two graphs of the direct call lie apart, and the
spread of the ratios, are allowed on top of the 3%. Set up as for test_tensorrt_plugins.py.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from bertfuse.measuring import cuda_graphs  # noqa: E402
from bertfuse.qualify import driver  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.gpu.harness import GPU  # noqa: E402
from tests.gpu.kernels import Bound, constants, library_file, native  # noqa: E402
from tests.gpu.tensorrt_host import Context, Host, host_file, plugin_file  # noqa: E402
from tests.gpu.test_tensorrt_plugins import BERT, LONG, Layer, _without_host  # noqa: E402

pytestmark = [*GPU, pytest.mark.skipif(_without_host() is not None, reason=str(_without_host()))]

CALLS, ROUNDS, MOST = 32, 21, 1.03
PROFILE = ((1, 16), (8, 128), (32, 384))
LAYERS = (
    ("EmbedLayerNorm", BERT),
    ("FusedGemm", BERT),
    ("FusedAttention", BERT),
    ("FusedGemmLayerNorm", BERT),
    ("FusedGemmGelu", BERT),
    ("FusedGemmLayerNorm", LONG),
)


@pytest.fixture(scope="module")
def host() -> Host:
    return Host(host_file(), plugin_file())


def op_inputs(layer: Layer, inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """In the op's order, None where the layer has none."""
    given = dict(zip((tensor.name for tensor in layer.present), inputs, strict=True))
    return [given.get(tensor.name) for tensor in layer.spec.inputs]


def contexts(host: Host, layer: Layer, inputs: list[torch.Tensor]) -> tuple[Context, Context]:
    """Of an engine that knows its constant inputs, and of one that does not."""
    plain = layer.build(host, PROFILE)
    layer.attributes = layer.attributes | {"constant_inputs": constants(op_inputs(layer, inputs))}
    told = layer.build(host, PROFILE)
    del layer.attributes["constant_inputs"]
    made = told.attach(), plain.attach()
    for context in made:
        context.set_shapes([tuple(tensor.shape) for tensor in inputs])
    return made


def direct(layer: Layer, inputs: list[torch.Tensor], outputs: list[torch.Tensor], **fields) -> Bound:
    bound = layer.bound(inputs, outputs)
    bits = constants(op_inputs(layer, inputs))
    values = list(({attr.name: attr.default for attr in layer.spec.attributes} | layer.attributes).values())
    return Bound(layer.op, bound._keep[0], outputs, values, constant_inputs=bits, **fields)


def graph_of(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    return cuda_graphs.capture([call] * CALLS)


def microseconds(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Of one call."""
    return cuda_graphs.microseconds(graph, replays) / CALLS


def in_turn(graphs: list[torch.cuda.CUDAGraph]) -> list[list[float]]:
    """Microseconds of a call, by graph and round; every second round goes backwards."""
    replays = max(1, round(1000 / (microseconds(graphs[0], 2) * CALLS)))
    times: list[list[float]] = [[] for _ in graphs]
    for turn in range(ROUNDS):
        order = list(range(len(graphs)))
        for index in order[:: -1 if turn % 2 else 1]:
            times[index].append(microseconds(graphs[index], replays))
    return times


def host_microseconds(call: Callable[[], object]) -> float:
    """Of the thread that calls; few enough for the queue of launches not to fill."""
    best = float("inf")
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            call()
        best = min(best, (time.perf_counter() - start) * 1e4)
    torch.cuda.synchronize()
    return best


def launches(call: Callable[[], object]) -> list[tuple[object, ...]]:
    """Name, grid, block and shared memory of each kernel that the call launches."""
    driver.Context(0)
    stream = driver.Stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle.value)):
        call()  # what is asked once of a kernel is not asked while capturing
        torch.cuda.synchronize()
        with stream.capture() as graph:
            call()
    try:
        return graph.launches()
    finally:
        graph.destroy()


@pytest.mark.parametrize("size", [(1, 128), (8, 128), (32, 128)], ids=str)
@pytest.mark.parametrize(("op", "sizes"), LAYERS, ids=str)
def test_as_fast_as_the_kernel(host, op, sizes, size):
    layer = Layer(op, sizes, torch.float16)
    inputs = layer.inputs(*size)
    told, plain = contexts(host, layer, inputs)
    outputs = [layer.empty(told.set_shapes([tuple(tensor.shape) for tensor in inputs])) for _ in range(2)]
    bound = direct(layer, inputs, outputs[1])
    assert bound.call.workspace_size <= told.engine.workspace
    enqueue = lambda: told.enqueue(inputs, outputs[0])  # noqa: E731
    assert launches(enqueue) == launches(bound.run)
    graphs = [graph_of(call) for call in (bound.run, enqueue, bound.run, lambda: plain.enqueue(inputs, outputs[0]))]
    for _attempt in range(3):  # somebody else may have been on the GPU
        kernel, plugin, again, untold = in_turn(graphs)
        ratios = sorted(a / b for a, b in zip(plugin, kernel, strict=True))
        apart = abs(statistics.median(a / b for a, b in zip(again, kernel, strict=True)) - 1)
        ratio, spread = statistics.median(ratios), (ratios[3 * ROUNDS // 4] - ratios[ROUNDS // 4]) / 2
        if ratio <= MOST + apart + spread:
            break
    raw = told.library.bertfuse_trt_host_enqueue
    ins, outs = ((ctypes.c_void_p * len(t))(*(x.data_ptr() for x in t)) for t in (inputs, outputs[0]))
    scratch = told.workspace.data_ptr() if told.engine.workspace else None
    stream = torch.cuda.current_stream().cuda_stream
    bound.call.stream = stream
    error = native.Error()
    on_host = (
        host_microseconds(lambda: bound.kernel.run(ctypes.byref(bound.call), ctypes.byref(error))),
        host_microseconds(lambda: raw(told.pointer, ins, outs, scratch, stream)),
    )
    times = (statistics.median(values) for values in (kernel, plugin, untold))
    print(
        f"{op:20} K={sizes['K']:<5} {size[0]:3}x{size[1]:<4}",
        "kernel {:7.2f} us, plugin {:7.2f}, not told of constants {:7.2f};".format(*times),
        f"ratio {ratio:.3f} (spread {spread:.3f}, two of the kernel {apart:.3f});",
        "on the host {:.2f} and {:.2f} us".format(*on_host),
    )
    assert ratio <= MOST + apart + spread


SETTINGS = """
import torch
from tests.gpu.test_tensorrt_speed import *
host = Host(host_file(), plugin_file())
layer = Layer("FusedGemm", BERT, getattr(torch, {dtype!r}))
inputs = layer.inputs(4, 128)
told, _ = contexts(host, layer, inputs)
outputs = layer.empty(told.set_shapes([tuple(tensor.shape) for tensor in inputs]))
print(launches(lambda: told.enqueue(inputs, outputs)))
"""


def launched_with(dtype: str, **environment: str) -> str:
    """What a plugin launches in a process with these settings."""
    script = SETTINGS.format(dtype=dtype)
    env = {**os.environ, **environment}
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout.splitlines()[-1]


def test_settings_reach_the_plugins(tmp_path):
    """BERTFUSE_TF32 and BERTFUSE_TUNING: what is launched is what the kernel launches when it is told so."""
    layer = Layer("FusedGemm", BERT, torch.float32)
    inputs = layer.inputs(4, 128)
    outputs = layer.empty([(4, 128, 768)])
    exact, rounded = (launches(direct(layer, inputs, outputs, flags=flags).run) for flags in (0, native.ALLOW_TF32))
    assert exact != rounded
    assert launched_with("float32") == str(exact)
    assert launched_with("float32", BERTFUSE_TF32="1") == str(rounded)

    layer = Layer("FusedGemm", BERT, torch.float16)
    inputs = layer.inputs(4, 128)
    outputs = layer.empty([(4, 128, 768)])
    usual = direct(layer, inputs, outputs)
    name = native.tactic_name(layer.op, usual.call, -1, library_file())
    other = next(
        tactic
        for tactic in range(usual.tactics())
        if native.tactic_name(layer.op, usual.call, tactic, library_file()) != name
    )
    rows = [
        next(native.gpus(library_file())).identity.decode(),
        native.problem(layer.op, usual.call, library_file()),
        native.tactic_name(layer.op, usual.call, other, library_file()),
    ]
    import bertfuse

    tuning = tmp_path / "tuning.tsv"
    tuning.write_text(f"bertfuse tuning 1, library {bertfuse.__version__}\n" + "\t".join(rows) + "\n")
    tuned = launches(direct(layer, inputs, outputs, tactic=other).run)
    assert tuned != launches(usual.run)
    assert launched_with("float16", BERTFUSE_TUNING=str(tuning)) == str(tuned)
