"""Fused models in TensorRT 8.6 itself: built, serialised, loaded and run, against PyTorch's float32.

On a GPU host, with what `cmake -DBERTFUSE_GPU_TESTS=ON -DTENSORRT_ROOT=…` builds where the headers of TensorRT 8.6 and
of its ONNX parser are in one folder:
    export BERTFUSE_TRT_RUNNER_LIBRARY=lib/libbertfuse_trt_runner.so BERTFUSE_TRT_LIBRARY=lib/libbertfuse_trt.so
    export BERTFUSE_TENSORRT8=…/site-packages/tensorrt    # of PyPI's tensorrt 8.6.0, for any Python
    python -m pytest tests/gpu/test_tensorrt_engines.py
cuBLAS 12 and cuDNN 8 must be on LD_LIBRARY_PATH: the parser's library asks for libnvinfer_plugin.so.8, which asks for
them. BERTFUSE_TRT_LIBRARY_WITHOUT_CUDA names a libbertfuse_trt.so of -DBERTFUSE_CUDA=OFF, for one test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertfuse.export import export_model  # noqa: E402
from bertfuse.graph_rewrite import fuse_file  # noqa: E402
from bertfuse.runtime import library_path  # noqa: E402
from bertfuse.runtime.ragged_inputs import ragged  # noqa: E402
from bertfuse.runtime.trt.model import prepare  # noqa: E402
from tests import ROOT  # noqa: E402
from tests.gpu.tensorrt_runner import Engine, Runner, RunnerError, files  # noqa: E402
from tests.gpu.test_models import SIZES, build, inputs  # noqa: E402

_MISSING = {"runner", "infer", "parser"} - set(files())
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(_MISSING), reason=f"TensorRT 8: no {', '.join(sorted(_MISSING))}"),
]
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
WIDE = ((1, 1), (8, 128), (128, 512))
# Of the norm. Chosen before any engine was run: to be narrowed by what is measured.
MOST = {"fp32": 1e-4, "fp16": 1e-2}


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(library_path("tensorrt"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=500, hidden_size=384, num_hidden_layers=3, num_attention_heads=12, intermediate_size=1536
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    return model, export_model(model, tmp_path_factory.mktemp("small"), exporter="torchscript", opset=17)


def prepared(source: Path, dtype: str, padding: str = "keep") -> tuple[Path, int]:
    """The file for TensorRT's parser, and how many fused ops are in it."""
    made, target = source.with_name(f"{padding}-{dtype}.onnx"), source.with_name(f"{padding}-{dtype}.trt.onnx")
    assert not fuse_file(source, made, dtype=dtype, padding=padding).misses
    return target, sum(prepare(made, target, plugins=True, older_parser=True).ops.values())


def engine(runner: Runner, source: Path, dtype: str, *profiles: tuple, padding: str = "keep") -> Engine:
    file, ops = prepared(source, dtype, padding)
    plan, layers = runner.build(file, [dict.fromkeys(TOKENS, bounds) for bounds in profiles], dtype == "fp16")
    assert layers == ops
    return runner.load(plan)


def wanted(model: Any, feed: dict[str, np.ndarray]) -> torch.Tensor:
    with torch.inference_mode():
        return model.cuda().float()(**{name: torch.from_numpy(x).cuda() for name, x in feed.items()}).last_hidden_state


def check(outputs: dict[str, torch.Tensor], reference: torch.Tensor, mask: np.ndarray, dtype: str) -> None:
    seen = torch.from_numpy(mask).cuda().bool()
    got = outputs["last_hidden_state"].float()[seen]
    assert torch.isfinite(got).all()
    error = ((got - reference[seen]).norm() / reference[seen].norm()).item()
    print(f"{tuple(mask.shape)} {dtype}: error {error:.2e}")
    assert error < MOST[dtype]


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("name", ["minilm", "bert-base", "bert-large"])
def test_models_in_one_wide_profile(name: str, dtype: str, runner: Runner, tmp_path: Path) -> None:
    model = build(name)
    source = export_model(model, tmp_path, exporter="torchscript", attention="eager", opset=17)
    context = engine(runner, source, dtype, WIDE).context()
    for size in (*SIZES, (1, 1), (128, 512)):
        feed = inputs(model.config.vocab_size, *size)
        check(context.run(feed), wanted(model, feed), feed["attention_mask"], dtype)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_without_padding(dtype: str, runner: Runner, small: tuple[Any, Path]) -> None:
    model, source = small
    context = engine(runner, source, dtype, WIDE, padding="remove").context()
    for size in SIZES:
        feed = inputs(500, *size)
        check(context.run(feed), wanted(model, feed), feed["attention_mask"], dtype)


def test_ragged(runner: Runner, small: tuple[Any, Path]) -> None:
    model, source = small
    file, ops = prepared(source, "fp16", "ragged")
    ids = ((1,), (1024,), (16384,))
    profile = {
        "input_ids": ids,
        "token_type_ids": ids,
        "cu_seqlens": ((2,), (9,), (129,)),
        "max_seqlen": ((1,), (128,), (512,)),
    }
    plan, layers = runner.build(file, [profile], True)
    assert layers == ops
    context = runner.load(plan).context()
    for size in SIZES:
        feed = inputs(500, *size)
        rows = wanted(model, feed)[torch.from_numpy(feed["attention_mask"]).cuda().bool()]
        got = context.run(ragged(feed))["last_hidden_state"].float().view_as(rows)
        assert ((got - rows).norm() / rows.norm()).item() < MOST["fp16"]


def test_no_layer_converts_between_ours(runner: Runner, small: tuple[Any, Path]) -> None:
    """Weights reach plugins as they are, and activations too: what is between two plugin layers computes something."""
    layers = engine(runner, small[1], "fp16", WIDE).layers()
    kinds = [layer["LayerType"] for layer in layers]
    places = [place for place, kind in enumerate(kinds) if kind.startswith("Plugin")]
    between = kinds[places[0] : places[-1] + 1]
    assert len(places) >= 12 and "Reformat" not in between, between


def test_several_profiles(runner: Runner, small: tuple[Any, Path]) -> None:
    model, source = small
    sizes = ((1, 128), (32, 384), (8, 128))
    loaded = engine(runner, source, "fp16", *(((size,) * 3) for size in sizes))
    context = loaded.context()
    for number, size in [*enumerate(sizes), (0, sizes[0])]:
        context.set_profile(number)
        feed = inputs(500, *size)
        check(context.run(feed), wanted(model, feed), feed["attention_mask"], "fp16")
    context.set_profile(0)
    with pytest.raises(RunnerError, match="setInputShape"):
        context.bind(inputs(500, 2, 128))


def test_captured_in_a_graph(runner: Runner, small: tuple[Any, Path]) -> None:
    context = engine(runner, small[1], "fp16", WIDE).context()
    feed = inputs(500, 8, 128)
    plain = context.run(feed)["last_hidden_state"].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        context.enqueue()
    context._outputs["last_hidden_state"].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(context._outputs["last_hidden_state"], plain)


def test_contexts_and_streams_at_once(runner: Runner, small: tuple[Any, Path]) -> None:
    loaded = engine(runner, small[1], "fp16", WIDE, WIDE)
    feeds = [inputs(500, *size) for size in SIZES]
    alone = [loaded.context().run(feed)["last_hidden_state"].clone() for feed in feeds]
    failures: list[str] = []

    # Here, one after the other: TensorRT gives the first context the first profile, and none to the second.
    contexts = [loaded.context() for _ in range(2)]
    for number, context in enumerate(contexts):
        context.set_profile(number)
    torch.cuda.synchronize()

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                context = contexts[number]
                for _ in range(5):
                    for feed, expected in zip(feeds, alone, strict=True):
                        if not torch.equal(context.run(feed)["last_hidden_state"], expected):
                            failures.append(f"{number}: {feed['input_ids'].shape}")
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def used_on_the_device() -> int:
    """Bytes, by this process; by all of them where that cannot be told."""
    free, total = torch.cuda.mem_get_info()
    try:
        import pynvml
    except ImportError:
        return total - free
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    by_process = {process.pid: process.usedGpuMemory for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}
    return by_process.get(os.getpid()) or total - free


def test_a_hundred_engines_without_growth(runner: Runner, small: tuple[Any, Path]) -> None:
    """Built, serialised, loaded, run and given back: neither host nor device memory grows after the tenth."""
    psutil = pytest.importorskip("psutil")
    file, _ = prepared(small[1], "fp16")
    feed = inputs(500, 2, 64)

    def once() -> tuple[int, int]:
        plan, _ = runner.build(file, [dict.fromkeys(TOKENS, ((1, 16), (2, 64), (4, 128)))], True)
        assert torch.isfinite(runner.load(plan).context().run(feed)["last_hidden_state"]).all()
        torch.cuda.empty_cache()
        return psutil.Process().memory_info().rss, used_on_the_device()

    seen: list[tuple[int, int]] = []
    for number in range(1, 101):
        seen.append(once())
        if number % 10 == 0:
            host, device = (now - before for now, before in zip(seen[-1], seen[9], strict=True))
            print(f"{number} engines: host grew by {host / 1e6:.1f} MB, device by {device / 1e6:.1f} MB", flush=True)
    assert seen[-1][0] - seen[9][0] < 50e6 and seen[-1][1] <= seen[9][1]


def test_bad_plans_are_refused(runner: Runner, small: tuple[Any, Path]) -> None:
    file, _ = prepared(small[1], "fp16")
    plan, _ = runner.build(file, [dict.fromkeys(TOKENS, ((1, 16), (2, 64), (4, 128)))], True)
    tag, version = (plan[:place] + bytes([plan[place] ^ 1]) + plan[place + 1 :] for place in (0, 4))
    for bad in (b"no plan", plan[: len(plan) // 2], plan[:-100], tag, version):
        with pytest.raises(RunnerError, match="deserializeCudaEngine"):
            runner.load(bad)
    assert runner.load(plan).context().run(inputs(500, 2, 64))


def test_layers_of_another_release_are_refused(runner: Runner, small: tuple[Any, Path]) -> None:
    file, ops = prepared(small[1], "fp16")
    plan, _ = runner.build(file, [dict.fromkeys(TOKENS, ((1, 16), (2, 64), (4, 128)))], True)
    mark = b"bertfuse fields 1"
    assert plan.count(mark) >= ops
    with pytest.raises(RunnerError, match="cannot be read; build the engine again"):
        runner.load(plan.replace(mark, b"bertfuse fields 0"))


_ELSEWHERE = """
import sys
from pathlib import Path
from tests.gpu.tensorrt_runner import Runner, RunnerError
from tests.gpu.test_models import inputs
try:
    runner = Runner(Path(sys.argv[2]) if sys.argv[2:] else None)
    runner.load(Path(sys.argv[1]).read_bytes()).context().run(inputs(500, 2, 64))
except RunnerError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("library", ["none", "without CUDA"])
def test_a_plan_without_its_kernels_is_refused(
    library: str, runner: Runner, small: tuple[Any, Path], tmp_path: Path
) -> None:
    """In a process of its own, which ends as any other."""
    named = os.environ.get("BERTFUSE_TRT_LIBRARY_WITHOUT_CUDA")
    if library != "none" and named is None:
        pytest.skip("BERTFUSE_TRT_LIBRARY_WITHOUT_CUDA is not set")
    file, _ = prepared(small[1], "fp16")
    plan, _ = runner.build(file, [dict.fromkeys(TOKENS, ((1, 16), (2, 64), (4, 128)))], True)
    (tmp_path / "plan").write_bytes(plan)
    command = [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "plan"), *([str(named)] if library != "none" else [])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    said = "deserializeCudaEngine failed" if library == "none" else "was built without CUDA kernels"
    assert done.stdout.startswith("refused:") and said in done.stdout
