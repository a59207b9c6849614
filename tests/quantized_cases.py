"""Random calls of the ops' quantised forms, with rows that are 0, tiny, large or not finite."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from bertfuse.graph_rewrite.dialect.quantized import quantized_rows
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.ops.activations import ACTIVATIONS
from tests.cases import ATTENTIONS, FLOATS, Case

BY_TENSOR = ("FusedGemmGelu", "FusedGatedGemm", *ATTENTIONS)  # which always write by one scale for all rows
OF_FAMILIES = ("FusedGatedGemm", "FusedGemmResidualNorm")
PRODUCTS = ("FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm", "FusedGemmGeluLayerNorm", *OF_FAMILIES)
INT8, FLOAT8 = np.dtype(np.int8), np.dtype(ml_dtypes.float8_e4m3fn)


def product(seed: int, weight_type: np.dtype = INT8) -> Case:
    """One of the products. Labels hold the seed."""
    rng = np.random.default_rng(seed)
    op = str(rng.choice(PRODUCTS))
    dtype = str(rng.choice(["float32", "float32", "float16"]))
    leading = tuple(int(size) for size in rng.integers(0 if rng.random() < 0.05 else 1, 23, rng.integers(1, 3)))
    n, k = (int(size) for size in rng.integers(1, rng.choice([8, 70, 400]), 2))
    # LayerNorm of one or two columns that are nearly alike makes a sign of a rounding.
    n = max(n, 8) if "Norm" in op else n
    columns, n = n, 2 * n if op == "FusedGatedGemm" else n
    x = rng.standard_normal((*leading, k)) * np.exp(rng.uniform(-3, 3, k))
    weight = rng.integers(-128, 128, (n, k)) if weight_type == np.int8 else rng.standard_normal((n, k)) * 100
    inputs: dict[str, Any] = {tensor.name: None for tensor in OPS[op].inputs}
    typed = FLOATS[dtype]
    inputs |= {"x": x.astype(np.float32).astype(typed), "weight": weight.astype(weight_type)}
    inputs["weight_scale"] = (rng.uniform(0.2, 2, n) / 128 / np.sqrt(k)).astype(np.float32)
    if op == "FusedGatedGemm":  # two such factors together may be beyond float16
        inputs["weight_scale"] /= np.float32(32)
    without = ("bias", "beta") if op in ("FusedGemm", *OF_FAMILIES) and rng.random() < 0.5 else ()
    for name in ("bias", "gamma", "beta"):
        if name in inputs and name not in without:
            inputs[name] = rng.standard_normal(n).astype(np.float32).astype(typed)
    if "residual" in inputs and (op != "FusedGemmGeluLayerNorm" or rng.random() < 0.5):
        inputs["residual"] = rng.standard_normal((*leading, columns)).astype(np.float32).astype(typed)
    if "product_gamma" in inputs and rng.random() < 0.3:
        inputs["product_gamma"] = rng.standard_normal((1, n)).astype(np.float32).astype(typed)
    if rng.random() < 0.5:
        inputs["x_smooth"] = np.exp(rng.uniform(-2, 2, (1, k))).astype(np.float32)
    if rng.random() < 0.4:  # some numbers lie beyond the ends
        inputs["x_scale"] = np.float32(np.abs(x).max(initial=1e-3) / 127 * rng.uniform(0.3, 1.2))
        if weight_type == np.int8 and rng.random() < 0.5:
            inputs["x_zero"] = np.int32(rng.choice([0, 255, rng.integers(256)]))
    if x.size and rng.random() < 0.5:
        # By a given scale NaN becomes 0 in kernels, in bodies whatever ONNX Runtime's QuantizeLinear makes of it.
        _odd_rows(inputs["x"].reshape(-1, k), rng, with_nan="x_scale" not in inputs)
    attributes = {"approximate": str(rng.choice(["none", "tanh"]))} if "Gelu" in op else {}
    attributes |= {"epsilon": 1e-5} if "Norm" in op else {}
    if op == "FusedGemmResidualNorm":
        attributes |= {"norm": str(rng.choice(["layer", "rms"])), "gamma_offset": float(rng.choice([0, 1]))}
    attributes |= {"activation": str(rng.choice(list(ACTIVATIONS)))} if op == "FusedGatedGemm" else {}
    return Case(op, f"seed_{seed}", inputs, attributes, dtype)


def of_quantized(seed: int, weight_type: np.dtype = INT8) -> Case:
    """A product whose x another op has written in 8 bits; x itself holds other numbers. Integers may have a zero
    point.
    """
    case, rng = product(seed, weight_type), np.random.default_rng(seed + 1)
    x, scale = quantized_rows(case.inputs["x"], weight_type)
    scale = np.where(np.isfinite(scale), scale, np.nan)
    case.inputs["x"] = rng.standard_normal(x.shape).astype(case.inputs["x"].dtype)
    without = dict.fromkeys(("x_smooth", "x_scale", "x_zero"))
    case.inputs.update(x_quantized=x, x_row_scale=scale[..., 0].astype(np.float32), **without)
    if weight_type == INT8 and rng.random() < 0.5:
        sums = case.inputs["weight"].sum(axis=1, dtype=np.int64)
        case.inputs["x_compensation"] = (sums * rng.integers(-128, 128)).astype(np.int32)
    return case


def attention(seed: int) -> Case:
    """Attention or a variant of it, padded or of packed sequences that fill all rows."""
    rng = np.random.default_rng(seed)
    op, dtype = str(rng.choice(ATTENTIONS)), str(rng.choice(["float32", "float16"]))
    kv_heads, batch, sequence = (int(size) for size in rng.integers([1, 1, 1], [4, 4, 40]))
    heads, size = kv_heads * int(rng.integers(1, 3)), int(rng.choice([8, 20, 32, 64]))
    kv_heads = kv_heads if op == "FusedAttentionVariant" else heads
    columns, typed = (heads + 2 * kv_heads) * size, FLOATS[dtype]
    inputs: dict[str, Any] = {tensor.name: None for tensor in OPS[op].inputs}
    packed = rng.random() < 0.4
    if packed:
        ends = np.sort(rng.integers(0, batch * sequence + 1, 2))
        inputs["cu_seqlens"] = np.asarray([0, *ends, batch * sequence], np.int32)
        batch, sequence = 1, batch * sequence
    elif rng.random() < 0.7:
        inputs["mask"] = rng.integers(0, 2, (batch, sequence))
    inputs["qkv"] = rng.standard_normal((batch, sequence, columns)).astype(np.float32).astype(typed)
    inputs["bias"] = rng.standard_normal(columns).astype(np.float32).astype(typed)
    attributes: dict[str, Any] = {"num_heads": heads, "scale": size**-0.5}
    if op == "FusedAttentionVariant":
        left, right = (int(side) for side in rng.choice([-1, 0, 3, 20], 2))
        attributes |= {"kv_num_heads": kv_heads, "window_left": left, "window_right": right}
    return Case(op, f"seed_{seed}", inputs, attributes, dtype)


def _columns(case: Case) -> int:
    """Of y."""
    if case.op in ATTENTIONS:
        heads, shared = (case.attributes.get(name, 0) for name in ("num_heads", "kv_num_heads"))
        return case.inputs["qkv"].shape[-1] // (heads + 2 * (shared or heads)) * heads
    return len(case.inputs["weight_scale" if "x" in case.inputs else "gamma"]) // (1 + (case.op == "FusedGatedGemm"))


def writing(case: Case) -> Case:
    """The same call of an op that can write its rows in 8 bits, too, doing so."""
    rng = np.random.default_rng(sum(map(ord, case.label)))
    n = _columns(case)
    case.inputs["y_zero_point"] = np.zeros((), INT8 if rng.random() < 0.5 else FLOAT8)
    case.inputs["y_smooth"] = np.exp(rng.uniform(-2, 2, (1, n))).astype(np.float32) if rng.random() < 0.5 else None
    odd = rng.random()
    if case.op in BY_TENSOR or ("y_tensor_scale" in case.inputs and odd < 0.4):  # some numbers lie beyond the ends
        case.inputs["y_tensor_scale"] = np.float32(rng.choice([1e-3, 0.01, 0.05]))
        if case.inputs["y_zero_point"].dtype == INT8 and rng.random() < 0.7:
            case.inputs["y_zero_point"] = np.asarray(rng.integers(-128, 128), INT8)
    elif case.inputs["beta"] is None:
        pass
    elif odd < 0.6:  # rows of zeros, tiny or large ones, and one that is not finite
        size = 0 if odd < 0.47 else 1e-6 if odd < 0.53 else 30.0
        case.inputs["gamma"], case.inputs["beta"] = case.inputs["gamma"] * 0, case.inputs["beta"] * 0
        case.inputs["gamma"] += np.asarray(size, case.inputs["gamma"].dtype)
    elif odd < 0.7:
        case.inputs["beta"][rng.integers(n)] = np.inf
    return case


def _odd_rows(rows: np.ndarray, rng: np.random.Generator, with_nan: bool) -> None:
    kinds = ["zero", "tiny", "large", "inf", "denormal", "alike", *(["nan"] if with_nan else [])]
    for kind in rng.choice(kinds, 3):
        row = rows[rng.integers(len(rows))]
        if kind in ("nan", "inf"):
            row[rng.integers(len(row))] = np.nan if kind == "nan" else -np.inf
        elif kind == "alike":  # all of its integers are -127 or 127, and mostly of one sign
            row[:] = np.where(rng.random(len(row)) < 0.9, 1.5, -1.5) * rng.choice([-1, 1])
        elif kind == "zero":  # a product with 0 may be NaN
            row[:] = 0
        else:  # an infinity times what a type rounds to 0 would be NaN
            row[np.isfinite(row)] *= {"tiny": 1e-33, "large": 10.0, "denormal": 1e-40}[kind]


def embedding(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    words, hidden, batch, sequence = (int(size) for size in rng.integers([2, 8, 1, 1], [200, 200, 5, 30]))
    dtype = str(rng.choice(["float32", "float16"]))
    typed = FLOATS[dtype]
    inputs: dict[str, Any] = {tensor.name: None for tensor in OPS["EmbedLayerNorm"].inputs}
    inputs["ids"] = rng.integers(-words, words, (batch, sequence))
    inputs["word_table"] = rng.integers(-128, 128, (words, hidden)).astype(np.int8)
    inputs["word_scale"] = rng.uniform(0.001, 0.02, words).astype(np.float32)
    if rng.random() < 0.7:
        inputs["position_table"] = rng.standard_normal((sequence, hidden)).astype(np.float32).astype(typed)
    for name in ("gamma", "beta"):
        inputs[name] = rng.standard_normal(hidden).astype(np.float32).astype(typed)
    return Case("EmbedLayerNorm", f"seed_{seed}", inputs, {"epsilon": 1e-5}, dtype)
