"""Deterministic rows: a row, a sequence, has the same bits alone and in any batch, padded and packed.

Ops through the C ABI with the flag, and whole models in sessions with the option. That the flag is needed is tested,
too: without it the same comparison finds differences.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.gpu.harness import EPSILON, FLOATS, GPU, gemm_inputs, norm_inputs, poisoned, randint, randn  # noqa: E402
from tests.gpu.kernels import Bound, constants, native  # noqa: E402
from tests.gpu.packed import count_of, expect  # noqa: E402

pytestmark = GPU
# Columns and k; what of a product's tiles is left over for some of these numbers of rows.
PRODUCTS = ((768, 768), (768, 3072), (2304, 768), (3072, 768), (384, 1536), (1024, 4096), (101, 31), (1200, 64))
ROWS = (1, 2, 37, 64, 128, 200, 300, 513, 700, 1024, 1500, 2048, 2500, 4131, 6144, 9000)
GEMMS = ("FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm", "FusedGemmGeluLayerNorm")
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


@pytest.fixture(autouse=True)
def rng() -> random.Random:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    torch.manual_seed(seed)
    return random.Random(seed)


def run(op, inputs, shape, dtype, attributes, flags):
    y = poisoned(*shape, dtype=dtype)
    Bound(op, inputs, [y], attributes, constant_inputs=constants(inputs[:6]), flags=flags).run()
    torch.cuda.synchronize()
    return y


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def product_differences(op, dtype, flags, rng, packed=False) -> list[str]:
    """Where a few rows have other bits among others than among themselves."""
    found = []
    for n, k in PRODUCTS:
        attributes = [EPSILON] * ("LayerNorm" in op) + ["none"] * ("Gelu" in op)
        most = max(ROWS)
        x, weight, bias = gemm_inputs(most, n, k, dtype)
        norm = norm_inputs(most, n, dtype, op=op) if "LayerNorm" in op else ()
        few = 5

        def call(rows, x=x, weight=weight, bias=bias, norm=norm, n=n, attributes=attributes):
            rows = torch.tensor(rows).cuda()
            by_row = [t[rows].contiguous() if t.dim() == 2 else t for t in norm]
            inputs = [x[rows].contiguous(), weight, bias, *by_row]
            if not packed:
                return run(op, inputs, (len(rows), n), dtype, attributes, flags)
            # Room for more, and a wrong guess of how many there are.
            capacity = len(rows) + rng.randrange(1, 700)
            expect(rng.randrange(1, capacity + 1), capacity)
            inputs = [
                torch.cat([t, t.new_full((capacity - len(rows), t.shape[1]), math.nan)])
                if len(t) == len(rows) and i != 1 and t.dim() == 2
                else t
                for i, t in enumerate(inputs)
            ]
            return run(op, [*inputs, count_of(len(rows))], (capacity, n), dtype, attributes, flags)[: len(rows)]

        alone = call(list(range(few)))
        for count in ROWS:
            rows = [rng.randrange(few, most) for _ in range(count)]
            places = rng.sample(range(count), min(few, count))
            for row, place in enumerate(places):
                rows[place] = row
            got = call(rows)[torch.tensor(places).cuda()]
            if not torch.equal(bits(got), bits(alone[: len(places)])):
                found.append(f"{op} {dtype} {n}x{k}, {count} rows")
    return found


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", GEMMS)
def test_rows_of_products(op, dtype, packed, rng):
    found = product_differences(op, dtype, native.DETERMINISTIC_ROWS, rng, packed)
    assert not found, found


@pytest.mark.skipif(not HOPPER, reason="other GPUs have one way to compute a product")
@pytest.mark.parametrize("op", GEMMS[1:])
def test_without_the_flag_rows_differ(op, rng):
    assert product_differences(op, torch.float16, 0, rng)


def sequences(rng, dtype, heads, size, lengths):
    """Queries, keys and values of each sequence; large scores now and then, so that maxima are found late."""
    return [randn(length, 3 * heads * size, dtype=dtype, gain=rng.choice([1.0, 1.0, 4.0])) for length in lengths]


def padded_attention(parts, width, bias, heads, scale, flags):
    """What the sequences get in one batch that is padded to `width` with large values."""
    batch, columns = len(parts), parts[0].shape[1]
    qkv = randn(batch, width, columns, dtype=bias.dtype, gain=6.0)
    mask = torch.zeros(batch, width, dtype=torch.int32).cuda()
    for row, part in enumerate(parts):
        qkv[row, : len(part)], mask[row, : len(part)] = part, 1
    y = run("FusedAttention", [qkv, bias, mask], (batch, width, columns // 3), bias.dtype, [heads, scale], flags)
    return [y[row, : len(part)] for row, part in enumerate(parts)]


def packed_attention(parts, width, bias, heads, scale, flags):
    """The same without padding, in tensors that hold `width` rows of each sequence."""
    rows, columns = [len(part) for part in parts], parts[0].shape[1]
    capacity = len(parts) * width
    qkv = torch.full((1, capacity, columns), math.nan, dtype=bias.dtype).cuda()
    qkv[0, : sum(rows)] = torch.cat(parts)
    offsets = torch.tensor([0, *np.cumsum(rows)], dtype=torch.int32).cuda()
    expect(1 + sum(rows) % capacity, capacity)
    inputs = [qkv, bias, None, offsets]
    y = run("FusedAttention", inputs, (1, capacity, columns // 3), bias.dtype, [heads, scale], flags)[0]
    return list(torch.split(y[: sum(rows)], rows))


def attention_differences(attend, dtype, size, flags, rng) -> list[str]:
    found = []
    heads, scale = 4, 1 / math.sqrt(size)
    bias = randn(3 * heads * size, dtype=dtype)
    for draw in range(12):
        lengths = [1, 30, 64, 65, 100, 128] + [129, 200, 300, 511] * (draw % 2)
        batch = (2, 9, 60)[draw % 3]
        parts = sequences(rng, dtype, heads, size, [rng.choice(lengths) for _ in range(batch)])
        longest = max(map(len, parts))
        width = longest + rng.randrange(0, 200) * (draw % 2)
        together = attend(parts, width, bias, heads, scale, flags)
        for index in rng.sample(range(len(parts)), min(4, len(parts))):
            (alone,) = attend([parts[index]], len(parts[index]), bias, heads, scale, flags)
            if not torch.equal(bits(alone), bits(together[index])):
                found.append(f"{dtype} head size {size}: {len(parts[index])} of {longest}, {len(parts)} sequences")
    return found


@pytest.mark.parametrize("attend", [padded_attention, packed_attention])
@pytest.mark.parametrize("size", [32, 64, 128, 40])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sequences_of_attention(attend, size, dtype, rng):
    found = attention_differences(attend, dtype, size, native.DETERMINISTIC_ROWS, rng)
    assert not found, found


@pytest.mark.skipif(not HOPPER, reason="other GPUs have one way to compute attention")
@pytest.mark.parametrize("attend", [padded_attention, packed_attention])
def test_without_the_flag_sequences_differ(attend, rng):
    assert attention_differences(attend, torch.float16, 64, 0, rng)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("columns", [768, 384, 77, 1600])
def test_rows_of_embeddings(columns, dtype, rng):
    tables = [randn(count, columns, dtype=dtype) for count in (60, 512)]
    norm = [randn(columns, dtype=dtype) for _ in range(2)]

    def call(ids):
        inputs = [ids, *tables, *norm]
        return run("EmbedLayerNorm", inputs, (*ids.shape, columns), dtype, [EPSILON], native.DETERMINISTIC_ROWS)

    ids = randint(60, (1, 100), torch.int64)
    alone = call(ids)
    for batch in (1, 7, 30, 100):
        many = randint(60, (batch, 100 + rng.randrange(200)), torch.int64)
        place = rng.randrange(batch)
        many[place, :100] = ids[0]
        assert torch.equal(bits(call(many)[place, :100]), bits(alone[0])), batch


@pytest.fixture(scope="module", params=[384, 768])
def source(request, tmp_path_factory) -> Path:
    pytest.importorskip("onnxruntime")
    transformers = pytest.importorskip("transformers")
    from bertfuse.export import export_model

    hidden = request.param
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=hidden, num_attention_heads=12, num_hidden_layers=2, intermediate_size=4 * hidden
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    folder = tmp_path_factory.mktemp(f"rows-{hidden}")
    return export_model(model, folder, exporter="torchscript", attention="eager", opset=17)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
def test_sequences_of_a_model(source, padding, dtype, tmp_path, rng):
    """A session with the option: each text's hidden states alone, and in three batches at random."""
    from bertfuse.graph_rewrite import fuse_file
    from bertfuse.runtime.ragged_inputs import ragged
    from bertfuse.runtime.session import InferenceSession

    fuse_file(source, tmp_path / "fused.onnx", dtype=dtype, padding=padding)
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    session = InferenceSession(tmp_path / "fused.onnx", providers, library="always", deterministic_rows=True)
    names = [value.name for value in session.get_inputs()]

    def states(texts: list[list[int]], width: int) -> list[np.ndarray]:
        mask = np.array([[1] * len(text) + [0] * (width - len(text)) for text in texts], np.int64)
        ids = np.array([text + [rng.randrange(300)] * (width - len(text)) for text in texts], np.int64)
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        if padding == "ragged":
            feeds = ragged(feeds)
        values = session.run(None, {name: feeds[name] for name in names})[0]
        if padding == "ragged":
            return np.split(values, np.cumsum([len(text) for text in texts])[:-1])
        return [row[: len(text)] for row, text in zip(values, texts, strict=True)]

    lengths = [1, 5, 17, 64, 65, 128, 200, 333]
    texts = [[rng.randrange(300) for _ in range(length)] for length in lengths]
    alone = [states([text], len(text))[0] for text in texts]
    for batch in (3, 24, 70):
        chosen = [rng.randrange(len(texts)) for _ in range(batch)]
        width = max(lengths[index] for index in chosen) + rng.randrange(100)
        for index, got in zip(chosen, states([texts[i] for i in chosen], width), strict=True):
            np.testing.assert_array_equal(
                got.view(np.uint8), alone[index].view(np.uint8), err_msg=f"{lengths[index]} tokens of {batch}x{width}"
            )
