"""Products of matrices: MatMul and its kin, Einsum, attention."""

from __future__ import annotations

import numpy as np

from ..draw import Draw
from ..runtime import Refused
from .registry import draws


def _factors(d: Draw, dtype, other_dtype) -> list[str]:
    """Two tensors that MatMul takes, of one to four axes, the leading ones broadcast."""
    name = d.tensor((dtype,), (1, 4))
    shape = list(d.shape(name))
    if d.chance(0.5):
        inner = shape[-1]
        if d.chance(0.15):
            return [name, d.new([inner], other_dtype)]
        leading = shape[:-2] if d.chance(0.4) else [d.size()] if d.chance(0.1) and len(shape) < 3 else []
        leading = [n if d.chance(0.7) else 1 for n in leading]
        return [name, d.new([*leading, inner, d.size()], other_dtype)]
    inner = shape[-2] if len(shape) > 1 else shape[-1]
    if dtype != other_dtype:
        raise Refused("the other way round")
    if d.chance(0.2):
        return [d.new([inner], dtype), name]
    leading = [n if d.chance(0.7) else 1 for n in shape[:-2]] if d.chance(0.5) else []
    return [d.new([*leading, d.size(), inner], dtype), name]


@draws("MatMul")
def matmul(d: Draw, op: str) -> None:
    dtype = d.r.choice((np.float32, np.float32, np.float64, np.int64))
    d.node(op, _factors(d, dtype, dtype))


@draws("MatMulInteger")
def matmul_integer(d: Draw, op: str) -> None:
    names = _factors(d, np.uint8, np.uint8)
    if d.chance(0.5):
        names.append(d.given(np.array(1, np.uint8)))
        if d.chance(0.5):
            names.append(d.given(np.array(1, np.uint8)))
    d.node(op, names)


@draws("QLinearMatMul")
def qlinear_matmul(d: Draw, op: str) -> None:
    a, b = _factors(d, np.uint8, np.uint8)
    scale, zero = d.given(np.array(0.5, np.float32)), d.given(np.array(1, np.uint8))
    d.node(op, [a, scale, zero, b, scale, zero, scale, zero])


@draws("Gemm")
def gemm(d: Draw, op: str) -> None:
    first, second = d.chance(0.4), d.chance(0.4)
    name = d.tensor((np.float32,), 2)
    m, k = d.shape(name)[::-1] if first else d.shape(name)
    n = d.size()
    inputs = [name, d.new([n, k] if second else [k, n])]
    if d.chance(0.6):
        inputs.append(d.new(d.r.choice(([n], [m, n], [1, n], [m, 1], [1], []))))
    d.node(op, inputs, transA=1 if first else None, transB=1 if second else None, alpha=d.maybe(0.5),
           beta=d.maybe(0.5))  # fmt: skip


@draws("Einsum")
def einsum(d: Draw, op: str) -> None:
    """Letters that repeat within a term and between them, axes of 1, ellipses, blanks, with and without an output.

    ONNX Runtime ends the process where an axis is empty.
    """
    d.plan.positive = True
    sizes = {letter: d.size() for letter in "abcde"}
    terms, names = [], []
    spread = d.shape(d.tensor((np.float32,), (1, 3)))[-1:] if d.chance(0.2) else ()
    for index in range(d.r.choice((1, 2, 2, 3))):
        if d.chance(0.5) and index == 0:
            name = d.tensor((np.float32,), (1, 4))
            term = "".join(d.r.sample("abcde", d.rank(name)))
            if any(sizes[letter] != n for letter, n in zip(term, d.shape(name), strict=True)):
                sizes.update(zip(term, d.shape(name), strict=True))
            names.append(name)
            terms.append(term)
            continue
        letters = (
            d.r.choices("abcde", k=d.r.randint(1, 3)) if d.chance(0.25) else d.r.sample("abcde", d.r.randint(1, 4))
        )
        shape = [1 if d.chance(0.15) else sizes[letter] for letter in letters]
        term = "".join(letters)
        if spread or d.chance(0.1):
            term, shape = "..." + term, [*(spread or [d.size()]), *shape]
        names.append(d.fitting(shape))
        terms.append(term)
    used = [letter for letter in "abcde" if any(letter in term for term in terms)]
    equation = d.r.choice((",", ",", " , ")).join(terms)
    if d.chance(0.8):
        kept = d.r.sample(used, d.r.randint(0, min(len(used), 4)))
        dots = "..." if any("..." in term for term in terms) and d.chance(0.85) else ""
        place = d.r.randint(0, len(kept)) if d.chance(0.2) else 0
        equation += d.r.choice(("->", " -> ")) + "".join(kept[:place]) + dots + "".join(kept[place:])
    d.node(op, names, equation=equation)


@draws("Attention")
def attention(d: Draw, op: str) -> None:
    batch, heads, queries, keys = d.size(), d.r.choice((1, 2, 4)), d.size(), d.size()
    fewer = d.r.choice([n for n in (1, 2, 4) if heads % n == 0])
    width, out = d.r.choice((2, 4)), d.r.choice((2, 4, 3))
    attrs = {"is_causal": d.maybe(d.r.randrange(2)), "scale": d.maybe(0.5), "softcap": d.maybe(2.0, 0.2)}
    flat = d.chance(0.5)
    past = d.size() if d.chance(0.3) else None
    if flat:
        inputs = [d.new([batch, queries, heads * width]), d.new([batch, keys, fewer * width]),
                  d.new([batch, keys, fewer * out])]  # fmt: skip
        attrs |= {"q_num_heads": heads, "kv_num_heads": fewer}
    else:
        inputs = [d.new([batch, heads, queries, width]), d.new([batch, fewer, keys, width]),
                  d.new([batch, fewer, keys, out])]  # fmt: skip
    total = keys + (past or 0)
    inputs.append(d.new(d.r.choice(([queries, total], [batch, 1, queries, total])), d.r.choice((np.float32, bool)))
                  if d.chance(0.4) else "")  # fmt: skip
    if past is not None:
        inputs += [d.new([batch, fewer, past, width]), d.new([batch, fewer, past, out])]
    outputs = 3 if past is not None else d.r.choice((1, 1, 3))
    if d.chance(0.15):
        outputs = 4
        attrs["qk_matmul_output_mode"] = d.r.randrange(4)
    d.node(op, inputs, outputs=outputs, **attrs)


@draws("RotaryEmbedding")
def rotary_embedding(d: Draw, op: str) -> None:
    batch, heads, length, width = d.size(), d.r.choice((1, 2)), d.size(), d.r.choice((2, 4, 8))
    rotated = d.r.choice((0, width // 2)) if width > 2 else 0
    half = (rotated or width) // 2
    attrs = {"interleaved": d.maybe(d.r.randrange(2))}
    if rotated:
        attrs["rotary_embedding_dim"] = rotated
    if d.chance(0.5) or rotated:
        name = d.new([batch, length, heads * width])
        attrs["num_heads"] = heads
    else:
        name = d.new([batch, heads, length, width])
    if d.chance(0.5):
        rows = max(length, 1)
        inputs = [name, d.new([rows, half]), d.new([rows, half]),
                  d.given(np.zeros((batch, length), np.int64))]  # fmt: skip
    else:
        inputs = [name, d.new([batch, length, half]), d.new([batch, length, half])]
    d.node(op, inputs, **attrs)
