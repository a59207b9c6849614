"""Whole models in float16 on the CUDA provider: nearer to PyTorch's float32 than ONNX Runtime's own float16 model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertfuse.export import export_model  # noqa: E402
from bertfuse.graph_rewrite import fuse_file  # noqa: E402
from bertfuse.measuring.gpu_contenders import GpuOptions, half_precision, kernels_run  # noqa: E402
from bertfuse.runtime.session import InferenceSession  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
CUDA = ["CUDAExecutionProvider"]
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SIZES = ((1, 128), (8, 128), (4, 384), (3, 77), (33, 128))


def build(name: str) -> Any:
    """MiniLM with its real weights, or a BERT with random ones."""
    if name == "minilm":
        from bertfuse.cli.demo import model_folder
        from bertfuse.errors import BertfuseError

        try:
            folder = model_folder()
        except BertfuseError as error:
            pytest.skip(str(error))
        return transformers.AutoModel.from_pretrained(str(folder), add_pooling_layer=False).float().eval()
    torch.manual_seed(0)
    config = transformers.BertConfig(**(BASE if name == "bert-base" else LARGE))
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def inputs(vocabulary: int, batch: int, sequence: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch * sequence)
    mask = np.ones((batch, sequence), np.int64)
    for row in range(1, batch):
        mask[row, random.integers(sequence // 4, sequence) :] = 0
    ids = random.integers(0, vocabulary, (batch, sequence))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def ort_own_float16(source: Path, folder: Path, config: Any) -> Path:
    from onnxruntime.transformers import optimizer

    fused = optimizer.optimize_model(
        str(source), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, use_gpu=True,
        opt_level=0,
    )  # fmt: skip
    counts = fused.get_fused_operator_statistics()
    assert counts["Attention"] + counts.get("MultiHeadAttention", 0) == config.num_hidden_layers, counts
    fused.save_model_to_file(str(folder / "ort.onnx"))
    return half_precision(folder / "ort.onnx", folder / "ort.fp16.onnx")


@pytest.mark.parametrize("name", ["minilm", "bert-base", "bert-large"])
def test_float16_error_is_no_larger_than_onnx_runtimes_own(name: str, tmp_path: Path) -> None:
    source = build(name)
    path = export_model(source, tmp_path, exporter="torchscript", attention="eager", opset=17)
    result = fuse_file(path, tmp_path / "fused.onnx", dtype="fp16")
    assert not result.misses
    feeds = [inputs(source.config.vocab_size, *size) for size in SIZES]
    ran = kernels_run(tmp_path / "fused.onnx", feeds[0], GpuOptions())
    assert ran["FusedAttention"] == source.config.num_hidden_layers
    ours = InferenceSession(tmp_path / "fused.onnx", CUDA, library="always")
    theirs = onnxruntime.InferenceSession(str(ort_own_float16(path, tmp_path, source.config)), providers=CUDA)
    source.to("cuda")
    for feed in feeds:
        with torch.inference_mode():
            tensors = {key: torch.from_numpy(array).cuda() for key, array in feed.items()}
            wanted = source(**tensors).last_hidden_state.float().cpu().numpy()
        seen = feed["attention_mask"].astype(bool)
        errors = []
        for session in (ours, theirs):
            arguments = {value.name: feed[value.name] for value in session.get_inputs()}
            actual = session.run(None, arguments)[0].astype(np.float32)
            assert np.isfinite(actual).all()
            errors.append(np.abs(actual - wanted)[seen])
        means, largest = [e.mean() for e in errors], [e.max() for e in errors]
        print(f"{name} {feed['input_ids'].shape}: mean {means}, largest {largest}")
        assert means[0] <= means[1] and largest[0] <= 1.1 * largest[1], (feed["input_ids"].shape, means, largest)
