"""ONNX files in and out: every way a file can be wrong is one clear line, and nothing is left half-written."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, external_data_helper

from bertfuse.errors import FusionError
from bertfuse.files import replacing

from .weights import MIN_BYTES, Weight
from .wire import length_prefix, without_large_data

# A protobuf message cannot reach 2 GiB; some room for everything that is not a weight.
MAX_INLINE_BYTES = (1 << 31) - (64 << 20)

# Types whose elements are not whole bytes in a file; which of them there are depends on onnx's version.
_NOT_BYTES = {
    getattr(TensorProto, name)
    for name in ("STRING", "INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2")
    if hasattr(TensorProto, name)
}


def load_model(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """The model with its external data. Raises FusionError when file or data is missing, broken or out of place."""
    path = pathlib.Path(path)
    model = _parse(path)
    for tensor in _external_tensors(model):
        _check_external(tensor, path)
        _load_external(tensor, path.parent)
    return model


def save_model(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    """Write `model`, beyond 2 GB with its weights in `<name>.data` beside it. All of it appears, or nothing does."""
    skeleton, weights = split(model)
    write(skeleton, weights, path)


def open_model(path: str | os.PathLike[str]) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """The model without its large initialisers, and these: mapped from their file, or taken out of the message."""
    path = pathlib.Path(path)
    model, data = _parse_apart(path)
    for tensor in _external_tensors(model):
        _check_external(tensor, path)
    skeleton, weights = split(model, path.parent, detach=True, data=data)
    for tensor in _external_tensors(skeleton):  # in attributes and subgraphs
        _load_external(tensor, path.parent)
    return skeleton, weights


def split(
    model: onnx.ModelProto,
    folder: pathlib.Path | None = None,
    detach: bool = False,
    data: Mapping[int, np.ndarray] | None = None,
) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """A copy of `model` without the data of its large initialisers, and these as Weights.

    The Weights read from `model`; with `detach` they hold the data themselves, so that `model` can go. `data`: the
    bytes of initialisers that have none themselves, by index.
    """
    skeleton = onnx.ModelProto()
    for descriptor, value in model.ListFields():
        if descriptor.name != "graph":
            _copy_field(skeleton, descriptor.name, value)
    for descriptor, value in model.graph.ListFields():
        if descriptor.name != "initializer":
            _copy_field(skeleton.graph, descriptor.name, value)
    weights: dict[str, Weight] = {}
    for index, tensor in enumerate(model.graph.initializer):
        weight = _mapped(tensor, data[index]) if data and index in data else None
        weight = weight or _weight(tensor, folder, detach)
        if weight is None:
            skeleton.graph.initializer.append(tensor)
        else:
            weights[tensor.name] = weight
            skeleton.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    return skeleton, weights


def join(skeleton: onnx.ModelProto, weights: dict[str, Weight]) -> onnx.ModelProto:
    """Put the data of `weights` into `skeleton`, emptying the dictionary as it goes so that memory is freed."""
    for tensor in skeleton.graph.initializer:
        if tensor.name in weights:
            weights.pop(tensor.name).fill(tensor)
    return skeleton


def write(skeleton: onnx.ModelProto, weights: dict[str, Weight], path: str | os.PathLike[str]) -> None:
    """Write skeleton and weights to `path`, emptying `weights`. Raises BertfuseError when that fails."""
    path = pathlib.Path(path)
    data_name = path.name + ".data"
    with replacing(path) as target:
        if sum(weight.nbytes for weight in weights.values()) <= MAX_INLINE_BYTES:
            _write_inline(skeleton, weights, target)
            return
        with replacing(path.with_name(data_name)) as data:
            _write_external(skeleton, weights, data, data_name)
            target.write_bytes(skeleton.SerializeToString())


def _parse(path: pathlib.Path) -> onnx.ModelProto:
    return _parsed(path, path.read_bytes)


def _parse_apart(path: pathlib.Path) -> tuple[onnx.ModelProto, dict[int, np.ndarray]]:
    """The model without the raw data of its large initialisers, and these bytes by index, mapped from the file."""
    data: dict[int, np.ndarray] = {}

    def read() -> bytes:
        if sys.byteorder == "big" or not path.is_file() or path.stat().st_size < MIN_BYTES:
            return path.read_bytes()
        file = np.memmap(path, np.uint8, "r")
        found = without_large_data(file.data, MIN_BYTES)
        if found is None:
            return path.read_bytes()
        data.update((index, file[begin:end]) for index, (begin, end) in found[1].items())
        return found[0]

    return _parsed(path, read), data


def _parsed(path: pathlib.Path, read: Callable[[], bytes]) -> onnx.ModelProto:
    if path.is_dir():
        raise FusionError(f"{path}: is a folder; name the .onnx file in it")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(read())
    except FileNotFoundError as error:
        raise FusionError(f"{path}: no such file; check the path") from error
    except OSError as error:
        raise FusionError(f"{path}: cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise FusionError(f"{path}: not an ONNX model, or cut short; export or copy it again") from error
    if not model.ir_version or not model.opset_import or not model.HasField("graph"):
        raise FusionError(f"{path}: not an ONNX model (no graph or no opset in it); export it again")
    return model


def _external_tensors(model: onnx.ModelProto) -> list[TensorProto]:
    # onnx has no public walk over every tensor; this one covers initialisers and tensors in attributes and subgraphs.
    tensors = external_data_helper._get_all_tensors(model)
    return [tensor for tensor in tensors if external_data_helper.uses_external_data(tensor)]


def _load_external(tensor: TensorProto, folder: pathlib.Path) -> None:
    external_data_helper.load_external_data_for_tensor(tensor, str(folder))
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def _check_external(tensor: TensorProto, path: pathlib.Path) -> None:
    folder = path.parent.resolve()
    try:
        info = external_data_helper.ExternalDataInfo(tensor)
        file = (folder / info.location).resolve()
        file.exists()  # may be a name that no file can have
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise FusionError(
            f"{path}: initialiser '{tensor.name}': its external data cannot be found: {reason}; export the model again"
        ) from error
    where = f"{path}: initialiser '{tensor.name}': external data '{info.location}'"
    if not info.location or not file.is_relative_to(folder):
        raise FusionError(f"{where} lies outside the model's folder; move the file beside the model and export again")
    if not file.is_file():
        raise FusionError(f"{where} is missing; copy it into {folder}")
    size = _nbytes(tensor)
    if info.length is not None and size is not None and info.length != size:
        raise FusionError(f"{where}: {info.length} bytes, {size} by its shape; the model is damaged, export it again")
    needed = (info.offset or 0) + (info.length or size or 0)
    if file.stat().st_size < needed:
        raise FusionError(f"{where} is cut short: {file.stat().st_size} bytes, {needed} needed; copy it again")


def _check_inline(tensor: TensorProto, size: int | None) -> None:
    """Raise FusionError when the tensor's data is not what its shape and type say."""
    where, hint = f"initialiser '{tensor.name}'", "the model is damaged, export or copy it again"
    if any(dim < 0 for dim in tensor.dims):
        raise FusionError(f"{where}: shape {list(tensor.dims)} has a negative size; {hint}")
    if size is None and tensor.data_type in _NOT_BYTES and tensor.data_type != TensorProto.STRING:
        in_a_byte = 4 if onnx.helper.tensor_dtype_to_string(tensor.data_type).endswith("INT2") else 2
        size = -(-int(np.prod(tensor.dims, dtype=np.int64)) // in_a_byte)
    if size is not None and tensor.HasField("raw_data"):
        if len(tensor.raw_data) != size:
            raise FusionError(f"{where}: {len(tensor.raw_data)} bytes of data, {size} by its shape; {hint}")
        return
    try:
        onnx.numpy_helper.to_array(tensor)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FusionError(f"{where}: cannot be read: {' '.join(str(error).split())}; {hint}") from error


def _nbytes(tensor: TensorProto) -> int | None:
    """Bytes of the tensor's data, None for types that are not whole bytes or not numeric."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        return None
    if tensor.data_type in _NOT_BYTES:
        return None
    return int(np.prod(tensor.dims, dtype=np.int64)) * dtype.itemsize


def _mapped(tensor: TensorProto, data: np.ndarray) -> Weight | None:
    """A Weight of bytes mapped from the model's file; None, and the tensor with them, where they do not fit it."""
    fits = all(size >= 0 for size in tensor.dims) and _nbytes(tensor) == data.nbytes
    if not fits or external_data_helper.uses_external_data(tensor):
        tensor.raw_data = data.tobytes()
        return None
    # Not at a multiple of the element's size: NumPy reads such arrays as any other.
    dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
    return Weight(tensor.data_type, shape, lambda: np.asarray(data).view(dtype).reshape(shape))


def _weight(tensor: TensorProto, folder: pathlib.Path | None, detach: bool) -> Weight | None:
    """A Weight for a large tensor; None for one that stays in the graph (its external data is then loaded into it)."""
    size = _nbytes(tensor)
    external = external_data_helper.uses_external_data(tensor)
    if not external:
        _check_inline(tensor, size)
    if size is None or size < MIN_BYTES:
        if external and folder is not None:
            _load_external(tensor, folder)
        return None
    if not external:
        return Weight.of_array(onnx.numpy_helper.to_array(tensor)) if detach else Weight.of_tensor(tensor)
    if folder is None:
        raise FusionError(
            f"initialiser '{tensor.name}': its external data is not loaded; pass the model's path instead"
        )
    info = external_data_helper.ExternalDataInfo(tensor)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    file, offset, shape = folder / info.location, info.offset or 0, tuple(tensor.dims)

    def load() -> np.ndarray:
        return np.memmap(file, np.uint8, "r", offset, (size,)).view(dtype).reshape(shape)

    return Weight(tensor.data_type, shape, load)


def _write_inline(skeleton: onnx.ModelProto, weights: dict[str, Weight], path: pathlib.Path) -> None:
    """Stream one message, weight by weight: serialising it whole takes three times its size in memory (measured)."""
    model, graph = onnx.ModelProto(), onnx.GraphProto()
    model.CopyFrom(skeleton)
    large = [tensor for tensor in model.graph.initializer if tensor.name in weights]
    graph.CopyFrom(model.graph)
    del graph.initializer[:]
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name not in weights)
    heads = [tensor.SerializeToString() for tensor in large]
    data_heads = [length_prefix(onnx.TensorProto, "raw_data", weights[tensor.name].nbytes) for tensor in large]
    sizes = [
        len(head) + len(data_head) + weights[tensor.name].nbytes
        for head, data_head, tensor in zip(heads, data_heads, large, strict=True)
    ]
    prefixes = [length_prefix(onnx.GraphProto, "initializer", size) for size in sizes]
    rest = graph.SerializeToString()
    model.ClearField("graph")
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.write(length_prefix(onnx.ModelProto, "graph", len(rest) + sum(sizes) + sum(map(len, prefixes))))
        file.write(rest)
        for tensor, prefix, head, data_head in zip(large, prefixes, heads, data_heads, strict=True):
            file.write(prefix + head + data_head)
            _write_data(weights.pop(tensor.name), file)


def _write_data(weight: Weight, file: BinaryIO) -> None:
    file.write(np.ascontiguousarray(weight.load()).view(np.uint8).data)


def _write_external(skeleton: onnx.ModelProto, weights: dict[str, Weight], data: pathlib.Path, location: str) -> None:
    """Stream the weights into the file `data`, each at a multiple of 4096 bytes so that it can be mapped."""
    with data.open("wb") as file:
        for tensor in skeleton.graph.initializer:
            if tensor.name not in weights:
                continue
            file.seek(-file.tell() % 4096, os.SEEK_CUR)
            offset = file.tell()
            _write_data(weights.pop(tensor.name), file)
            tensor.data_location = TensorProto.EXTERNAL
            entries = {"location": location, "offset": offset, "length": file.tell() - offset}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))


def _copy_field(message: Any, name: str, value: Any) -> None:
    field = getattr(message, name)
    if hasattr(field, "extend"):
        field.extend(value)
    elif hasattr(field, "CopyFrom"):
        field.CopyFrom(value)
    else:
        setattr(message, name, value)
