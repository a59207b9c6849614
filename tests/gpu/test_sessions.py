"""The kernels in ONNX Runtime's CUDA provider: against its CPU provider, captured, misused, from many threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bertfuse.graph_rewrite import oracle
from bertfuse.graph_rewrite.ops import MODEL_OPS
from bertfuse.qualify.tolerances import TOLERANCES, assert_close
from bertfuse.runtime import native
from tests.cases import FLOATS, Case, Shape, cases, make_case
from tests.one_node import as_float64, model, run, session

pytestmark = pytest.mark.gpu
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


@pytest.fixture(scope="module", autouse=True)
def _kernels(library: Path) -> None:
    if native.find_kernel("FusedAttention", path=library) is None:
        pytest.skip(f"{library} was built without CUDA kernels")


def fed(case: Case) -> dict[str, np.ndarray]:
    return {name: array for name, array in case.inputs.items() if array is not None}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", MODEL_OPS)
def test_cuda_agrees_with_cpu_and_oracle(op: str, dtype: str, library: Path) -> None:
    tolerance = TOLERANCES[op, dtype]
    for index, case in enumerate(cases(op, dtype)):
        expected = oracle(op, as_float64(case.inputs), dict(case.attributes))
        proto, shapes = model(case, constants=index % 2 == 1), [array.shape for array in expected]
        ours, theirs = (run(session(proto, library, provider), case, shapes) for provider in (CUDA, CPU))
        for gpu, cpu, wanted in zip(ours, theirs, expected, strict=True):
            assert_close(gpu, wanted, op, dtype, case.error_scale)
            # Each may be off by what the table says.
            allowed = 2 * case.error_scale * (tolerance.atol + tolerance.rtol * np.abs(wanted))
            excess = (np.abs(gpu.astype(np.float64) - cpu.astype(np.float64)) / allowed).max(initial=0.0)
            assert excess <= 1, f"{case}: CUDA and CPU differ by {excess:.2f} times what is allowed"


# Large enough that launches of several threads overlap; float16, for the tensor cores.
LARGE = {
    "AddQKVBias": Shape("large", {"B": 4, "S": 128, "H": 768}, (), {"num_heads": 12}),
    "EmbedLayerNorm": Shape("large", {"B": 8, "S": 128, "V": 1000, "H": 768, "P": 512, "T": 2}),
    "FusedAttention": Shape("large", {"B": 8, "S": 128, "H": 768}, (), {"num_heads": 12, "scale": 0.125}),
    "FusedAttentionVariant": Shape(
        "large",
        {"B": 8, "S": 128, "C": 128, "D": 64, "R": 32, "J": 1, "G": 12, "L": 64, "P": 2, "M": 64},
        (),
        {"num_heads": 12, "kv_num_heads": 12, "scale": 0.125, "window_left": 40, "window_right": 40, "bias_left": 32},
    ),
    "FusedGatedGemm": Shape("large", {"K": 768, "N": 3072}, (8, 128)),
    "FusedGemm": Shape("large", {"K": 768, "N": 2304}, (8, 128)),
    "FusedGemmGelu": Shape("large", {"K": 768, "N": 3072}, (8, 128)),
    "FusedGemmGeluLayerNorm": Shape("large", {"K": 768, "N": 768}, (4, 128)),
    "FusedGemmLayerNorm": Shape("large", {"K": 3072, "N": 768}, (1, 128)),
    "FusedGemmRotary": Shape(
        "large",
        {"B": 8, "S": 128, "K": 768, "N": 2304, "C": 128, "R": 32},
        (),
        {"num_heads": 12, "kv_num_heads": 12},
    ),
    "FusedGemmResidualNorm": Shape("large", {"K": 3072, "N": 768, "J": 1}, (1, 128)),
    "FusedRMSNorm": Shape("large", {"N": 768}, (8, 128)),
    "RotaryTables": Shape("large", {"C": 8192, "R": 32}, (8,)),
}


def large(op: str) -> Case:
    return make_case(op, LARGE[op], dtype="float16")


@pytest.mark.parametrize("constants", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("op", MODEL_OPS)
def test_cuda_gives_what_the_kernel_gives(op: str, constants: bool, library: Path) -> None:
    """To the bit: a session's results, and those of the kernel called directly, which plugins are compared with."""
    torch = pytest.importorskip("torch")
    from tests.gpu.kernels import Bound

    case = large(op)
    arrays = [case.inputs.get(tensor.name) for tensor in case.spec.inputs]
    inputs = [None if array is None else torch.from_numpy(array).cuda() for array in arrays]
    runner = session(model(case, constants=constants), library, CUDA)
    results = runner.run(None, {value.name: case.inputs[value.name] for value in runner.get_inputs()})
    outputs = [torch.full(array.shape, float("nan"), dtype=torch.float16, device="cuda") for array in results]
    attributes = [case.attributes.get(attr.name, attr.default) for attr in case.spec.attributes]
    Bound(op, inputs, outputs, attributes).run()
    torch.cuda.synchronize()
    for result, output in zip(results, outputs, strict=True):
        assert np.array_equal(result.view(np.uint16), output.cpu().numpy().view(np.uint16)), op


def test_sessions_and_threads_at_once(library: Path) -> None:
    """Two sessions of every op, two threads in each, all at once: the results are those of a run alone, to the bit.

    Each thread has its own values, or scratch that two runs share by mistake would hold the same twice.
    """
    jobs = []
    for op in MODEL_OPS:
        case = large(op)
        proto = model(case, constants=True)
        for _ in range(2):
            runner = session(proto, library, CUDA)
            for turn in range(2):
                feed = {value.name: case.inputs[value.name] for value in runner.get_inputs()}
                first = runner.get_inputs()[0].name
                feed[first] = np.roll(feed[first], turn, axis=1)
                jobs.append((op, runner, feed, runner.run(None, feed)))

    def work(job: tuple[str, onnxruntime.InferenceSession, dict[str, np.ndarray], list[np.ndarray]]) -> None:
        op, runner, feed, wanted = job
        for _ in range(25):
            for actual, expected in zip(runner.run(None, feed), wanted, strict=True):
                assert np.array_equal(actual, expected), f"{op}: another result than alone"

    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(work, job) for job in jobs]:
            future.result()


@pytest.mark.parametrize("op", MODEL_OPS)
def test_cuda_graph_follows_its_inputs(op: str, library: Path) -> None:
    """Captured once by ONNX Runtime, replayed on other values in the same buffers."""
    case = large(op)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library))
    providers = [(CUDA, {"enable_cuda_graph": "1"})]
    runner = onnxruntime.InferenceSession(model(case, constants=True).SerializeToString(), options, providers)
    plain = session(model(case, constants=True), library, CUDA)
    feed = {value.name: case.inputs[value.name] for value in runner.get_inputs()}
    binding = runner.io_binding()
    inputs = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in feed.items()}
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    outputs = []
    for value, array in zip(plain.get_outputs(), plain.run(None, feed), strict=True):
        outputs.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.full_like(array, np.nan), "cuda", 0))
        binding.bind_ortvalue_output(value.name, outputs[-1])
    first = runner.get_inputs()[0].name
    for round_ in range(4):
        feed = {**feed, first: np.roll(feed[first], round_, axis=1)}
        inputs[first].update_inplace(feed[first])
        runner.run_with_iobinding(binding)
        for actual, wanted in zip(outputs, plain.run(None, feed), strict=True):
            assert np.array_equal(actual.numpy(), wanted), f"{op}: round {round_}"


def test_bad_input_is_a_status_and_the_session_lives_on(library: Path) -> None:
    case = large("FusedGemmLayerNorm")
    runner = session(model(case), library, CUDA)
    feed = fed(case)
    wanted = runner.run(None, feed)
    with pytest.raises(Exception, match="FusedGemmLayerNorm: input 'residual'"):
        runner.run(None, {**feed, "residual": feed["residual"][:, :7]})
    with pytest.raises(Exception, match="FusedGemmLayerNorm: input 'bias'"):
        runner.run(None, {**feed, "bias": feed["bias"][:-1]})
    for actual, expected in zip(runner.run(None, feed), wanted, strict=True):
        assert np.array_equal(actual, expected)
