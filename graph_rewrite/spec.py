"""What an op is: names, axes, dtypes, attributes and a body. Pure standard library, so that a build can read it.

Axis expressions in `TensorSpec.axes`:
    "..."           any number of leading axes, the same in every tensor that has it
    "H"             a size that every use of the symbol must agree on
    "3*H"           three times H; a size that 3 does not divide is an error
    "N+1"           one more than N
    "H/num_heads"   H divided by the integer attribute `num_heads`, which must divide it
    "num_heads"     the value of the integer attribute (lower case; symbols start with a capital)
    "num_heads*D"   D times the attribute; "(num_heads+2*kv_num_heads)*D": times a sum of attributes
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

DOMAIN = "bertfuse"
OP_VERSION = 1

# What a model's metadata says of its padding: "remove" or "ragged"; nothing where it was kept.
PADDING_KEY = "bertfuse.padding"
# What it says of its quantised weights: their element type.
QUANTIZED_KEY = "bertfuse.quantized"

# Every fused node carries these: TensorRT's parser looks a plugin up by them (and takes the function without them).
NODE_MARKERS = {"plugin_version": "1", "plugin_namespace": "bertfuse"}

# ONNX TensorProto.DataType numbers of each dtype variable.
DTYPE_VARIABLES = {
    "T": {"float32": 1, "float16": 10, "bfloat16": 16},
    "I": {"int32": 6, "int64": 7},
    "C": {"int32": 6},  # counts and offsets of rows, which kernels read on the device
    # Weights: of T's type, or quantised; then another input holds their scales.
    "W": {"float32": 1, "float16": 10, "bfloat16": 16, "int8": 3, "float8e4m3fn": 17},
    "S": {"float32": 1},  # scales, and what else is float32 whatever T is
    "Q": {"int8": 3, "float8e4m3fn": 17},  # of a result that is written, or a residual that comes, in 8 bits
}

_AXIS = re.compile(
    r"^(?:(?P<multiplier>\d+)\*)?(?P<symbol>[A-Za-z][A-Za-z0-9_]*)(?:/(?P<divisor>[a-z_]+))?(?:\+(?P<offset>\d+))?$"
)
_BY_ATTRIBUTES = re.compile(
    r"^(?:(?P<one>[a-z_]+)|\((?P<sum>(?:\d+\*)?[a-z_]+(?:\+(?:\d+\*)?[a-z_]+)*)\))\*(?P<symbol>[A-Z][A-Za-z0-9_]*)$"
)


@dataclass(frozen=True)
class Axis:
    """One parsed axis expression: multiplier * symbol / attribute `divisor` (None: not divided) + offset.

    With `terms`, (number, attribute) pairs, the multiplier is the sum of their products instead.
    """

    symbol: str
    multiplier: int = 1
    divisor: str | None = None
    offset: int = 0
    terms: tuple[tuple[int, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Axis:
        if (match := _BY_ATTRIBUTES.match(text)) is not None:
            parts = [term.rpartition("*") for term in (match["one"] or match["sum"]).split("+")]
            return cls(match["symbol"], terms=tuple((int(number or 1), name) for number, _, name in parts))
        match = _AXIS.match(text)
        if match is None:
            raise ValueError(
                f"axis expression {text!r}: expected 'N', '3*N', 'N/attribute', 'N+1', 'attribute*N' or"
                " '(attribute+2*attribute)*N'"
            )
        return cls(match["symbol"], int(match["multiplier"] or 1), match["divisor"], int(match["offset"] or 0))

    def size(self, sizes: Mapping[str, int], attributes: Mapping[str, Any]) -> int:
        """The axis' size, by those of the symbols and the attributes' values."""
        value = int(attributes[self.symbol]) if self.is_attribute else sizes[self.symbol]
        divisor = 1 if self.divisor is None else int(attributes[self.divisor])
        return self.times(attributes) * value // divisor + self.offset

    def symbol_size(self, size: int, attributes: Mapping[str, Any]) -> int:
        """The symbol's size where the axis is that long; rounded down where no size of it fits."""
        divisor = 1 if self.divisor is None else int(attributes[self.divisor])
        return (size - self.offset) * divisor // self.times(attributes)

    def times(self, attributes: Mapping[str, Any]) -> int:
        """What the symbol is multiplied with."""
        if not self.terms:
            return self.multiplier
        return sum(number * int(attributes[name]) for number, name in self.terms)

    @property
    def is_plain(self) -> bool:
        """Whether the axis is as long as its symbol says."""
        return self.multiplier == 1 and self.divisor is None and self.offset == 0 and not self.terms

    @property
    def is_attribute(self) -> bool:
        """Whether the size is an attribute's value, not a symbol."""
        return self.symbol[0].islower()


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    dtype     a key of DTYPE_VARIABLES
    constant  fusion wants an initialiser here
    needs     another input that must be given whenever this optional one is
    packed    only a pass gives it, to tell an op of packed rows which of them are real: fusion does not look for it
    scales    the input of which it holds the scales, in the op's quantised form alone: fusion does not look for it.
              A weight (dtype W) is quantised if and only if its scales are given
    quantized another one of the quantised form: fusion does not look for it

    An output that is optional is there if and only if the input that it `needs` is given.
    """

    name: str
    axes: tuple[str, ...]
    dtype: str = "T"
    optional: bool = False
    constant: bool = False
    needs: str = ""
    packed: bool = False
    scales: str = ""
    quantized: bool = False
    doc: str = ""

    @property
    def is_float(self) -> bool:
        """Whether it is of the op's float type, as long as it is not quantised."""
        return self.dtype in ("T", "W")

    @property
    def by_pass(self) -> bool:
        """Whether a pass gives it, to a node that was fused without it."""
        return self.packed or self.of_quantized_form

    @property
    def of_quantized_form(self) -> bool:
        """Whether it is there in the op's quantised form alone."""
        return self.quantized or bool(self.scales)

    @property
    def leading(self) -> bool:
        """Whether any number of leading axes precedes the named ones."""
        return bool(self.axes) and self.axes[0] == "..."

    @property
    def trailing(self) -> tuple[Axis, ...]:
        """The named axes, parsed."""
        return tuple(Axis.parse(axis) for axis in self.axes if axis != "...")


@dataclass(frozen=True)
class AttrSpec:
    """One attribute.

    default           None: the node must carry it
    minimum, maximum  inclusive
    divides           an axis symbol whose size must be a multiple of the (integer) value
    by_pass           only a pass gives another value than the default: fusion neither looks for it nor writes it
    """

    name: str
    kind: str  # "int", "float" or "string"
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    divides: str = ""
    by_pass: bool = False
    doc: str = ""


@dataclass(frozen=True)
class OpSpec:
    """One op: everything else (pattern, ONNX function, C++ table, test oracle) is derived from this.

    `body(dialect, *inputs, **attributes)` computes the outputs with the few ops of `graph_rewrite.dialect`; an absent
    optional input is None. `quantized_outputs`, in a node behind the others, are all optional. Fusion does not look for
    an op that is `by_pass`: normalising or a pass writes it beside others.
    """

    name: str
    doc: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: tuple[AttrSpec, ...]
    body: Callable[..., Any] = field(repr=False)
    by_pass: bool = False
    quantized_outputs: tuple[TensorSpec, ...] = ()

    def outputs_of(self, present: Collection[str]) -> tuple[TensorSpec, ...]:
        """The outputs of a node with these inputs."""
        return (*self.outputs, *(tensor for tensor in self.quantized_outputs if tensor.needs in present))

    def input_index(self, name: str) -> int:
        return next(i for i, tensor in enumerate(self.inputs) if tensor.name == name)

    @property
    def quantizes_by_tensor(self) -> bool:
        """Whether what it writes in 8 bits always has one scale for all rows."""
        return any(tensor.name == "y_zero_point" and tensor.needs for tensor in self.inputs)

    def may_leave_y(self, present: Collection[str], y_use: str) -> bool:
        """Whether kernels may leave y unwritten, given these inputs and that attribute (where there is one)."""
        return "y_zero_point" in present and (self.quantizes_by_tensor or y_use == "unread")

    @property
    def optional_inputs(self) -> tuple[str, ...]:
        """Those that a model may have or lack; what a pass adds is not among them."""
        return tuple(tensor.name for tensor in self.inputs if tensor.optional and not tensor.by_pass)

    @property
    def found_attributes(self) -> tuple[AttrSpec, ...]:
        """Those whose values fusion takes from a model."""
        return tuple(attr for attr in self.attributes if not attr.by_pass)

    @property
    def packed_inputs(self) -> tuple[str, ...]:
        """Those that only a pass gives."""
        return tuple(tensor.name for tensor in self.inputs if tensor.packed)
