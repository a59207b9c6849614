"""What the tests of packed rows share: masks, counts of rows on the device, and what the host expects of them."""

from __future__ import annotations

import torch

from tests.gpu.harness import EPSILON, gemm_inputs, near_one, norm_inputs, poisoned, randint, randn
from tests.gpu.kernels import Bound, native

GUARD = 512  # elements before and behind an output


def count_of(rows: int) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32).cuda()


def pack(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """token_index, cu_seqlens and row_count by the kernel, poisoned first."""
    outputs = [torch.full(shape, -77, dtype=torch.int32).cuda() for shape in (mask.shape, (mask.shape[0] + 1,), ())]
    Bound("PackTokens", [mask], outputs).run()
    return tuple(outputs)


def expect(rows: int, capacity: int) -> None:
    """Has the host expect so many rows of the next tensors with that capacity: what the packing kernel tells it."""
    mask = torch.zeros(1, capacity, dtype=torch.int32)
    mask[0, :rows] = 1
    pack(mask.cuda())
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


# (capacity, rows, rows that are expected, n, k): parts of tiles and of clusters, no row, more rows than the grid is
# made for, nothing aligned; the last wave in splits.
PRODUCTS = ((200, 131, 131, 384, 136), (400, 333, 1, 96, 136), (131, 70, 70, 37, 29))
NO_ROWS = (200, 0, 1, 384, 136)
SEVERAL_WAVES = (4800, 4500, 4500, 768, 520)
# Where a size is there for some kernels alone: what their tactics' names have.
NAMED = {NO_ROWS: "64x", SEVERAL_WAVES: "128x192"}
# Batch, sequence, columns. The last one has more places than one block packs.
BATCHES = ((3, 19, 77), (1, 1100, 8), (1030, 3, 64), (2, 2100, 8))


def packed_calls(op: str, dtype: torch.dtype):
    """Calls of the op on packed rows: inputs, output shapes and dtypes, attributes, and tactics' names to take."""
    if "Gemm" in op:
        for size in (*PRODUCTS, NO_ROWS, *[SEVERAL_WAVES] * (dtype != torch.float32)):
            capacity, rows, expected, n, k = size
            expect(expected, capacity)
            inputs = [*gemm_inputs(capacity, n, k, dtype), *norm_inputs(capacity, n, dtype, op=op)]
            inputs = [*(inputs if "LayerNorm" in op else inputs[:3]), count_of(rows)]
            attributes = [EPSILON] * ("LayerNorm" in op) + ["tanh"] * ("Gelu" in op)
            yield inputs, [((capacity, n), dtype)], attributes, "" if dtype == torch.float32 else NAMED.get(size, "")
        return
    for batch, sequence, columns in BATCHES:
        for index in (torch.int32, torch.int64):
            mask = randint(2, (batch, sequence), index)
            packed, offsets, one = ((batch, sequence), torch.int32), ((batch + 1,), torch.int32), ((), torch.int32)
            if op == "PackTokens":
                yield [mask], [packed, offsets, one], [], ""
                continue
            places, cu_seqlens, count = pack(mask)
            x = randn(batch, sequence, columns, dtype=dtype)
            longest = torch.zeros(sequence, dtype=torch.int32).cuda()
            if op == "UnpackTokens":
                yield [x, mask, places, count], [(tuple(x.shape), dtype)], [], ""
            elif op == "FirstTokens":
                yield [x, cu_seqlens], [((batch, columns), dtype)], [], ""
            elif op == "RaggedPositions":
                tokens = mask.view(-1)[None, : int(count)].contiguous()
                yield [tokens, cu_seqlens, longest], [(tuple(tokens.shape), index)] * 2, [], ""
            elif op == "FusedRMSNorm":
                yield [x, near_one(columns, dtype), count], [(tuple(x.shape), dtype)], [EPSILON, 1.0], ""
            elif op == "EmbedLayerNorm":
                tables = [randn(rows, columns, dtype=dtype) for rows in (50, sequence)]
                norm = [randn(columns, dtype=dtype) for _ in range(2)]
                inputs = [mask, *tables, *norm, None, None, None, places, count]
                yield inputs, [((batch, sequence, columns), dtype)], [EPSILON], ""
