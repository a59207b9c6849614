"""A call's tensors in one stretch of memory, with guards between them, so that a write outside is seen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bertfuse.graph_rewrite.spec import DTYPE_VARIABLES, TensorSpec
from bertfuse.runtime import native

from . import packed
from .problem import Problem
from .values import dtype_of, type_of

ALIGNMENT = 256
GUARD = 512  # bytes at least before and behind every tensor
ENDS = 8192  # and at both ends of the memory
# Of guards around inputs, of outputs before a run and of the workspace: NaN in every float type, -1 in every integer.
POISON = 0xFF
# Of guards around outputs and the workspace: a NaN that was read behind an input keeps its bits, and would not show.
MARK = 0xA5


@dataclass(frozen=True)
class Region:
    name: str
    role: str  # "input", "output" or "workspace"
    start: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.size


class Layout:
    """Where a problem's tensors lie, from an address on a 256-byte boundary."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.regions: dict[str, Region] = {}
        self._next = ENDS
        spec = problem.spec
        for role, tensors in (("input", spec.inputs), ("output", problem.outputs)):
            for tensor in tensors:
                if role == "input" and not problem.has(tensor):
                    continue
                dtype, shape = dtype_of(problem, tensor), problem.shape(tensor)
                moved = tensor.is_float and problem.offset_of in ("", tensor.name)
                offset = problem.offset * dtype.itemsize if moved else 0
                self._place(tensor.name, role, math.prod(shape) * dtype.itemsize, offset)

    def _place(self, name: str, role: str, size: int, offset: int = 0) -> None:
        start = self._next + offset
        self.regions[name] = Region(name, role, start, size)
        self._next = -(-(start + size + GUARD) // ALIGNMENT) * ALIGNMENT

    def add_workspace(self, size: int) -> None:
        self._place("workspace", "workspace", size)

    @property
    def size(self) -> int:
        return self._next + ENDS

    def tensors(self, base: int) -> tuple[list[native.Tensor], list[native.Tensor]]:
        """Inputs and outputs of the call, for memory at `base`."""
        problem, spec = self.problem, self.problem.spec

        def made(tensor: TensorSpec) -> native.Tensor:
            if tensor.name not in self.regions:
                return native.Tensor()
            number = DTYPE_VARIABLES[tensor.dtype][type_of(problem, tensor)]
            return native.Tensor.of(number, problem.shape(tensor), base + self.regions[tensor.name].start)

        return [made(tensor) for tensor in spec.inputs], [made(tensor) for tensor in problem.outputs]

    def image(self, inputs: Mapping[str, np.ndarray | None]) -> np.ndarray:
        """The memory before a run: inputs in their places, everything else poisoned or marked."""
        image = np.full(self.size, POISON, np.uint8)
        written = [region for region in self.regions.values() if region.role != "input"]
        for region in written:
            image[region.start - GUARD // 2 : region.start] = MARK
            image[region.stop : region.stop + GUARD] = MARK
        image[max(region.stop for region in self.regions.values()) :] = MARK
        for region in written:
            image[region.start : region.stop] = POISON
        for name, array in inputs.items():
            if array is not None:
                region = self.regions[name]
                image[region.start : region.stop] = array.reshape(-1).view(np.uint8)
        return image

    def outputs(self, memory: np.ndarray, which: int) -> list[np.ndarray]:
        """What the op promises of each output, for that set of inputs."""
        found = []
        for tensor in self.problem.outputs:
            region = self.regions[tensor.name]
            data = memory[region.start : region.stop].view(dtype_of(self.problem, tensor))
            shape = self.problem.shape(tensor)
            if tensor.dtype == "S":  # a number for each row
                rows = packed.real_rows(self.problem, data.reshape(*shape, 1), which)
                found.append(rows.reshape(rows.shape[:-1]))
                continue
            found.append(packed.real_rows(self.problem, data.reshape(shape), which))
        return found

    def trespass(self, before: np.ndarray, after: np.ndarray) -> str | None:
        """What was written that is no output and no workspace; None where nothing was."""
        begin = 0
        writable = [region for region in self.regions.values() if region.role != "input" and region.size]
        for region in [*sorted(writable, key=lambda region: region.start), None]:
            end = region.start if region else before.size
            if not np.array_equal(before[begin:end], after[begin:end]):
                places = begin + np.flatnonzero(before[begin:end] != after[begin:end])
                return self._name(int(places[0]), places.size)
            begin = region.stop if region else before.size
        return None

    def _name(self, place: int, count: int) -> str:
        for region in self.regions.values():
            if region.start <= place < region.stop:
                return f"writes its input {region.name}: {count} bytes, the first at {place - region.start}"
        near = min(self.regions.values(), key=lambda region: min(abs(place - region.stop), abs(region.start - place)))
        distance = place - near.stop + 1 if place >= near.stop else near.start - place
        side = "behind" if place >= near.stop else "before"
        return f"writes outside its outputs: {count} bytes, the first {distance} {side} {near.name}"
