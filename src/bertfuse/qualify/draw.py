"""Drawing problems as an adversary would: sizes around tile edges, odd ones, extremes, all ways to be off alignment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertfuse.graph_rewrite.ops import OPS, PACKING_OPS
from bertfuse.graph_rewrite.spec import DTYPE_VARIABLES

from .problem import ATTENTIONS, DTYPES, MASKS, OF_INTEGERS, PACKED_ALONE, QUANTIZED, WRITERS, Problem, writing_without

HIDDEN = (24, 32, 48, 64, 96, 128, 192, 256, 312, 320, 384, 512, 640, 768, 1024, 1280)
TILES = (16, 32, 64, 96, 128, 192, 256)
HEAD_SIZES = (1, 2, 3, 8, 16, 20, 24, 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 256, 300)
USUAL_HEAD_SIZES = (32, 64, 128)
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 200, 384)  # of packed sequences
_BROKEN = 0.08  # of packed problems
_MOVES = 0.35  # of an op that only moves rows, against one that computes
# (share, most multiplications, most elements): a float64 reference on one core takes about a millisecond, 50 and 2000.
BUDGETS = ((0.76, 8e6, 2e5), (0.21, 2e8, 1.5e6), (0.03, 6e9, 2e7))


@dataclass
class Draw:
    """An endless supply of problems; each stands for all tactics of its call.

    `multiprocessors` of the GPU, where rounds of all of them end; a seed gives the same problems again.
    """

    seed: int
    ops: Sequence[str] = tuple(OPS)
    dtypes: Sequence[str] = DTYPES
    multiprocessors: int = 132
    budget_scale: float = 1.0  # the CPU's kernels are slower than a GPU's
    largest_scale: float = 1.0  # of the largest budget alone

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def __iter__(self) -> Draw:
        return self

    def __next__(self) -> Problem:
        budget = int(self.rng.choice(len(BUDGETS), p=[share for share, _, _ in BUDGETS]))
        scale = self.budget_scale * (self.largest_scale if budget == len(BUDGETS) - 1 else 1.0)
        _, work, elements = BUDGETS[budget]
        weights = np.array([_MOVES if op in PACKING_OPS else 1.0 for op in self.ops])
        op = str(self.rng.choice(self.ops, p=weights / weights.sum()))
        dtype = str(self.rng.choice(self.dtypes))
        if not any(tensor.is_float for tensor in OPS[op].inputs):
            dtype = DTYPES[0]
        while True:
            problem = replace(self._sizes(op), dtype=dtype)
            if op in PACKED_ALONE or (problem.spec.packed_inputs and self._chance(0.35)):
                problem = self._packed(problem)
            if problem.work <= work * scale and problem.elements <= elements * scale:
                return self._details(problem)

    def _one(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def _chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def _rows(self) -> int:
        kind = self.rng.random()
        if kind < 0.15:
            return self._one((1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 33))
        if kind < 0.45:
            return max(1, self._one(TILES) * int(self.rng.integers(1, 5)) + self._one((-1, 0, 1)))
        if kind < 0.6:  # around whole rounds of all multiprocessors
            rows = self._one((16, 64, 128)) * self.multiprocessors * self._one((1, 1, 2)) // self._one((1, 2, 4, 6))
            return max(1, rows + int(self.rng.integers(-70, 71)))
        return max(1, int(math.exp(self.rng.uniform(0, math.log(9000)))))

    def _columns(self) -> int:
        kind = self.rng.random()
        if kind < 0.5:
            return self._one(HIDDEN) * self._one((1, 1, 1, 3, 4))
        if kind < 0.8:
            return max(1, 8 * int(self.rng.integers(1, 200)) + self._one((-1, 0, 0, 0, 1, 4)))
        if kind < 0.9:
            return self._one((1, 2, 3, 5, 7, 8, 9))
        if kind < 0.95:
            return int(self.rng.integers(1, 4100))
        return 8 * max(1, int(math.exp(self.rng.uniform(0, math.log(512)))))  # small ones as often as large ones

    def _depth(self) -> int:
        if self._chance(0.25):
            return self._one((1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65))
        return self._columns()

    def _leading(self, rows: int) -> tuple[int, ...]:
        if rows > 1 and self._chance(0.3):
            first = next((size for size in (8, 5, 4, 3, 2) if rows % size == 0), 1)
            return (first, rows // first)
        return (rows,)

    def _sizes(self, op: str) -> Problem:
        empty = self._chance(0.01)
        if "weight" in [tensor.name for tensor in OPS[op].inputs]:
            rows, n, k = self._rows(), self._columns(), self._depth()
            if empty:
                rows, k = self._one(((0, k), (rows, 0)))
            if op == "FusedGemmRotary":
                return self._rotary(rows, k)
            return Problem(op, leading=self._leading(rows), sizes={"K": k, "N": n})
        if op == "FusedRMSNorm":
            rows, n = self._rows() * (not empty), self._columns()
            return Problem(op, leading=self._leading(rows), sizes={"N": n})
        if op == "RotaryTables":
            places, pairs = self._rows() * (not empty), self._one((32, 32, 16, 64, 128, int(self.rng.integers(0, 200))))
            leading = self._one(((1,), (3,), (2, 2), (0,)))
            attributes = {"angle": self._one(("product", "quotient"))}
            attributes["scaling"] = float(np.float32(self._one((1.0, 1.0, 1.1386, -0.5))))
            return Problem(op, leading=leading, sizes={"C": places, "R": pairs}, attributes=attributes)
        if op == "EmbedLayerNorm":
            sequence = self._one((1, 2, 7, 16, 50, 64, 127, 128, 129, 511))
            batch = 0 if empty else max(1, self._rows() // sequence)
            sizes = {"B": batch, "S": sequence, "V": self._one((1, 2, 100, 3001)), "H": self._columns()}
            return Problem(op, sizes={**sizes, "P": sequence + self._one((0, 1, 30)), "T": self._one((1, 2, 3))})
        if op in PACKING_OPS:
            sequence = self._one((1, 2, 9, 64, 200, 1030)) if self._chance(0.4) else self._rows()
            batch = 0 if empty else self._one((1, 1, 2, 3, 7, 16, 40, 200, 1025))
            if op == "PackTokens":
                return Problem(op, sizes={"N": batch, "S": sequence})
            return Problem(op, sizes={"B": batch, "S": sequence, "H": self._columns()})
        head, heads = (
            self._one(USUAL_HEAD_SIZES if self._chance(0.6) else (*HEAD_SIZES, int(self.rng.integers(1, 161)))),
            self._one((1, 1, 2, 3, 4, 8, 12, 16)),
        )
        if self._chance(0.03):  # more sequences than a grid has places
            batch, sequence, heads, head = 65535 + self._one((0, 1, 3000)), 1, 1, self._one((2, 4))
        elif empty:
            batch, sequence = self._one(((0, 9), (2, 0)))
        else:
            sequence = self._one((1, 2, 5, 15, 17, 33, 50, 384, 512, 1030)) if self._chance(0.3) else self._rows()
            batch = self._one((1, 1, 1, 2, 3, 7, 16, 40, 140, 200))
        attributes = {"num_heads": heads}
        if op == "FusedAttentionVariant":
            return self._variant(batch, sequence, head, heads)
        if op == "FusedAttention":
            scale = self._one((1 / math.sqrt(head),) * 12 + (0.0, 1.0, 0.01))
            attributes["scale"] = float(np.float32(scale))
        return Problem(op, sizes={"B": batch, "S": sequence, "H": heads * head}, attributes=attributes)

    def _variant(self, batch: int, sequence: int, head: int, heads: int) -> Problem:
        """Windows of every kind, shared heads, angles for some columns of a head, biases shorter than the sequence."""
        sides = (-1, -1, 0, 1, 15, 16, 63, 64, 65, 128, 300, 1 << 40)
        attributes: dict[str, Any] = {
            "num_heads": heads,
            "kv_num_heads": self._one([n for n in range(1, heads + 1) if heads % n == 0]),
            "scale": float(np.float32(self._one((1 / math.sqrt(head),) * 12 + (0.0, 1.0, 0.01)))),
            "pairs": self._one(("halves", "halves", "neighbours")),
            "window_left": self._one(sides),
            "window_right": self._one(sides),
        }
        columns = self._one((1, 2, 31, 64, 183, 2 * sequence + 1))
        sizes = {
            "B": batch,
            "S": sequence,
            "C": sequence,
            "D": head,
            "R": self._one((head // 2, head // 2, head // 4, 0)),
        }
        attributes["bias_left"] = self._one((0, columns // 2, columns))
        rows = self._one((1, 2, 31, 64, 183, 1025, 2 * sequence + 1))
        attributes["positions_left"] = self._one((0, rows // 2, rows))
        attributes["hidden_queries"] = self._one(("as_others", "alike"))
        return Problem(
            "FusedAttentionVariant",
            sizes={**sizes, "J": 1, "G": self._one((1, heads)), "L": columns, "P": 2, "M": rows},
            attributes=attributes,
        )

    def _rotary(self, rows: int, k: int) -> Problem:
        """Heads of any size, most of them such as an epilogue rotates; angles for all of a head, or some columns."""
        head = 64 if self._chance(0.5) else self._one(HEAD_SIZES)
        heads = self._one((1, 2, 3, 4, 8, 12, 16))
        kv_heads = self._one([n for n in range(1, heads + 1) if heads % n == 0])
        sequence = self._leading(rows)[-1]
        pairs = self._one((head // 2, head // 2, head // 2, head // 4, 0))
        sizes = {"B": rows // max(1, sequence), "S": sequence, "K": k, "N": (heads + 2 * kv_heads) * head}
        attributes = {"num_heads": heads, "kv_num_heads": kv_heads}
        attributes["pairs"] = self._one(("halves", "halves", "halves", "neighbours"))
        return Problem("FusedGemmRotary", sizes={**sizes, "C": sequence, "R": pairs}, attributes=attributes)

    def _packed(self, problem: Problem) -> Problem:
        """The problem with packed rows: of the sequences, or of all together where the op needs no more."""
        sizes, op = dict(problem.sizes), problem.op
        if "K" in sizes or op in ("EmbedLayerNorm", "FusedRMSNorm"):
            most = problem.capacity
            few = max(0, most + self._one((-1, -2, -16, -64, -65)))
            total = self._one(
                (0, 1, most, few, int(self.rng.integers(0, most + 1)), int(self.rng.integers(0, most + 1)))
            )
            switches = {"hints": self._chance(0.2), "broken": self._chance(_BROKEN)}
            if op == "FusedGemmRotary":
                if self._chance(0.5):
                    attributes = {**problem.attributes, "places_in": "batch"}
                    return replace(problem, attributes=attributes, packed=(min(total, most),), **switches)
                sizes["C"] = max(1, sizes["C"] + self._one((0, 0, 5, -sizes["C"] // 2)))
                if self._chance(0.3):
                    return replace(problem, sizes=sizes, packed=(most,), without=("row_count",), **switches)
            return replace(problem, sizes=sizes, packed=(min(total, most),), **switches)
        lengths = self._lengths(max(1, sizes["B"]), max(1, sizes["S"]))
        total, longest = sum(lengths), max(lengths, default=0)
        spare = self._one((0, 0, 1, 3, 70))  # rows behind the real ones
        padded = self._chance(0.5) and op != "RaggedPositions"
        sizes |= {"B": len(lengths), "S": longest + spare} if padded else {"B": 1, "S": total + spare}
        if op == "RaggedPositions":
            sizes = {"B": 1, "S": total, "M": longest + spare}
        elif op == "UnpackTokens":  # a batch padded, of which the rows are in their places or in a row
            rows = {"P": len(lengths), "Q": longest + spare} if padded else {"P": 1, "Q": total}
            sizes |= {"B": len(lengths), "S": longest + spare} | rows
        elif op == "FusedAttentionVariant":  # any sequence may have all rows
            sizes["C"] = sizes["B"] * sizes["S"]
        without = ("mask",) if op in ATTENTIONS else ()
        if op == "FusedAttentionVariant" and self._chance(0.5):
            without = ("mask", "token_index")
        switches = {"hints": op in ATTENTIONS and self._chance(0.2), "broken": self._chance(_BROKEN)}
        return replace(problem, sizes=sizes, packed=tuple(lengths), without=without, **switches)

    def _lengths(self, most: int, longest: int) -> list[int]:
        """Of up to that many sequences: one alone, many alike, any, most of them empty, one long among short ones."""
        kind, count = self.rng.random(), int(self.rng.integers(1, min(most, 40) + 1))
        if kind < 0.1:
            return [longest]
        if kind < 0.25:
            return [self._one((0, 1, 1, 2, min(longest, 129)))] * most
        lengths = [min(longest, int(self._one(LENGTHS))) for _ in range(count)]
        if kind < 0.4:
            lengths = [length if self._chance(0.3) else 0 for length in lengths]
        elif kind < 0.55:
            lengths = [min(length, 3) for length in lengths]
            lengths[int(self.rng.integers(count))] = longest
        elif kind < 0.7:
            lengths = [int(self.rng.integers(0, longest + 1)) for _ in lengths]
        return lengths

    def _details(self, problem: Problem) -> Problem:
        spec, sizes, attributes = problem.spec, problem.sizes, dict(problem.attributes)
        names = {attr.name: attr for attr in spec.attributes}
        if "approximate" in names and self._chance(0.3):
            attributes["approximate"] = "tanh"
        if "activation" in names and self._chance(0.3):
            attributes["activation"] = self._one(names["activation"].choices)
        if "norm" in names:
            attributes["norm"] = self._one(("layer", "rms"))
        if "gamma_offset" in names and self._chance(0.3):
            attributes["gamma_offset"] = self._one((1.0, 0.5))
        if "epsilon" in names and self._chance(0.5):
            attributes["epsilon"] = float(np.float32(self._one((1e-5, 1e-6, 1e-12))))
        without = tuple(name for name in spec.optional_inputs if self._chance(0.4))
        needs = {tensor.name: tensor.needs for tensor in spec.inputs if tensor.needs and not tensor.by_pass}
        absent = {*without, *problem.without}
        without = tuple(name for name in spec.optional_inputs if name in absent or needs.get(name) in absent)
        without += tuple(name for name in ("token_index", "row_count") if name in absent)
        indices = [tensor.name for tensor in spec.inputs if tensor.dtype == "I" and tensor.name not in without]
        writes, weights, given = "", "", ()
        if problem.op in QUANTIZED and self._chance(0.35):
            weights = self._one(tuple(DTYPE_VARIABLES["Q"]))
            given = self._given(weights)
        if problem.op in WRITERS and self._chance(0.5 if weights else 0.25):
            writes = self._one(tuple(DTYPE_VARIABLES["Q"]))
        restores = weights and any(tensor.name == "residual_quantized" for tensor in spec.inputs)
        if restores and "residual" not in without and writes != "float8e4m3fn" and self._chance(0.3):
            given += ("residual_quantized", *(("residual_factor",) if self._chance(0.7) else ()))
            if writes and self._chance(0.6):
                attributes["y_use"] = "unread"
        if writes:
            without += tuple(name for name in writing_without(spec) if self._chance(0.5))
        offset, offset_of = 0, ""
        floats = any(tensor.is_float for tensor in spec.inputs)
        if floats and self._chance(0.25):
            offset = self._one((1, 2, 3, 4, 8))
            if self._chance(0.5):
                tensors = [t.name for t in (*spec.inputs, *spec.outputs) if not t.by_pass and t.name not in without]
                offset_of = self._one(tensors)
        values, attention = "normal", problem.op in ATTENTIONS
        if floats and self._chance(0.35):
            values = self._one(("large", "small", "offset", "outliers", "zeros", "infinite"))
            if weights and self._chance(0.5):
                values = "rows"
            if attention and values == "infinite":
                values = "normal"  # one infinite key makes every answer of its head NaN
        return replace(
            problem,
            attributes=attributes,
            tactic=-1,
            onwards=True,
            offset=offset,
            offset_of=offset_of,
            values=values,
            mask=self._one(MASKS) if "mask" in indices else "random",
            index=self._one(("int64", "int64", "int32")) if indices else "int64",
            without=without,
            writes=writes,
            weights=weights,
            given=given,
            constant=self._chance(0.5),
            tf32=problem.dtype == "float32" and not weights and (attention or "K" in sizes) and self._chance(0.3),
            seed=int(self.rng.integers(1 << 31)),
        )

    def _given(self, weights: str) -> tuple[str, ...]:
        """What a product of 8-bit operands has of GIVEN: rows in 8 bits, or what says how its own are rounded."""
        if self._chance(0.45):
            given = ("x_quantized", *(("x_compensation",) if self._chance(0.5) else ()))
        else:
            given = (*(("x_smooth",) if self._chance(0.5) else ()), *(("x_scale",) if self._chance(0.3) else ()))
            given += ("x_zero",) if "x_scale" in given and self._chance(0.3) else ()
        return tuple(name for name in given if weights == "int8" or name not in OF_INTEGERS)
