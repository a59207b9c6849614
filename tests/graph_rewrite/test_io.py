"""Files in and out: every way a file can be wrong is one line, nothing is half-written, what is written reads back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from bertfuse.errors import BertfuseError, FusionError
from bertfuse.graph_rewrite import fuse, fuse_file, io
from tests.graph_rewrite.attentions import Attention
from tests.graph_rewrite.attentions import model as attention_model
from tests.graph_rewrite.graphs import assert_agree, feeds

ELEMENTS = 20_000  # 80 kB as float32: large enough to be kept beside the graph


def model(array: np.ndarray | None = None, *extra: TensorProto) -> onnx.ModelProto:
    array = np.arange(ELEMENTS, dtype=np.float32) if array is None else array
    tensor = numpy_helper.from_array(array, "weight")
    nodes = [helper.make_node("Identity", ["weight"], ["y"])]
    output = helper.make_tensor_value_info("y", tensor.data_type, array.shape)
    graph = helper.make_graph(nodes, "g", [], [output], [tensor, *extra])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def with_external_data(path: Path, location: str = "weights.bin") -> onnx.ModelProto:
    """The model at `path`, its weight in a file beside it; returned with what the file says, not the data."""
    onnx.save(model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    proto = onnx.load(path, load_external_data=False)
    if location != "weights.bin":
        for entry in proto.graph.initializer[0].external_data:
            if entry.key == "location":
                entry.value = location
        path.write_bytes(proto.SerializeToString())
    return proto


def refused(path: Path, *words: str) -> None:
    for read in (io.load_model, io.open_model, fuse):
        with pytest.raises(FusionError) as caught:
            read(path)
        text = str(caught.value)
        assert "\n" not in text and str(path) in text
        assert all(word in text for word in words), text


def test_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", "no such file")


def test_folder(tmp_path: Path) -> None:
    refused(tmp_path, "is a folder")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 a zip file", b"some text\n", b"\x00" * 100])
def test_not_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    refused(path, "not an ONNX model")


@pytest.mark.parametrize("kept", [0.001, 0.1, 0.5, 0.999])
def test_cut_short(tmp_path: Path, kept: float) -> None:
    path, data = tmp_path / "model.onnx", model().SerializeToString()
    path.write_bytes(data[: int(len(data) * kept)])
    refused(path, "not an ONNX model")


def test_external_data_missing(tmp_path: Path) -> None:
    with_external_data(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").unlink()
    refused(tmp_path / "model.onnx", "'weight'", "weights.bin", "is missing")


def test_external_data_cut_short(tmp_path: Path) -> None:
    with_external_data(tmp_path / "model.onnx")
    os.truncate(tmp_path / "weights.bin", 100)
    refused(tmp_path / "model.onnx", "'weight'", "cut short", str(4 * ELEMENTS))


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "a/../../weights.bin", ""])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with_external_data(folder / "model.onnx", location)
    (tmp_path / "weights.bin").write_bytes(b"\0" * 4 * ELEMENTS)
    refused(folder / "model.onnx", "'weight'", "outside the model's folder")


def test_external_data_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with_external_data(folder / "model.onnx")
    (folder / "weights.bin").rename(tmp_path / "elsewhere.bin")
    (folder / "weights.bin").symlink_to(tmp_path / "elsewhere.bin")
    refused(folder / "model.onnx", "'weight'", "outside the model's folder")


def test_external_data_of_a_model_in_memory(tmp_path: Path) -> None:
    with pytest.raises(FusionError, match="external data is not loaded"):
        fuse(with_external_data(tmp_path / "model.onnx"))


def test_external_data_of_constants(tmp_path: Path) -> None:
    """Tensors in attributes are no initialisers: the data comes with the graph."""
    original = attention_model(Attention())
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in original.graph.initializer]
    nodes = [*constants, *original.graph.node]
    del original.graph.initializer[:], original.graph.node[:]
    original.graph.node.extend(nodes)
    source, target = tmp_path / "in" / "model.onnx", tmp_path / "out" / "model.onnx"
    source.parent.mkdir()
    onnx.save_model(
        original, source, save_as_external_data=True, location="weights.bin", size_threshold=0, convert_attribute=True
    )
    assert fuse_file(source, target).fused == {"FusedAttention": 1}
    loaded = onnx.load(source)
    assert_agree(loaded, onnx.load(target), feeds(loaded), 2e-5)


def test_target_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(BertfuseError, match="is a folder"):
        io.save_model(model(), tmp_path)


def test_target_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(BertfuseError, match="cannot be written"):
        io.save_model(model(), tmp_path / "file" / "model.onnx")


@pytest.mark.parametrize("external", [False, True])
def test_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("the old one")
    if external:
        monkeypatch.setattr(io, "MAX_INLINE_BYTES", 0)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(io, "_write_data", full)
    with pytest.raises(BertfuseError, match=r"No space left on device; free some space"):
        io.save_model(model(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"] and path.read_text() == "the old one"


def test_a_failed_fusion_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(b"not a model")
    with pytest.raises(FusionError):
        fuse_file(tmp_path / "in.onnx", tmp_path / "out" / "out.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.onnx"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, bool])
@pytest.mark.parametrize("external", [False, True])
def test_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: type, external: bool) -> None:
    array = (np.random.default_rng(0).standard_normal((200, 1000)) * 3).astype(dtype)
    original = model(array, numpy_helper.from_array(np.float32(2.0), "small"))
    if external:
        monkeypatch.setattr(io, "MAX_INLINE_BYTES", 0)
    path = tmp_path / "model.onnx"
    io.save_model(original, path)
    assert (tmp_path / "model.onnx.data").exists() == external
    onnx.checker.check_model(path, full_check=True)
    for loaded in (io.load_model(path), onnx.load(path)):
        tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in loaded.graph.initializer}
        assert tensors["weight"].tobytes() == array.tobytes() and tensors["weight"].dtype == array.dtype
        assert tensors["small"] == 2.0
    skeleton, weights = io.open_model(path)
    assert skeleton.ByteSize() < 1000 and weights["weight"].load().tobytes() == array.tobytes()


def test_writing_is_the_same_as_protobuf_does_it(tmp_path: Path) -> None:
    """The streamed file parses to the very message that was given, whatever else is in the model."""
    original = model()
    original.metadata_props.add(key="key", value="value")
    original.doc_string = "a model"
    io.save_model(original, tmp_path / "model.onnx")
    parsed = onnx.ModelProto.FromString((tmp_path / "model.onnx").read_bytes())
    assert parsed == original


def test_types_that_are_not_whole_bytes_or_not_numbers(tmp_path: Path) -> None:
    text = helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"b"])
    small = helper.make_tensor("int4", TensorProto.INT4, [40_000], bytes(20_000), raw=True)
    proto = model(None, text, small)
    proto.ir_version = 10
    io.save_model(proto, tmp_path / "model.onnx")
    loaded = io.load_model(tmp_path / "model.onnx")
    assert {t.name: t for t in loaded.graph.initializer} == {t.name: t for t in proto.graph.initializer}


def test_external_weights_are_mapped_not_read(tmp_path: Path) -> None:
    with_external_data(tmp_path / "model.onnx")
    _, weights = io.open_model(tmp_path / "model.onnx")
    assert isinstance(weights["weight"].load().base, np.memmap | np.ndarray)
    assert not external_data_helper.uses_external_data(io.load_model(tmp_path / "model.onnx").graph.initializer[0])
