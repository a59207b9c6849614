"""Initialisers and external data that are not what they say: one line that names the tensor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from bertfuse.errors import FusionError
from bertfuse.graph_rewrite import fuse, fuse_file
from tests.graph_rewrite.attentions import Attention, attend
from tests.graph_rewrite.graphs import Builder


def model(size: int) -> onnx.ModelProto:
    """One GELU behind a product with a [size, size] weight, the first initialiser."""
    b = Builder()
    b.output(b.gelu(b.linear(b.input("x", ("B", size)), size, size, weight=b.weight(size, size, name="weight"))))
    return b.model()


def _typed(tensor: TensorProto) -> None:
    values = np.frombuffer(tensor.raw_data, np.float32)[:-1]
    tensor.ClearField("raw_data")
    tensor.float_data.extend(values)


DAMAGES: dict[str, Callable[[TensorProto], object]] = {
    "too much data": lambda t: t.__setattr__("raw_data", t.raw_data + bytes(4)),
    "too little data": lambda t: t.__setattr__("raw_data", t.raw_data[:-1]),
    "too little typed data": _typed,
    "another shape": lambda t: t.dims.__setitem__(0, 3),
    "a huge shape": lambda t: t.dims.__setitem__(0, 1 << 40),
    "a negative shape": lambda t: t.dims.__setitem__(0, -16),
    "another type": lambda t: t.__setattr__("data_type", TensorProto.FLOAT16),
    "a smaller type": lambda t: t.__setattr__("data_type", TensorProto.INT4),
    "no type": lambda t: t.__setattr__("data_type", TensorProto.UNDEFINED),
    "an unknown type": lambda t: t.__setattr__("data_type", 99),
}


@pytest.mark.parametrize("size", [16, 200])  # kept in the graph, kept beside it
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_initialisers(damage: str, size: int, tmp_path: Path) -> None:
    broken = model(size)
    DAMAGES[damage](next(t for t in broken.graph.initializer if t.name == "weight"))
    path = tmp_path / "model.onnx"
    path.write_bytes(broken.SerializeToString())
    for attempt in (lambda: fuse(broken), lambda: fuse(path), lambda: fuse_file(path, tmp_path / "out.onnx")):
        with pytest.raises(FusionError, match="weight") as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


ENTRIES = {
    "offset is text": {"offset": "abc"},
    "offset is negative": {"offset": "-8"},
    "offset is huge": {"offset": str(1 << 70)},
    "length is text": {"length": "x"},
    "length is negative": {"length": "-1"},
    "length is short": {"length": "8"},
    "length is long": {"length": str(1 << 40)},
    "location with a null byte": {"location": "weights\0.bin"},
    "location is the folder": {"location": "."},
    "location is too long": {"location": "w" * 5000},
}


@pytest.mark.parametrize("size", [16, 200])
@pytest.mark.parametrize("damage", list(ENTRIES))
def test_external_data(damage: str, size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(size), path, save_as_external_data=True, location="weights.bin", size_threshold=512)
    broken = onnx.load(path, load_external_data=False)
    tensor = next(t for t in broken.graph.initializer if t.name == "weight")
    entries = {entry.key: entry.value for entry in tensor.external_data} | ENTRIES[damage]
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(broken.SerializeToString())
    for attempt in (lambda: fuse(path), lambda: fuse_file(path, tmp_path / "out.onnx")):
        with pytest.raises(FusionError, match="weight") as caught:
            attempt()
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("shape", [(1, 1 << 40), (1, 0), (0, 5)])
def test_axes_that_cannot_be_tried_out(shape: tuple[int, int]) -> None:
    b = Builder()
    x = b.input("x", (*shape, 16))
    b.output(attend(b, x, Attention(), b.ids("attention_mask", shape)))
    result = fuse(b.model())
    reason = result.misses[0].reason
    # Of a batch of none, and beyond 2**31, sizes are not known.
    assert not result.fused and ("a size that can be tried out" in reason or (shape != (1, 0) and "axis_" in reason))
