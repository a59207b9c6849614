"""What the tests of packed rows share: masks, counts of rows on the device, and what the host expects of them."""

from __future__ import annotations

import torch
from harness import poisoned
from kernels import Bound, native

GUARD = 512  # elements before and behind an output


def count_of(rows: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32, device="cuda")


def pack(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """token_index, cu_seqlens and row_count by the kernel, poisoned first."""
    outputs = [
        torch.full(shape, -77, dtype=torch.int32, device="cuda") for shape in (mask.shape, (mask.shape[0] + 1,), ())
    ]
    Bound("PackTokens", [mask], outputs).run()
    return tuple(outputs)


def expect(rows: int, room: int) -> None:
    """Has the host expect so many rows the next time that there is room for `room`: as the packing kernel says so."""
    mask = torch.zeros(1, room, dtype=torch.int32, device="cuda")
    mask[0, :rows] = 1
    pack(mask)
    torch.cuda.synchronize()


class Guarded:
    """A poisoned output with guards around it."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        size = torch.Size(shape).numel()
        self.flat = poisoned(size + 2 * GUARD, dtype=dtype)
        self.flat[:GUARD] = self.flat[GUARD + size :] = 3
        self.tensor = self.flat[GUARD : GUARD + size].view(*shape)

    def check(self) -> None:
        size = self.tensor.numel()
        assert (self.flat[:GUARD] == 3).all(), "wrote before the output"
        assert (self.flat[GUARD + size :] == 3).all(), "wrote behind the output"


def tactic_names(op: str, bound: Bound, library) -> list[str]:
    return [native.tactic_name(op, bound.call, tactic, library) for tactic in range(bound.tactics())]
