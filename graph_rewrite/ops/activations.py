"""What an op may do to each element of a product: the values of its attribute `activation`.

plugins/core/activation.h has the kernels' functions of the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..spec import AttrSpec

NONE = "none"


@dataclass(frozen=True)
class Activation:
    """A function of one element.

    numpy(reference, x)  of an array of float64
    onnx(dialect, x)     in standard operators, emitted by the dialect (dialect/standard_ops.py)
    slope(size)          how much an error of an argument that is no larger than `size` may grow
    """

    numpy: Callable[[Any, Any], Any]
    onnx: Callable[[Any, Any], Any]
    slope: Callable[[Any], Any]


def _gelu(approximate: str) -> Activation:
    def body(d, x):
        return d.gelu(x, approximate)

    return Activation(body, body, lambda size: 1.13)


def _scaled_silu(factor: float) -> Activation:
    def body(d, x):
        return d.scaled_silu(x, factor)

    return Activation(body, body, lambda size: 1.1)


# Of any product: each one more makes all their kernels larger. Gates have the others, too.
OF_PRODUCTS = {
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "relu2": Activation(
        lambda d, x: x.clip(0) ** 2, lambda d, x: d.emit("Mul", [d.emit("Relu", [x])] * 2), lambda size: 2 * size
    ),
}
ACTIVATIONS = OF_PRODUCTS | {
    "silu": _scaled_silu(1.0),
    "quick_gelu": _scaled_silu(1.702),
}

# The names of GELU by the attribute `approximate`, which ONNX has.
GELUS = {"none": "gelu", "tanh": "gelu_tanh"}

ACTIVATION = AttrSpec(
    "activation", "string", NONE, choices=(NONE, *OF_PRODUCTS), by_pass=True, doc="of each element, after the bias"
)
