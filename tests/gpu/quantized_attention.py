"""Attention that writes its context in 8 bits, on the GPU: random calls, and every tactic by the rule in PyTorch."""

from __future__ import annotations

import math
import random

import torch

from tests.gpu.harness import poisoned, randint, randn, turns
from tests.gpu.kernels import Bound, _described, constants, library_file, native
from tests.gpu.quantized import FLOAT8, rounded

OPS = ("FusedAttention", "FusedAttentionVariant")
SIZES = (32, 64, 64, 128, 24, 48, 80)  # of heads: those of Hopper's kernel, and others
# [batch, sequence] of padded calls: parts of tiles, several tiles of a sequence, more tiles than a GPU has blocks.
SHAPES = ((1, 1), (3, 19), (2, 77), (5, 128), (1, 300), (2, 513), (150, 77))


class Case:
    """A random call: `named` inputs, without and with results in 8 bits, and its attributes."""

    def __init__(self, seed: int, op: str = "", dtype: torch.dtype | None = None) -> None:
        chance, self.seed = random.Random(seed), seed
        torch.manual_seed(seed)
        self.op, self.dtype = chance.choice(OPS), chance.choice([torch.float16, torch.bfloat16, torch.float32])
        self.op, self.dtype = op or self.op, dtype or self.dtype
        self.batch, self.sequence = chance.choice(SHAPES)
        self.kv_heads, size = chance.randint(1, 3), chance.choice(SIZES)
        self.heads = self.kv_heads * (chance.randint(1, 2) if self.op == "FusedAttentionVariant" else 1)
        self.columns, columns = self.heads * size, (self.heads + 2 * self.kv_heads) * size
        rows = self.batch * self.sequence
        self.packed = chance.random() < 0.4
        qkv = randn(self.batch, self.sequence, columns, dtype=self.dtype)
        given = {"qkv": qkv, "bias": randn(columns, dtype=self.dtype)}
        self.real = rows
        if self.packed:
            self.real = chance.randint(0, rows)
            ends = sorted(chance.randint(0, self.real) for _ in range(chance.randint(0, 5)))
            given["cu_seqlens"] = torch.tensor([0, *ends, self.real], dtype=torch.int32).cuda()
            qkv.view(rows, columns)[self.real :] = math.nan
        elif chance.random() < 0.7:
            kind = chance.choice([torch.int32, torch.int64])
            given["mask"] = randint(2, (self.batch, self.sequence), kind)
        values = {"num_heads": self.heads, "scale": size**-0.5}
        if self.op == "FusedAttentionVariant":
            left, right = (chance.choice([-1, -1, 0, 16, 100]) for _ in range(2))
            values |= {"kv_num_heads": self.kv_heads, "window_left": left, "window_right": right}
            if chance.random() < 0.4:
                given["cos"], given["sin"] = turns(self.longest(), size // 2, self.dtype)
        self.to = chance.choice([torch.int8, FLOAT8])
        self.smooth = torch.exp(torch.rand(1, self.columns) * 2 - 1).cuda() if chance.random() < 0.5 else None
        self.scale = torch.tensor(chance.uniform(2e-4, 0.03)).cuda()  # some numbers lie beyond the ends
        self.zero = torch.zeros((), dtype=torch.uint8).cuda().view(self.to)
        if self.to == torch.int8:
            self.zero += chance.choice([0, chance.randint(-128, 127)])
        writing = {
            "y_zero_point": self.zero,
            "y_smooth": self.smooth,
            "y_tensor_scale": self.scale,
        }
        spec = _described(self.op)
        self.plain = [given.get(tensor.name) for tensor in spec.inputs]
        self.writing = [(given | writing).get(tensor.name) for tensor in spec.inputs]
        self.attributes = [values.get(attr.name, attr.default) for attr in spec.attributes]

    def longest(self) -> int:
        return self.batch * self.sequence if self.packed else self.sequence

    def outputs(self, in_8_bits: bool) -> list[torch.Tensor]:
        shape = (self.batch, self.sequence, self.columns)
        made = [poisoned(*shape, dtype=self.dtype)]
        if in_8_bits:
            made.append(torch.full(shape, 0x5A, dtype=torch.uint8).cuda().view(self.to))
            made.append(poisoned(*shape[:2], dtype=torch.float32))
        return made

    def launches(self) -> list[tuple[str, Bound, Bound]]:
        """By each tactic: its name, the call in the op's type and the one in 8 bits. Their outputs are poisoned."""
        count = Bound(self.op, self.plain, self.outputs(False), self.attributes).tactics()
        made = []
        for tactic in range(-1, count):
            pair = [
                Bound(self.op, inputs, self.outputs(writes), self.attributes, tactic, constants(self.plain))
                for inputs, writes in ((self.plain, False), (self.writing, True))
            ]
            made.append((native.tactic_name(self.op, pair[0].call, tactic, library_file()), *pair))
        return made

    def wrong(self) -> tuple[int, str]:
        """The tactics that were run, and what is wrong."""
        launches = self.launches()
        for name, plain, writing in launches:
            plain.run()
            writing.run()
            torch.cuda.synchronize()
            y = plain._keep[1][0].view(-1, self.columns)
            _, numbers, scales = writing._keep[1]
            numbers, scales = numbers.view(torch.uint8).view(-1, self.columns), scales.view(-1)
            factor = 1 / self.scale if self.smooth is None else self.smooth * (1 / self.scale)
            wanted = rounded(y.float() * factor, self.to, self.zero).view(torch.uint8)
            differ = (numbers != wanted)[: self.real]
            if differ.any():
                row, column = differ.nonzero()[0].tolist()
                return len(launches), f"{self}: {name}: row {row}, column {column}, of {int(differ.sum())}"
            if (scales[: self.real] != self.scale).any():
                return len(launches), f"{self}: {name}: scales of rows"
            if (numbers[self.real :] != 0x5A).any() or not scales[self.real :].isnan().all():
                return len(launches), f"{self}: {name}: wrote rows of no sequence"
        return len(launches), ""

    def __str__(self) -> str:
        packed = f"{self.real} packed rows of " if self.packed else ""
        shape = f"{packed}{self.batch}x{self.sequence}, {self.heads}/{self.kv_heads} heads, {self.columns} columns"
        return f"seed {self.seed}: {self.op} {self.dtype} to {self.to}, {shape}"
