"""The CUDA kernels called from Python through the C ABI, on PyTorch's tensors: no framework between test and kernel."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
from pathlib import Path

import torch

# initcheck has to see what is written: copies from the host it knows without following PyTorch's kernels. What Hopper's
# copy engine stores it seems not to see, so outputs and workspaces come from the host, too: a kernel reads its product
# from there.
SOURCE = "cpu" if os.environ.get("BERTFUSE_TEST_INPUTS") == "host" else "cuda"


def load(package: str, name: str):
    """A module of bertfuse that needs nothing else of it: the installed package's, else this checkout's."""
    try:
        return importlib.import_module(f"bertfuse.{package}.{name}")
    except ImportError:
        pass
    file = Path(__file__).parents[2] / "src" / "bertfuse" / package / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = load("runtime", "native")

DTYPES = {
    torch.float32: 1,
    torch.int8: 3,
    torch.int32: 6,
    torch.int64: 7,
    torch.float16: 10,
    torch.bfloat16: 16,
    torch.float8_e4m3fn: 17,
}


def library_file() -> Path:
    """The library under test: BERTFUSE_CUDA_TEST_LIBRARY, else the installed package's."""
    named = os.environ.get("BERTFUSE_CUDA_TEST_LIBRARY")
    if named:
        return Path(named)
    from bertfuse import library_path

    return library_path("onnxruntime")


class KernelError(RuntimeError):
    """What the kernel reported."""


def _describe(tensor: torch.Tensor | None) -> native.Tensor:
    if tensor is None:
        return native.Tensor()
    assert tensor.is_contiguous()
    return native.Tensor.of(DTYPES[tensor.dtype], tensor.shape, tensor.data_ptr())


def _described(op: str):
    """The op's description: the installed package's, else this checkout's."""
    try:
        from bertfuse.graph_rewrite.ops import OPS
    except ImportError:  # a machine that only measures
        sys.path.append(str(Path(__file__).parents[2]))
        from graph_rewrite.ops import OPS
    return OPS[op]


def constants(inputs):
    """Bits of the inputs that are weights: matrices by their place, vectors by their shape, [N] or, later, [1, N], and
    scalars but for a number of rows.
    """

    def is_weight(i, tensor):
        is_row = i > 5 and tensor.dim() == 2 and tensor.shape[0] == 1 and tensor.element_size() > 1  # not x in 8 bits
        is_scale = tensor.dim() == 0 and tensor.dtype != torch.int32
        return i == 1 or tensor.dim() == 1 or is_row or is_scale

    return sum(1 << i for i, tensor in enumerate(inputs) if tensor is not None and is_weight(i, tensor))


class Bound:
    """One op with its tensors: run() launches it on PyTorch's current stream and allocates nothing.

    `constant_inputs` is the call's field: bit i says that nothing under way writes input i.
    """

    def __init__(self, op, inputs, outputs, attributes=(), tactic=-1, constant_inputs=0, flags=0, tuning=None):
        self.kernel = native.find_kernel(op, path=library_file())
        if self.kernel is None:
            raise KernelError(f"{op}: no CUDA kernel in {library_file()}")
        # What is not given of the last inputs, those of packed rows, is absent; of the last attributes, the default.
        spec = _described(op)
        inputs = [*inputs, *[None] * (len(spec.inputs) - len(inputs))]
        attributes = [*attributes, *(attr.default for attr in spec.attributes[len(attributes) :])]
        self._keep = (list(inputs), list(outputs))
        self.device = torch.cuda.current_device()
        self.call = native.Call.of(
            [_describe(t) for t in inputs],
            [_describe(t) for t in outputs],
            attributes,
            device_id=self.device,
            tactic=tactic,
            constant_inputs=constant_inputs,
            flags=flags,
            tuning=tuning,
        )
        if self.kernel.workspace_size:
            size = native.workspace_size(self.kernel, self.call)
            self.workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device=SOURCE).cuda()  # NaN where not written
            self.call.workspace = self.workspace.data_ptr() if size else None
            self.call.workspace_size = size

    def tactics(self) -> int:
        return max(1, native.num_tactics(self.kernel, self.call))

    def run(self) -> None:
        self.call.stream = torch.cuda.current_stream(self.device).cuda_stream
        error = native.Error()
        code = self.kernel.run(ctypes.byref(self.call), ctypes.byref(error))
        if code:
            raise KernelError(error.message.decode())
