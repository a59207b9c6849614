"""Quantised models in TensorRT 8.6 itself, against the same file on the CPU, and against PyTorch's float32.

Needs what test_tensorrt_engines.py needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from onnx import version_converter  # noqa: E402

import bertfuse  # noqa: E402
from bertfuse.export import export_model  # noqa: E402
from bertfuse.graph_rewrite import fuse_file  # noqa: E402
from bertfuse.graph_rewrite.io import load_model, save_model  # noqa: E402
from bertfuse.runtime import InferenceSession  # noqa: E402
from bertfuse.runtime.trt.model import prepare  # noqa: E402
from tests.gpu.tensorrt_runner import QUICKEST, Engine, Runner, needed  # noqa: E402
from tests.gpu.test_models import inputs  # noqa: E402

pytestmark = [pytest.mark.gpu, needed()]
TOKENS = ("input_ids", "attention_mask", "token_type_ids")
WORDS, WIDE, SIZES = 500, ((1, 1), (8, 128), (16, 256)), ((1, 128), (3, 77), (8, 128), (16, 256), (1, 1))
# Of the norm. On the CPU kernels and op bodies differ by 0.9e-3 at most, as what is between two numbers of 8 bits may
# round either way, and from PyTorch by 4.9e-3 (int8) and 8.5e-3 (fp8). A lone token's rounding nothing averages: 5e-2.
FROM_CPU, FROM_FLOAT = 5e-3, {"int8": 1e-2, "fp8": 2e-2}


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner.ours()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """In opset 19, the first with 8-bit floats."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
    )
    model, folder = transformers.BertModel(config, add_pooling_layer=False).eval(), tmp_path_factory.mktemp("small")
    exported = load_model(export_model(model, folder, exporter="torchscript", opset=17))
    save_model(version_converter.convert_version(exported, 19), folder / "source.onnx")
    return model, folder / "source.onnx"


def quantized(source: Path, to: str, dtype: str, padding: str, results: bool) -> Path:
    """Made once."""
    stem = f"{to}-{dtype}-{padding}-{results}"
    made, fused = source.with_name(f"{stem}.onnx"), source.with_name(f"{stem}.float.onnx")
    if not made.exists():
        assert not fuse_file(source, fused, dtype=dtype, padding=padding).misses
        bertfuse.quantize(fused, made, to=to, calibration=inputs(WORDS, 16, 64), results=results)
    return made


def engine(runner: Runner, model: Path, half: bool, level: int | None = QUICKEST) -> Engine:
    file = model.with_suffix(".trt.onnx")
    ops = prepare(model, file, plugins=True, older_parser=True).ops
    plan, layers = runner.build(file, [dict.fromkeys(TOKENS, WIDE)], half, level)
    assert layers == sum(ops.values()) > 8
    return runner.load(plan)


def error(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("padding", ["keep", "remove"])
@pytest.mark.parametrize(
    ("to", "dtype", "results"),
    [
        *((to, dtype, True) for to in ("int8", "fp8") for dtype in ("fp16", "fp32")),
        *((to, "fp16", False) for to in ("int8", "fp8")),
    ],
)
def test_models(to: str, dtype: str, padding: str, results: bool, runner: Runner, small: tuple[Any, Path]) -> None:
    model, source = small
    file = quantized(source, to, dtype, padding, results)
    context = engine(runner, file, dtype == "fp16").context()
    on_cpu = InferenceSession(file, ["CPUExecutionProvider"])
    for size in SIZES:
        feed = inputs(WORDS, *size)
        seen = feed["attention_mask"] != 0
        with torch.inference_mode():
            exact = model(**{name: torch.from_numpy(x) for name, x in feed.items()}).last_hidden_state.numpy()[seen]
        (reference,) = on_cpu.run(["last_hidden_state"], feed)
        got = context.run(feed)["last_hidden_state"].float().cpu().numpy()[seen]
        assert np.isfinite(got).all()
        errors = error(got, np.asarray(reference, np.float32)[seen]), error(got, exact)
        print(f"{size}: {errors[0]:.1e} from the CPU's, {errors[1]:.1e} from PyTorch's float32")
        assert errors[0] < FROM_CPU
        assert errors[1] < FROM_FLOAT[to] or len(got) == 1, "of more than one token"


@pytest.mark.parametrize("to", ["int8", "fp8"])
def test_no_layer_converts_between_ours(to: str, runner: Runner, small: tuple[Any, Path]) -> None:
    """Tensors of 8 bits go from plugin to plugin as they are, and so do weights."""
    layers = engine(runner, quantized(small[1], to, "fp16", "keep", True), True, None).layers()
    kinds = [layer["LayerType"] for layer in layers]
    places = [place for place, kind in enumerate(kinds) if kind.startswith("Plugin")]
    between = kinds[places[0] : places[-1] + 1]
    assert len(places) > 8 and "Reformat" not in between, between


def test_captured_in_a_graph(runner: Runner, small: tuple[Any, Path]) -> None:
    context = engine(runner, quantized(small[1], "int8", "fp16", "remove", True), True).context()
    feed = inputs(WORDS, 8, 128)
    plain = context.run(feed)["last_hidden_state"].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        context.enqueue()
    context._outputs["last_hidden_state"].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(context._outputs["last_hidden_state"], plain)
