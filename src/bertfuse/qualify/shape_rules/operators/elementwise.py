"""Operators that go element by element, with and without broadcasting."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..draw import FLOATS, INTS, NUMBERS, Draw
from .registry import draws

_FLOAT_ATTRIBUTES = {
    "Celu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",),
    "Selu": ("alpha", "gamma"), "Shrink": ("bias", "lambd"), "ThresholdedRelu": ("alpha",), "Swish": ("alpha",),
}  # fmt: skip
_SIGNED = (*FLOATS, np.int32, np.int64, np.int8)


@draws(
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Reciprocal", "Round", "Selu", "Sigmoid", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu", "Swish", "Shrink",
)  # fmt: skip
def float_unary(d: Draw, op: str) -> None:
    attrs = {name: d.maybe(round(d.r.uniform(0.1, 2), 2)) for name in _FLOAT_ATTRIBUTES.get(op, ())}
    d.node(op, [d.tensor((np.float32, np.float32, np.float32, np.float64))], **attrs)


@draws("Gelu")
def gelu(d: Draw, op: str) -> None:
    d.node(op, [d.tensor((np.float32,))], approximate=d.maybe(d.r.choice(("none", "tanh"))))


@draws("Abs", "Neg", "Relu", "Sign", "Identity")
def unary(d: Draw, op: str) -> None:
    if op == "Identity" and d.chance(0.15):
        sequences = [n for n, (kind, _) in d.known().items() if kind.form == "sequence"]
        if sequences:
            d.node(op, [d.r.choice(sequences)])
            return
    d.node(op, [d.tensor(_SIGNED)])


@draws("IsInf")
def is_inf(d: Draw, op: str) -> None:
    given = [d.tensor((np.float32, np.float64))]
    d.node(op, given, detect_negative=d.maybe(d.r.randrange(2)), detect_positive=d.maybe(d.r.randrange(2)))


@draws("IsNaN")
def is_nan(d: Draw, op: str) -> None:
    d.node(op, [d.tensor((np.float32, np.float64))])


@draws("Not")
def logical_not(d: Draw, op: str) -> None:
    d.node(op, [d.tensor((bool,))])


@draws("BitwiseNot")
def bitwise_not(d: Draw, op: str) -> None:
    d.node(op, [d.tensor((*INTS, np.uint8))])


@draws("Add", "Sub", "Mul", "Pow", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "PRelu")
def binary(d: Draw, op: str) -> None:
    name = d.tensor((np.float32,) if op == "PRelu" else NUMBERS)
    other = d.broadcasting(d.shape(name), d.dtype(name))
    d.node(op, [name, other] if op == "PRelu" or d.chance(0.5) else [other, name])


@draws("Div", "Mod")
def division(d: Draw, op: str) -> None:
    """Of whole numbers by constants only: 0 ends the process."""
    name = d.tensor(NUMBERS)
    whole = d.dtype(name).kind in "iu"
    attrs = {"fmod": d.maybe(d.r.randrange(2)) if whole else 1} if op == "Mod" else {}
    if whole:
        shape = [n if d.chance(0.6) else 1 for n in d.shape(name)]
        shape = shape[d.r.randrange(len(shape) + 1) :] if d.chance(0.3) else shape
        other = d.constant(np.asarray(d.plan.rng().integers(1, 4, shape), d.dtype(name)))
        d.node(op, [name, other], **attrs)
        return
    other = d.broadcasting(d.shape(name), d.dtype(name))
    d.node(op, [name, other] if d.chance(0.5) else [other, name], **attrs)


@draws("And", "Or", "Xor")
def logical(d: Draw, op: str) -> None:
    name = d.tensor((bool,))
    other = d.broadcasting(d.shape(name), bool)
    d.node(op, [name, other] if d.chance(0.5) else [other, name])


@draws("BitShift")
def bit_shift(d: Draw, op: str) -> None:
    name = d.tensor((np.uint8, np.uint32, np.uint64))
    other = d.broadcasting(d.shape(name), d.dtype(name))
    d.node(op, [name, other] if d.chance(0.5) else [other, name], direction=d.r.choice(("LEFT", "RIGHT")))


@draws("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(d: Draw, op: str) -> None:
    name = d.tensor((*INTS, np.uint8))
    other = d.broadcasting(d.shape(name), d.dtype(name))
    d.node(op, [name, other] if d.chance(0.5) else [other, name])


@draws("Max", "Min", "Mean", "Sum")
def variadic(d: Draw, op: str) -> None:
    dtypes = (np.float32, np.float64) if op in ("Mean", "Sum") else (*FLOATS, *INTS)
    names = [d.tensor(dtypes)]
    for _ in range(d.r.choices((0, 1, 2, 3), (1, 4, 4, 1))[0]):
        names.append(d.broadcasting(d.shape(d.r.choice(names)), d.dtype(names[0])))
    d.r.shuffle(names)
    d.node(op, names)


@draws("Where")
def where(d: Draw, op: str) -> None:
    name = d.tensor((*FLOATS, *INTS))
    others = [d.broadcasting(d.shape(name), bool), d.broadcasting(d.shape(name), d.dtype(name))]
    d.node(op, [others[0], name, others[1]] if d.chance(0.5) else [others[0], others[1], name])


_TYPES = (
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL,
    TensorProto.INT8, TensorProto.UINT8, TensorProto.UINT64,
)  # fmt: skip
_WITHOUT_ARRAYS = {
    TensorProto.BFLOAT16: 13, TensorProto.FLOAT8E4M3FN: 19, TensorProto.FLOAT8E5M2: 19, TensorProto.INT4: 21,
    TensorProto.UINT4: 21, TensorProto.FLOAT4E2M1: 23,
}  # fmt: skip


@draws("Cast")
def cast(d: Draw, op: str) -> None:
    name = d.tensor((*NUMBERS, bool))
    narrow = [element for element, since in _WITHOUT_ARRAYS.items() if d.opset >= since]
    if d.chance(0.25) and d.dtype(name) == np.float32:
        attrs = {"saturate": d.maybe(0, 0.3)} if d.opset >= 19 else {}
        d.group([(op, {"to": d.r.choice(narrow), **{k: v for k, v in attrs.items() if v is not None}}),
                 ("Cast", {"to": TensorProto.FLOAT})], name)  # fmt: skip
        return
    attrs = {}
    if d.opset >= 24 and d.chance(0.2):
        attrs["round_mode"] = d.r.choice(("up", "down", "nearest"))
    d.node(op, [name], to=d.r.choice(_TYPES), **attrs)


@draws("CastLike")
def cast_like(d: Draw, op: str) -> None:
    d.node(op, [d.tensor((*NUMBERS, bool)), d.tensor((*NUMBERS, bool))])


@draws("Clip")
def clip(d: Draw, op: str) -> None:
    name = d.tensor((*FLOATS, *INTS))
    dtype = d.dtype(name)
    low = d.given(np.array(-1, dtype)) if d.chance(0.6) else ""
    high = d.given(np.array(1, dtype)) if d.chance(0.6) else ""
    d.node(op, [name, low, high])


@draws("CumSum")
def cumulative_sum(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64, np.int32, np.float64), (1, 4))
    axis = d.given(np.array(d.axis(d.rank(name)), d.r.choice(INTS)))
    d.node(op, [name, axis], exclusive=d.maybe(d.r.randrange(2)), reverse=d.maybe(d.r.randrange(2)))


@draws("Softmax", "LogSoftmax", "Hardmax")
def softmax(d: Draw, op: str) -> None:
    name = d.tensor((np.float32,), (1, 4))
    d.node(op, [name], axis=d.maybe(d.axis(d.rank(name)), 0.7))


@draws("Dropout")
def dropout(d: Draw, op: str) -> None:
    inputs = [d.tensor((np.float32,))]
    inputs.append(d.given(np.array(0.5, np.float32)) if d.chance(0.5) else "")
    inputs.append(d.given(np.array(d.chance(0.5))) if d.chance(0.5) else "")
    d.node(op, inputs, outputs=d.r.choice((1, 2)), seed=d.maybe(3))


@draws("Bernoulli")
def bernoulli(d: Draw, op: str) -> None:
    name = d.node("Sigmoid", [d.tensor((np.float32,))])
    d.node(op, [name], dtype=d.maybe(d.r.choice((TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64))))


@draws("RandomNormalLike", "RandomUniformLike")
def random_like(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64))
    like_float = d.dtype(name) == np.float32 and d.chance(0.5)
    d.node(op, [name], dtype=None if like_float else d.r.choice((TensorProto.FLOAT, TensorProto.DOUBLE)))


@draws("RandomNormal", "RandomUniform")
def random_tensor(d: Draw, op: str) -> None:
    shape = [d.size() for _ in range(d.r.randrange(4))]
    d.node(op, [], shape=shape, dtype=d.maybe(d.r.choice((TensorProto.FLOAT, TensorProto.DOUBLE))))


@draws("Multinomial")
def multinomial(d: Draw, op: str) -> None:
    d.node(op, [d.tensor((np.float32,), 2, lambda v: v.size > 0)], sample_size=d.maybe(d.r.choice((1, 2, 5))),
           dtype=d.maybe(d.r.choice((TensorProto.INT32, TensorProto.INT64))))  # fmt: skip


@draws("Trilu")
def trilu(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64, np.float64), (2, 4))
    d.node(op, [name, d.integer(d.r.randrange(-2, 3))] if d.chance(0.6) else [name], upper=d.maybe(d.r.randrange(2)))


@draws("EyeLike")
def eye_like(d: Draw, op: str) -> None:
    name = d.tensor((np.float32, np.int64, np.int32), 2)
    d.node(op, [name], k=d.maybe(d.r.randrange(-2, 3)), dtype=d.maybe(TensorProto.FLOAT))


@draws("Det")
def det(d: Draw, op: str) -> None:
    name = d.tensor((np.float32,), (2, 4), lambda v: v.shape[-1] == v.shape[-2])
    d.node(op, [name])
