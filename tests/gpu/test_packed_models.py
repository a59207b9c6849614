"""Whole models without padding on the CUDA provider: what the padded ones give, for every mask, captured and not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from bertfuse.export import export_model  # noqa: E402
from bertfuse.graph_rewrite import fuse_file  # noqa: E402
from bertfuse.graph_rewrite.outputs import give_float32  # noqa: E402
from bertfuse.measuring.gpu_contenders import GpuOptions, cuda_session, kernels_run  # noqa: E402
from bertfuse.runtime.ragged_inputs import ragged  # noqa: E402
from bertfuse.runtime.session import InferenceSession  # noqa: E402

pytestmark = pytest.mark.gpu
# MiniLM's sizes, and one whose rows fill no tile; few layers and words, so that a test takes seconds.
MODELS = {
    "minilm": dict(hidden_size=384, num_attention_heads=12, num_hidden_layers=3, intermediate_size=1536),
    "narrow": dict(hidden_size=96, num_attention_heads=3, num_hidden_layers=2, intermediate_size=384),
}
VOCABULARY = 500
SIZES = ((1, 1), (2, 7), (4, 77), (32, 128), (3, 512), (128, 33), (16, 300))
DTYPES = ("fp16", "bf16", "fp32")
LAST_BIT = {"fp16": 2.0**-10, "bf16": 2.0**-7, "fp32": 0.0}  # of 1; of float32 nothing shows


@pytest.fixture(scope="module", params=MODELS)
def source(request, tmp_path_factory) -> tuple[Any, Path]:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=VOCABULARY, **MODELS[request.param])
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    folder = tmp_path_factory.mktemp(request.param)
    return model, export_model(model, folder, exporter="torchscript", attention="eager", opset=17)


def fused(source: Path, padding: str, dtype: str, **options: Any) -> Path:
    target = source.with_name(f"{padding}-{dtype}{'-rows' * bool(options)}.onnx")
    if not target.exists():
        result = fuse_file(source, target, dtype=dtype, padding=padding, **options)
        assert not result.misses
        if dtype == "bf16":
            give_float32(target)
    return target


def random_mask(rng: np.random.Generator, batch: int, sequence: int) -> np.ndarray:
    """Right, left and no padding, holes, rows of nothing."""
    mask = np.zeros((batch, sequence), np.int64)
    for row in mask:
        length = int(rng.integers(0, sequence + 1))
        places = [np.arange(length), np.arange(sequence - length, sequence), rng.permutation(sequence)[:length]]
        row[places[rng.integers(3)]] = 1
    if not mask.any():
        mask[0, 0] = 1
    return mask


def feed(rng: np.random.Generator, batch: int, sequence: int) -> dict[str, np.ndarray]:
    ids = rng.integers(0, VOCABULARY, (batch, sequence))
    return {
        "input_ids": ids,
        "attention_mask": random_mask(rng, batch, sequence),
        "token_type_ids": rng.integers(0, 2, (batch, sequence)),
    }


def run(session: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})[0].astype(np.float32)


def float32_of(model: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    model.to("cuda")
    with torch.inference_mode():
        tensors = {key: torch.from_numpy(array).cuda() for key, array in feeds.items()}
        return model(**tensors).last_hidden_state.float().cpu().numpy()


def assert_as_good(packed: np.ndarray, padded: np.ndarray, exact: np.ndarray, real: np.ndarray, dtype: str) -> None:
    """Zeros on padding; on real tokens no further from float32 than the padded model by more than its own rounding.

    The largest error is one of the largest values', of which there are few: MiniLM's was once 1.58 times the padded
    model's, with the same mean. So the two may differ by one last bit of that value.
    """
    assert (packed[~real] == 0).all(), "padding is not zero"
    assert np.isfinite(packed).all()
    ours, theirs = (np.abs(values - exact)[real] for values in (packed, padded))
    last_bit = LAST_BIT[dtype] * 2.0 ** np.floor(np.log2(np.abs(exact[real]).max()))
    assert ours.max() <= 1.5 * theirs.max() + last_bit + 1e-5 and ours.mean() <= 1.2 * theirs.mean() + 1e-6, (
        f"off by {ours.max():.3g}, {ours.mean():.3g} on average; the padded model {theirs.max():.3g}, "
        f"{theirs.mean():.3g}"
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_padded_model(source, dtype):
    model, path = source
    removed = fused(path, "remove", dtype)
    rng = np.random.default_rng(seed := int.from_bytes(np.random.bytes(3), "little"))
    print("seed", seed)
    ran = kernels_run(removed, feed(rng, 2, 9), GpuOptions())
    assert ran["PackTokens"] == ran["UnpackTokens"] == 1 and ran["FusedAttention"] == model.config.num_hidden_layers
    padded, packed = (cuda_session(file, "always", GpuOptions()) for file in (fused(path, "keep", dtype), removed))
    for size in SIZES:
        for _ in range(3):  # the second time the host knows how many tokens came
            feeds = feed(rng, *size)
            real = feeds["attention_mask"].astype(bool)
            assert_as_good(run(packed, feeds), run(padded, feeds), float32_of(model, feeds), real, dtype)


@pytest.mark.parametrize("size", [(16, 128), (5, 40)], ids=str)
def test_one_captured_graph_for_100_masks(source, size):
    model, path = source
    rng = np.random.default_rng(seed := int.from_bytes(np.random.bytes(3), "little"))
    print("seed", seed)
    padded = cuda_session(fused(path, "keep", "fp16"), "always", GpuOptions())
    session = cuda_session(fused(path, "remove", "fp16"), "always", GpuOptions(cuda_graph=True))
    binding = session.io_binding()
    values = {}
    feeds = feed(rng, *size)
    for value in session.get_inputs():
        values[value.name] = onnxruntime.OrtValue.ortvalue_from_numpy(feeds[value.name], "cuda", 0)
        binding.bind_ortvalue_input(value.name, values[value.name])
    hidden = model.config.hidden_size
    out = onnxruntime.OrtValue.ortvalue_from_shape_and_type((*size, hidden), np.float16, "cuda", 0)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, out)
    for _ in range(3):  # ordinary runs, then the capture
        session.run_with_iobinding(binding)
    poison = np.full((*size, hidden), np.nan, np.float16)
    for i in range(100):
        feeds = feed(rng, *size)
        if i % 10 == 0:  # none, or all, or one
            feeds["attention_mask"][:] = i % 20 // 10
            feeds["attention_mask"][-1, -1] = 1
        for name, value in values.items():
            value.update_inplace(feeds[name])
        out.update_inplace(poison)
        # The session runs on a stream of its own, and what is copied from pageable memory may still be under way when
        # the call returns.
        torch.cuda.synchronize()
        session.run_with_iobinding(binding)
        real = feeds["attention_mask"].astype(bool)
        assert_as_good(out.numpy().astype(np.float32), run(padded, feeds), float32_of(model, feeds), real, "fp16")


def test_eight_threads(source):
    """A session for all, batches of one size and of others: what each gives alone, to the bit without hints."""
    _, path = source
    file = fused(path, "remove", "fp16")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("bertfuse.row_hints", "0")
    options.log_severity_level = 4
    session = InferenceSession(
        file, ["CUDAExecutionProvider", "CPUExecutionProvider"], library="always", sess_options=options
    )
    rng = np.random.default_rng(1)
    feeds = [feed(rng, *[(8, 64), (8, 64), (3, 101)][i % 3]) for i in range(24)]
    alone = [run(session, one) for one in feeds]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for got, wanted in zip(pool.map(lambda one: run(session, one), feeds), alone, strict=True):
                np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_batches(source, dtype):
    model, path = source
    padded = cuda_session(fused(path, "keep", dtype), "always", GpuOptions())
    session = cuda_session(fused(path, "ragged", dtype), "always", GpuOptions())
    rng = np.random.default_rng(2)
    for lengths in ([1], [9, 31, 14, 77], [5] * 60, [512, 1, 300], [0, 3, 0, 0, 128, 127, 129]):
        batch, longest = len(lengths), max(lengths)
        feeds = feed(rng, batch, longest)
        feeds["attention_mask"] = (np.arange(longest)[None] < np.array(lengths)[:, None]).astype(np.int64)
        real = feeds["attention_mask"].astype(bool)
        got = np.zeros((batch, longest, model.config.hidden_size), np.float32)
        got[real] = run(session, ragged(feeds))
        assert_as_good(got, run(padded, feeds), float32_of(model, feeds), real, dtype)


def test_bad_offsets_end_no_process(source):
    """What only the device sees: results mean nothing, nothing is accessed out of bounds, and the next run is right."""
    _, path = source
    session = cuda_session(fused(path, "ragged", "fp16"), "always", GpuOptions())
    rng = np.random.default_rng(3)
    good = ragged({"input_ids": [[5] * 9, [7] * 31], "token_type_ids": [[0] * 9, [0] * 31]})
    wanted = run(session, good)
    for offsets in ([0, 41, 40], [40, 9, 0], [-5, 9, 40], [0, 2**31 - 1, 40], [3, 3, 3], [0, 0, 2**30]):
        run(session, good | {"cu_seqlens": np.array(offsets, np.int32)})
        np.testing.assert_allclose(run(session, good), wanted, atol=1e-2)
    for _ in range(20):
        run(session, good | {"cu_seqlens": rng.integers(-(2**31), 2**31 - 1, 3).astype(np.int32)})
    np.testing.assert_allclose(run(session, good), wanted, atol=1e-2)


def first_token_model(source: Path, target: Path) -> Path:
    """The model with its first token's row as the only output."""
    proto = onnx.load(str(source))
    hidden = proto.graph.output[0]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int64), "first_place"))
    proto.graph.node.append(onnx.helper.make_node("Gather", [hidden.name, "first_place"], ["pooled"], axis=1))
    size = hidden.type.tensor_type.shape.dim[-1].dim_value
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("pooled", onnx.TensorProto.FLOAT, ["batch", size]))
    onnx.save(proto, str(target))
    return target


def test_rows_that_outputs_need(source, tmp_path):
    """With the choice of each sequence's first row moved up, padded and packed."""
    model, path = source
    pooled = first_token_model(path, tmp_path / "first.onnx")
    sessions = [
        cuda_session(fused(pooled, padding, "fp16", output_rows=rows), "always", GpuOptions())
        for padding, rows in (("keep", False), ("remove", True))
    ]
    rng = np.random.default_rng(4)
    for size in ((1, 5), (4, 77), (32, 128)):
        feeds = feed(rng, *size)
        feeds["attention_mask"] = (np.arange(size[1])[None] < rng.integers(1, size[1] + 1, (size[0], 1))).astype(
            np.int64
        )
        exact = float32_of(model, feeds)[:, 0]
        theirs, ours = (np.abs(run(session, feeds) - exact) for session in sessions)
        assert ours.max() <= 1.5 * theirs.max() + 1e-5
