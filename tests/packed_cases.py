"""Random packings and the ops that take them: rows of sequences of random lengths, some of them without a token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.cases import FLOATS, Case, Shape, make_case

LENGTHS = (0, 1, 2, 3, 7, 16, 31, 33, 64)


@dataclass(frozen=True)
class Packing:
    """Sequences of these lengths in `batch` x `sequence` places, of which `real` [batch, sequence] holds the tokens."""

    lengths: tuple[int, ...]
    real: np.ndarray

    @property
    def rows(self) -> int:
        return int(sum(self.lengths))

    @property
    def cu_seqlens(self) -> np.ndarray:
        return np.cumsum([0, *self.lengths]).astype(np.int32)

    @property
    def row_count(self) -> np.ndarray:
        return np.array(self.rows, np.int32)

    @property
    def token_index(self) -> np.ndarray:
        flat = self.real.reshape(-1)
        order = np.concatenate([np.flatnonzero(flat), np.flatnonzero(~flat)])
        return order.astype(np.int32).reshape(self.real.shape)

    def rows_of_index(self, exact: bool) -> np.ndarray:
        """token_index, or of the real rows alone as [1, T]."""
        return self.token_index.reshape(-1)[: self.rows][None] if exact else self.token_index

    @property
    def longest_span(self) -> int:
        """From a sequence's first token to its last one, at most."""
        return max(np.ptp(np.flatnonzero(row)) + 1 if row.any() else 0 for row in self.real)


def random_packing(seed: int, lengths: tuple[int, ...] | None = None) -> Packing:
    """Sequences with their tokens at random places (so with holes) of a row."""
    rng = np.random.default_rng(seed)
    if lengths is None:
        lengths = tuple(int(rng.choice(LENGTHS)) for _ in range(rng.integers(1, 6)))
        if not any(lengths):
            lengths = (*lengths, 5)
    sequence = max(lengths) + int(rng.integers(0, 5))
    real = np.zeros((len(lengths), sequence), bool)
    for row, length in zip(real, lengths, strict=True):
        row[rng.permutation(sequence)[:length]] = True
    return Packing(lengths, real)


def packed_case(op: str, packing: Packing, seed: int, dtype: str = "float32", exact: bool = False) -> Case:
    """The op on packed rows: batch x sequence of them, or `exact` [1, T], as the bodies have them.

    Rows behind the real ones are NaN, and must not reach any result.
    """
    rng = np.random.default_rng(seed)
    batch, sequence = (1, packing.rows) if exact else packing.real.shape
    label = f"packed-{seed}-{'exact' if exact else 'capacity'}"
    if op in ("AddQKVBias", "FusedAttention"):
        heads, size = int(rng.integers(1, 4)), int(rng.choice([1, 5, 8, 32]))
        attributes = {"num_heads": heads, "scale": 1 / np.sqrt(size)}
        sizes = dict(B=batch, S=sequence, H=heads * size)
        case = make_case(op, Shape(label, sizes, (), attributes), dtype=dtype, absent=("mask",))
        added = {"cu_seqlens": packing.cu_seqlens}
        rows = ("qkv",)
    elif op == "FusedAttentionVariant":
        shared, group, size = (int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.choice([4, 8, 32])))
        left, right = (int(rng.choice([-1, 0, 3, 20])) for _ in range(2))
        attributes = {"num_heads": shared * group, "kv_num_heads": group, "scale": 1 / np.sqrt(size)}
        attributes |= {"window_left": left, "window_right": right, "bias_left": int(rng.integers(0, 9))}
        with_index = seed % 2 == 0
        longest = packing.longest_span if with_index else max(packing.lengths)
        places = longest + int(rng.integers(0, 3))
        attributes |= {"positions_left": int(rng.integers(0, 9)), "hidden_queries": ["as_others", "alike"][seed % 2]}
        sizes = dict(B=batch, S=sequence, C=places, D=size, R=size // 4, J=1, G=shared * group, L=13, P=2, M=11)
        absent = [("positions",), ("cos", "sin"), ("distance_bias", "q_gamma", "k_gamma")][seed % 3]
        case = make_case(op, Shape(label, sizes, (), attributes), dtype=dtype, absent=("mask", *absent))
        added = {"cu_seqlens": packing.cu_seqlens}
        if with_index:
            added["token_index"] = packing.rows_of_index(exact)
        rows = ("qkv",)
    elif op == "FusedGemmRotary":
        in_batch = bool(rng.integers(2)) and packing.real.size > 0
        heads, group, size = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.choice([4, 8, 64]))
        columns = (heads + 2) * group * size
        texts, places = (3, int(rng.integers(1, 40))) if exact or not in_batch else (batch, sequence)
        attributes = {"num_heads": heads * group, "kv_num_heads": group, "pairs": ["halves", "neighbours"][seed % 2]}
        attributes |= {"places_in": "batch"} if in_batch else {}
        sizes = dict(B=batch, S=sequence, K=int(rng.integers(1, 20)), N=columns, C=places, R=size // (2, 4)[seed % 2])
        absent = [(), ("bias",)][seed // 2 % 2]
        case = make_case(op, Shape(label, sizes, (), attributes), dtype=dtype, absent=absent)
        added = {"row_count": packing.row_count} if seed % 3 or not exact else {}  # without it every row is real
        below = places * texts if in_batch else places
        added["places"] = rng.integers(0, below, (batch, sequence)).astype(np.int32)
        if not exact:
            added["places"].reshape(-1)[packing.rows :] = -1
        rows = ("x",)
    elif op == "EmbedLayerNorm":
        b, s = packing.real.shape
        sizes = dict(B=b, S=s, V=23, H=int(rng.choice([5, 16])), P=s, T=2)
        types, positions = ("token_type_ids", "token_type_table"), ("position_table", "position_ids")
        absent = [(), positions[1:], types, (*types, *positions)][seed % 4]
        case = make_case(op, Shape(label, sizes), dtype=dtype, absent=absent, index_dtype=["int32", "int64"][seed % 2])
        added = {"token_index": packing.rows_of_index(exact), "row_count": packing.row_count}
        rows = ()
    else:
        # LayerNorm of two columns that are nearly alike turns a rounding into a sign: no fixed tolerance allows for it.
        least = 4 if "Norm" in op else 1
        sizes = dict(K=int(rng.integers(1, 20)), N=int(rng.integers(least, 20)), J=1)
        left_out = {"FusedGemmGeluLayerNorm": ("residual",), "FusedGemmResidualNorm": ("product_gamma",)}
        absent = left_out.get(op, ()) if seed % 2 else ()
        case = make_case(op, Shape(label, sizes, (batch, sequence)), dtype=dtype, absent=absent)
        added = {"row_count": packing.row_count}
        rows = ("x", "residual")
    inputs = {**case.inputs, **added}
    for name in rows:
        array = inputs.get(name)
        if array is not None:
            array.reshape(-1, array.shape[-1])[packing.rows :] = np.nan
    return Case(op, label, inputs, case.attributes, dtype, case.error_scale)


def packing_op_inputs(op: str, packing: Packing, seed: int, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Inputs of the ops that pack, unpack and choose rows."""
    rng = np.random.default_rng(seed)
    index_dtype = [np.int32, np.int64][seed % 2]
    x = rng.standard_normal((*packing.real.shape, int(rng.integers(1, 9)))).astype(np.float32).astype(FLOATS[dtype])
    mask = packing.real.astype(index_dtype)
    if op == "PackTokens":
        return {"mask": mask * rng.choice([1, -3, 7])}
    if op == "UnpackTokens":
        return {"x": x, "mask": mask, "token_index": packing.token_index, "row_count": packing.row_count}
    if op == "FirstTokens":
        return {"x": x, "cu_seqlens": packing.cu_seqlens}
    tokens = rng.integers(0, 9, (1, packing.rows)).astype(index_dtype)
    longest = np.full(max(packing.lengths) + seed % 3, -1, np.int32)
    return {"tokens": tokens, "cu_seqlens": packing.cu_seqlens, "max_seqlen": longest}
