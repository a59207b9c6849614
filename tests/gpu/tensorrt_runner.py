"""libbertfuse_trt_runner.so from Python: TensorRT 8 itself (tests/plugins/tensorrt/runner.cc) on PyTorch's memory."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from bertfuse.runtime import library_path

TYPES = {0: torch.float32, 1: torch.float16, 3: torch.int32, 4: torch.bool, 7: torch.bfloat16, 8: torch.int64}

Shape = tuple[int, ...]
Profile = Mapping[str, tuple[Shape, Shape, Shape]]

# The builder's lowest optimisation level, for tests of what does not hang on it: nothing of TensorRT's own is timed.
# BERTFUSE_TRT_TEST_LEVEL names another.
QUICKEST = int(os.environ.get("BERTFUSE_TRT_TEST_LEVEL", "0"))


class RunnerError(RuntimeError):
    """A step that failed, with what TensorRT and the plugins logged."""


class _Bounds(ctypes.Structure):
    _fields_ = (
        ("profile", ctypes.c_int32),
        ("input", ctypes.c_char_p),
        ("rank", ctypes.c_int32),
        ("sizes", (ctypes.c_int32 * 8) * 3),
    )


def files() -> dict[str, Path]:
    """The runner, and TensorRT's two libraries in the folder BERTFUSE_TENSORRT8; what is missing is left out.

    BERTFUSE_TRT_RUNNER_LIBRARY names the runner.
    """
    folder = Path(os.environ.get("BERTFUSE_TENSORRT8", "/nowhere"))
    named = {
        "runner": Path(os.environ.get("BERTFUSE_TRT_RUNNER_LIBRARY", "/nowhere")),
        "infer": folder / "libnvinfer.so.8",
        "parser": folder / "libnvonnxparser.so.8",
    }
    return {name: path for name, path in named.items() if path.is_file()}


def needed() -> pytest.MarkDecorator:
    """Skips what needs all of them, with what is missing as the reason."""
    missing = {"runner", "infer", "parser"} - set(files())
    return pytest.mark.skipif(bool(missing), reason=f"TensorRT 8: no {', '.join(sorted(missing))}")


def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
    numbers, size = ctypes.POINTER(number), ctypes.c_uint64
    for name, result, arguments in (
        ("error", text, ()),
        ("open", pointer, (text, text)),
        ("version", number, (pointer,)),
        ("load_plugins", number, (pointer, text)),
        ("make_builder", number, (pointer,)),
        ("build", pointer, (pointer, text, ctypes.POINTER(_Bounds), number, number, number, number)),
        ("plan", pointer, (pointer, ctypes.POINTER(size), numbers)),
        ("free_plan", None, (pointer,)),
        ("load", pointer, (pointer, text, size)),
        ("unload", None, (pointer,)),
        ("tensor", text, (pointer, number, numbers, numbers)),
        ("layers", text, (pointer,)),
        ("context", pointer, (pointer,)),
        ("free_context", None, (pointer,)),
        ("set_profile", number, (pointer, number, pointer)),
        ("set_shape", number, (pointer, text, numbers, number)),
        ("shape", number, (pointer, text, numbers)),
        ("set_address", number, (pointer, text, pointer)),
        ("enqueue", number, (pointer, pointer)),
    ):
        function = getattr(library, f"bertfuse_trt_runner_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class Runner:
    """TensorRT in this process, with the plugins of a library in its registry, or with None of ours."""

    def __init__(self, plugins: Path | None) -> None:
        found = files()
        self.library = _load(found["runner"])
        opened = self.library.bertfuse_trt_runner_open(str(found["infer"]).encode(), str(found["parser"]).encode())
        self.pointer = self.pointer_of(opened)
        self.version = int(self.library.bertfuse_trt_runner_version(self.pointer))
        if plugins is not None:
            self.done(self.library.bertfuse_trt_runner_load_plugins(self.pointer, str(plugins).encode()))

    @staticmethod
    @cache
    def ours() -> Runner:
        """With our plugins: once in a process, whose registry takes them once."""
        return Runner(library_path("tensorrt"))

    def pointer_of(self, made: int | None) -> int:
        if not made:
            raise RunnerError(self.library.bertfuse_trt_runner_error().decode(errors="replace"))
        return made

    def done(self, code: int) -> None:
        if code:
            raise RunnerError(self.library.bertfuse_trt_runner_error().decode(errors="replace"))

    def make_builder(self) -> None:
        """Replaces the builder, which otherwise serves every build; it takes seconds."""
        self.done(self.library.bertfuse_trt_runner_make_builder(self.pointer))

    def build(
        self, model: Path, profiles: Sequence[Profile], half: bool, level: int | None = None
    ) -> tuple[bytes, int]:
        """The plan, and how many plugin layers the network has. `level` is the builder's optimisation level."""
        bounds = [
            _Bounds(number, name.encode(), len(shapes[0]))
            for number, profile in enumerate(profiles)
            for name, shapes in profile.items()
        ]
        shapes = [shapes for profile in profiles for shapes in profile.values()]
        for bound, three in zip(bounds, shapes, strict=True):
            for row, shape in zip(bound.sizes, three, strict=True):
                row[: len(shape)] = list(shape)
        array = (_Bounds * max(1, len(bounds)))(*bounds)
        made = self.library.bertfuse_trt_runner_build(
            self.pointer,
            str(model).encode(),
            array,
            len(bounds),
            len(profiles),
            int(half),
            -1 if level is None else level,
        )
        plan = self.pointer_of(made)
        try:
            size, layers = ctypes.c_uint64(), ctypes.c_int32()
            data = self.library.bertfuse_trt_runner_plan(plan, ctypes.byref(size), ctypes.byref(layers))
            return ctypes.string_at(data, size.value), layers.value
        finally:
            self.library.bertfuse_trt_runner_free_plan(plan)

    def load(self, plan: bytes) -> Engine:
        return Engine(self, plan)


class Engine:
    """A plan, deserialised."""

    def __init__(self, runner: Runner, plan: bytes) -> None:
        self.runner = runner
        self.pointer = runner.pointer_of(runner.library.bertfuse_trt_runner_load(runner.pointer, plan, len(plan)))
        self.inputs: dict[str, torch.dtype] = {}
        self.outputs: dict[str, torch.dtype] = {}
        kind, is_input, number = ctypes.c_int32(), ctypes.c_int32(), 0
        tensor = runner.library.bertfuse_trt_runner_tensor
        while name := tensor(self.pointer, number, ctypes.byref(kind), ctypes.byref(is_input)):
            (self.inputs if is_input.value else self.outputs)[name.decode()] = TYPES[kind.value]
            number += 1

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self.runner.library.bertfuse_trt_runner_unload(self.pointer)

    def layers(self) -> list[dict[str, Any]]:
        text = self.runner.library.bertfuse_trt_runner_layers(self.pointer)
        return json.loads(text.decode())["Layers"]

    def context(self) -> Context:
        return Context(self)


class Context:
    """One execution of an engine at a time. Its tensors stay alive until the next run."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.library = engine, engine.runner.library
        self.pointer = engine.runner.pointer_of(self.library.bertfuse_trt_runner_context(engine.pointer))

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self.library.bertfuse_trt_runner_free_context(self.pointer)

    def set_profile(self, number: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        self.engine.runner.done(self.library.bertfuse_trt_runner_set_profile(self.pointer, number, stream))

    def bind(self, feed: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Takes the inputs that the engine has of `feed` (arrays), gives the outputs, full of NaN."""
        done = self.engine.runner.done
        self._inputs = {
            name: torch.as_tensor(feed[name]).to("cuda", dtype) for name, dtype in self.engine.inputs.items()
        }
        for name, tensor in self._inputs.items():
            sizes = (ctypes.c_int32 * 8)(*tensor.shape)
            done(self.library.bertfuse_trt_runner_set_shape(self.pointer, name.encode(), sizes, tensor.dim()))
        self._outputs = {}
        for name, dtype in self.engine.outputs.items():
            sizes = (ctypes.c_int32 * 8)()
            rank = self.library.bertfuse_trt_runner_shape(self.pointer, name.encode(), sizes)
            self._outputs[name] = torch.full(tuple(sizes[:rank]), float("nan"), dtype=dtype, device="cuda")
        for name, tensor in (self._inputs | self._outputs).items():
            done(self.library.bertfuse_trt_runner_set_address(self.pointer, name.encode(), tensor.data_ptr()))
        return self._outputs

    def enqueue(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        self.engine.runner.done(self.library.bertfuse_trt_runner_enqueue(self.pointer, stream))

    def run(self, feed: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        outputs = self.bind(feed)
        self.enqueue()
        torch.cuda.synchronize()
        return outputs
