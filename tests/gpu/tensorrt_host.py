"""libbertfuse_trt_host.so from Python: TensorRT's part against the plugin library, on PyTorch's memory and streams.

The host is tests/plugins/tensorrt/host.h; it needs neither TensorRT nor CUDA.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

# TensorRT's DataType and PluginFieldType.
TYPES = {torch.float32: 0, torch.float16: 1, torch.int32: 3, torch.bfloat16: 7, torch.int64: 8}
FLOAT32, CHAR, INT64 = 1, 6, 10
MAX_OUTPUTS = 16

Shape = tuple[int, ...]


class HostError(RuntimeError):
    """A step that failed, with what the plugin logged."""


class Dims(ctypes.Structure):
    _fields_ = (("rank", ctypes.c_int32), ("size", ctypes.c_int64 * 8))

    @classmethod
    def of(cls, shape: Shape) -> Dims:
        dims = cls(rank=len(shape))
        dims.size[: len(shape)] = list(shape)
        return dims

    @property
    def shape(self) -> Shape:
        return tuple(self.size[: self.rank])


class _Field(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("length", ctypes.c_int32),
    )


class _Fields(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int32), ("fields", ctypes.POINTER(_Field)))


class _Input(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("min", Dims), ("opt", Dims), ("max", Dims), ("own_type", ctypes.c_bool))


@dataclass(frozen=True)
class Input:
    """One input of a layer and its shapes in the optimisation profile."""

    dtype: torch.dtype
    min: Shape
    opt: Shape
    max: Shape
    own_type: bool = False  # float32 whatever the layer's other floats are


def host_file() -> Path | None:
    """The host library: BERTFUSE_TRT_HOST_LIBRARY, or None where that is not set."""
    named = os.environ.get("BERTFUSE_TRT_HOST_LIBRARY")
    return Path(named) if named else None


def plugin_file() -> Path | None:
    """The library under test: BERTFUSE_TRT_LIBRARY, else the one beside the host library."""
    named, host = os.environ.get("BERTFUSE_TRT_LIBRARY"), host_file()
    return Path(named) if named else host.with_name("libbertfuse_trt.so") if host else None


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
    for name, result, arguments in (
        ("error", text, ()),
        ("open", pointer, (text,)),
        ("close", None, (pointer,)),
        ("build", pointer, (pointer, text, ctypes.POINTER(_Fields), ctypes.POINTER(_Input), number)),
        ("free_engine", None, (pointer,)),
        ("workspace", ctypes.c_int64, (pointer,)),
        ("outputs", number, (pointer, ctypes.POINTER(number))),
        ("attach", pointer, (pointer,)),
        ("detach", None, (pointer,)),
        ("set_shapes", number, (pointer, ctypes.POINTER(Dims), ctypes.POINTER(Dims))),
        ("enqueue", number, (pointer, ctypes.POINTER(pointer), ctypes.POINTER(pointer), pointer, pointer)),
        ("recorded", text, (pointer,)),
    ):
        function = getattr(library, f"bertfuse_trt_host_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def _fields(attributes: Mapping[str, int | float | str]) -> tuple[_Fields, list[object]]:
    """The collection and what it points into."""
    kept: list[object] = []
    fields = (_Field * max(1, len(attributes)))()
    for field, (name, value) in zip(fields, attributes.items(), strict=False):
        if isinstance(value, str):
            data, kind, length = ctypes.create_string_buffer(value.encode()), CHAR, len(value.encode())
        elif isinstance(value, float):
            data, kind, length = ctypes.c_float(value), FLOAT32, 1
        else:
            data, kind, length = ctypes.c_int64(value), INT64, 1
        kept.append(data)
        field.name, field.data, field.type, field.length = name.encode(), ctypes.addressof(data), kind, length
    return _Fields(len(attributes), fields), [*kept, fields]


class Host:
    """The plugin library, loaded as TensorRT would."""

    def __init__(self, host: Path, plugins: Path) -> None:
        self.library = _load(host)
        self.pointer = self.checked(self.library.bertfuse_trt_host_open(str(plugins).encode()))

    def checked(self, result: int | None) -> int:
        if not result:
            raise HostError(self.library.bertfuse_trt_host_error().decode(errors="replace"))
        return result

    def build(self, op: str, attributes: Mapping[str, int | float | str], inputs: Sequence[Input]) -> Engine:
        """One layer, through the whole build phase. `inputs` are those that are present, in the op's order."""
        return Engine(self, op, attributes, inputs)


class Engine:
    """A built layer as its file keeps it: serialised fields, output types and shapes, bytes of workspace."""

    def __init__(self, host: Host, op: str, attributes: Mapping, inputs: Sequence[Input]) -> None:
        self.host, library = host, host.library
        fields, kept = _fields(attributes)
        array = (_Input * max(1, len(inputs)))(
            *(_Input(TYPES[i.dtype], *map(Dims.of, (i.min, i.opt, i.max)), i.own_type) for i in inputs)
        )
        self.pointer = host.checked(
            library.bertfuse_trt_host_build(host.pointer, op.encode(), ctypes.byref(fields), array, len(inputs))
        )
        del kept
        self.num_inputs = len(inputs)
        self.workspace = library.bertfuse_trt_host_workspace(self.pointer)
        types = (ctypes.c_int32 * MAX_OUTPUTS)()
        count = library.bertfuse_trt_host_outputs(self.pointer, types)
        names = {number: dtype for dtype, number in TYPES.items()}
        self.output_types = [names[number] for number in types[:count]]

    def attach(self) -> Context:
        return Context(self)

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self.host.library.bertfuse_trt_host_free_engine(self.pointer)


class Context:
    """The layer in an execution context of its own. `workspace` has the engine's size and a guard behind it."""

    GUARD = 256

    def __init__(self, engine: Engine) -> None:
        self.engine, self.library = engine, engine.host.library
        self.pointer = engine.host.checked(self.library.bertfuse_trt_host_attach(engine.pointer))
        self.workspace = torch.full((engine.workspace + self.GUARD,), 0xFF, dtype=torch.uint8, device="cuda")

    def set_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The outputs' shapes."""
        outputs = (Dims * MAX_OUTPUTS)()
        inputs = (Dims * max(1, len(shapes)))(*map(Dims.of, shapes))
        assert len(shapes) == self.engine.num_inputs
        self.engine.host.checked(not self.library.bertfuse_trt_host_set_shapes(self.pointer, inputs, outputs))
        return [dims.shape for dims in outputs[: len(self.engine.output_types)]]

    def enqueue(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """On PyTorch's current stream. Inputs have the shapes that were set."""
        ins = (ctypes.c_void_p * max(1, len(inputs)))(*(tensor.data_ptr() for tensor in inputs))
        outs = (ctypes.c_void_p * len(outputs))(*(tensor.data_ptr() for tensor in outputs))
        workspace = self.workspace.data_ptr() if self.engine.workspace else None
        stream = torch.cuda.current_stream().cuda_stream
        code = self.library.bertfuse_trt_host_enqueue(self.pointer, ins, outs, workspace, stream)
        self.engine.host.checked(not code)

    def guard_is_whole(self) -> bool:
        return bool((self.workspace[self.engine.workspace :] == 0xFF).all())

    def recorded(self) -> str:
        """The last error that the context's recorder was given."""
        return self.library.bertfuse_trt_host_recorded(self.pointer).decode(errors="replace")

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self.library.bertfuse_trt_host_detach(self.pointer)
