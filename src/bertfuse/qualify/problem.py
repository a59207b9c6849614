"""One problem: an op with sizes, dtype, tactic, alignment and the kind of data, written as one line of text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.ops import OPS
from bertfuse.graph_rewrite.spec import DTYPE_VARIABLES, OpSpec, TensorSpec

from . import lengths

DTYPES = ("float32", "float16", "bfloat16")
DEFAULT_TACTIC = -1
ATTENTIONS = ("FusedAttention", "FusedAttentionVariant")
WRITING = ("y_zero_point", "y_smooth", "y_tensor_scale")  # what a call is given that writes in 8 bits
# Ops that are drawn so.
WRITERS = (
    *ATTENTIONS,
    "FusedGemmGelu",
    "FusedGemmLayerNorm",
    "FusedGemmGeluLayerNorm",
    "FusedGemmResidualNorm",
    "FusedGatedGemm",
)
QUANTIZED = tuple(op for op in (*WRITERS, "FusedGemm") if op not in ATTENTIONS)  # products of 8-bit operands
# What else such a product may be given, and what of it needs another one. Rows in 8 bits bring their scales.
GIVEN = {
    "x_smooth": "",
    "x_scale": "",
    "x_zero": "x_scale",
    "x_quantized": "",
    "x_compensation": "x_quantized",
    "residual_quantized": "",
    "residual_factor": "residual_quantized",
}
ROW_SCALES = {"x_quantized": "x_row_scale", "residual_quantized": "residual_row_scale"}
OF_INTEGERS = ("x_zero", "x_compensation")
PACKED_ALONE = ("UnpackTokens", "FirstTokens", "RaggedPositions")  # without packed rows they have nothing to do
_ONE = {"I": 1, "J": 1}  # axes of one row, of vectors that their rank tells from others
_SWITCHES = ("constant", "tf32", "hints", "broken")

# What float inputs hold. `values.py` makes them.
VALUES = ("normal", "large", "small", "offset", "outliers", "zeros", "infinite", "rows")
# Which keys the attention mask shows.
MASKS = ("random", "ones", "left", "right", "holes", "last", "first", "empty", "wide")


@dataclass(frozen=True)
class Problem:
    """What a kernel is asked to compute, and how.

    Attributes:
        op: name in the op table.
        dtype: of the float tensors; index tensors have `index`.
        sizes: of the description's axis symbols (K, N; B, S, H; V, P, T); the number of packed sequences is none.
        leading: sizes of the axes that "..." stands for; their product is the number of rows.
        attributes: those that differ from the defaults, and the required ones.
        tactic: its number; -1 is the choice that the library makes.
        onwards: also every tactic after that one.
        offset: elements that tensors start behind a 256-byte boundary: all of them, or the one named `offset_of`.
        without: optional inputs that are absent.
        constant: weights are declared to be initialisers, which a kernel may read before its predecessor has ended.
        tf32: float32 products may be rounded to TF32.
        packed: lengths of the sequences whose rows lie one after the other; None where rows are padded.
        writes: results are written in 8 bits of this type ("int8", "float8e4m3fn"), too; "": in `dtype` alone.
        weights: the type of a product's operands in 8 bits; "": they have `dtype`.
        given: which of GIVEN such a product has. Without x_quantized it rounds x itself.
        broken: counts, offsets or places of packed rows are out of range: nothing may be written or read outside the
            tensors, and that is all that is promised.
        hints: a tactic may be chosen by how many packed rows the calls before had, and give other bits each time.
        seed: of the data. Two sets of inputs come from it, the second for the same pointers.
    """

    op: str
    dtype: str = "float32"
    sizes: Mapping[str, int] = field(default_factory=dict)
    leading: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tactic: int = DEFAULT_TACTIC
    onwards: bool = False
    offset: int = 0
    offset_of: str = ""
    values: str = "normal"
    mask: str = "random"
    index: str = "int64"
    without: tuple[str, ...] = ()
    constant: bool = False
    tf32: bool = False
    packed: tuple[int, ...] | None = None
    hints: bool = False
    broken: bool = False
    writes: str = ""
    weights: str = ""
    given: tuple[str, ...] = ()
    seed: int = 0

    @property
    def spec(self) -> OpSpec:
        return OPS[self.op]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.spec.outputs_of(WRITING if self.writes else ())

    def has(self, tensor: TensorSpec) -> bool:
        if tensor.of_quantized_form and tensor.name not in self._of_quantized_form:
            return False
        return tensor.name not in self.without and (self.packed is not None or not tensor.packed)

    @property
    def _of_quantized_form(self) -> tuple[str, ...]:
        scales = ("weight_scale", *self.given) if self.weights else ()
        of_rows = (scale for rows, scale in ROW_SCALES.items() if rows in scales)
        return (*scales, *of_rows, *(WRITING if self.writes else ()))

    def shape(self, tensor: TensorSpec) -> tuple[int, ...]:
        sizes = {**_ONE, **self.sizes} if self.packed is None else {**_ONE, "N": len(self.packed), **self.sizes}
        return tensor_shape(tensor, sizes, self.leading, self.attributes)

    def attribute(self, name: str) -> Any:
        default = next(attr.default for attr in self.spec.attributes if attr.name == name)
        return self.attributes.get(name, default)

    @property
    def capacity(self) -> int:
        """How many packed rows there are places for."""
        s = self.sizes
        if "B" not in s:
            return math.prod(self.leading)
        return min(s["P"] * s["Q"], s["B"] * s["S"]) if self.op == "UnpackTokens" else s["B"] * s["S"]

    def with_tactic(self, tactic: int, onwards: bool = False) -> Problem:
        return replace(self, tactic=tactic, onwards=onwards)

    @property
    def row(self) -> str:
        """What the problem is counted with in reports: its types, or tf32, and whether rows are packed."""
        packed = "" if self.packed is None else " broken" if self.broken else " packed"
        operands = {"": "", "int8": "-int8", "float8e4m3fn": "-fp8"}[self.weights]
        return ("tf32" if self.tf32 else self.dtype) + operands + packed

    @property
    def elements(self) -> int:
        """Of all tensors together."""
        tensors = [tensor for tensor in self.spec.inputs if self.has(tensor)]
        return sum(math.prod(self.shape(tensor)) for tensor in (*tensors, *self.outputs))

    @property
    def work(self) -> float:
        """Multiplications, about; what the reference does with a score of attention counts as much as 90 of them."""
        s = self.sizes
        if "K" in s:
            return float(self.capacity) * s["N"] * max(1, s["K"])
        if self.op in ATTENTIONS:
            squares = s["B"] * s["S"] ** 2 if self.packed is None else sum(length**2 for length in self.packed)
            heads = self.attribute("num_heads")
            if self.op == "FusedAttention":
                return squares * (2.0 * s["H"] + 90.0 * heads)
            return squares * heads * (2.0 * s["D"] + 120.0)
        return float(self.elements)

    def __str__(self) -> str:
        words = [self.op, self.dtype]
        if any(tensor.leading for tensor in self.spec.inputs):
            words.append("rows=" + "x".join(map(str, self.leading)))
        words += [f"{name}={size}" for name, size in self.sizes.items()]
        words += [f"{name}={value!r}".replace("'", "") for name, value in self.attributes.items()]
        words.append(f"tactic={self.tactic}{'..' if self.onwards else ''}")
        if self.offset:
            words.append(f"offset={self.offset}{'@' if self.offset_of else ''}{self.offset_of}")
        if self.values != "normal":
            words.append(f"values={self.values}")
        indices = [tensor.name for tensor in self.spec.inputs if tensor.dtype == "I" and self.has(tensor)]
        if "mask" in indices:
            words.append(f"mask={self.mask}")
        if indices and self.index != "int64":
            words.append(f"index={self.index}")
        if self.without:
            words.append("without=" + ",".join(self.without))
        if self.packed is not None:
            words.append(f"packed={lengths.write(self.packed)}")
        if self.writes:
            words.append(f"writes={self.writes}")
        if self.weights:
            words.append(f"weights={self.weights}")
        if self.given:
            words.append("given=" + ",".join(self.given))
        words += [name for name in _SWITCHES if getattr(self, name)]
        return " ".join([*words, f"seed={self.seed}"])


def may_leave_y(problem: Problem) -> bool:
    """Whether kernels may leave y itself unwritten, beside its numbers in 8 bits."""
    given = {tensor.name for tensor in problem.spec.inputs if problem.has(tensor)}
    return problem.spec.may_leave_y(given, problem.attributes.get("y_use", ""))


def writing_without(spec: OpSpec) -> tuple[str, ...]:
    """Inputs that a call which writes in 8 bits may lack."""
    if spec.name not in WRITERS:
        return ()
    by_row = any(tensor.name == "y_tensor_scale" for tensor in spec.inputs) and not spec.quantizes_by_tensor
    return ("y_smooth", "y_tensor_scale") if by_row else ("y_smooth",)


def tensor_shape(
    tensor: TensorSpec, sizes: Mapping[str, int], leading: tuple[int, ...], attributes: Mapping[str, Any]
) -> tuple[int, ...]:
    """The shape of one tensor of an op at these sizes."""
    return (leading if tensor.leading else ()) + tuple(axis.size(sizes, attributes) for axis in tensor.trailing)


def parse(text: str) -> Problem:
    """The problem that `text` describes, as str() writes it. Raises BertfuseError with the word that does not fit."""
    words = text.split()
    if not words or words[0] not in OPS:
        raise BertfuseError(f"--problem {text!r}: begins with an op, one of {', '.join(OPS)}")
    spec = OPS[words[0]]
    tensors = [tensor for tensor in spec.inputs if not tensor.by_pass]
    axes = [axis for tensor in tensors for axis in tensor.trailing]
    symbols = {axis.symbol for axis in axes if not axis.is_attribute} - {axis.symbol for axis in axes if axis.offset}
    attributes = {attr.name: attr for attr in spec.attributes}
    found: dict[str, Any] = {"op": words[0], "sizes": {}, "attributes": {}}
    for word in words[1:]:
        name, _, value = word.partition("=")
        try:
            if word in DTYPES:
                found["dtype"] = word
            elif word in _SWITCHES:
                found[word] = True
            elif name in symbols:
                found["sizes"][name] = _natural(value)
            elif name == "rows":
                found["leading"] = tuple(map(_natural, value.split("x")))
            elif name in attributes:
                kind = {"int": int, "float": float, "string": str}[attributes[name].kind]
                found["attributes"][name] = kind(value)
            elif name == "tactic":
                found |= {"tactic": int(value.removesuffix("..")), "onwards": value.endswith("..")}
            elif name == "offset":
                offset, _, tensor = value.partition("@")
                found |= {"offset": _natural(offset), "offset_of": tensor}
            elif name == "packed":
                found["packed"] = lengths.read(value)
            elif name == "seed":
                found["seed"] = _natural(value)
            elif (name, value) in _in_8_bits(spec):
                found[name] = value
            elif name == "given" and spec.name in QUANTIZED and set(value.split(",")) <= set(GIVEN):
                found["given"] = tuple(value.split(","))
            elif (name, value) in _choices(spec):
                found[name] = value
            elif name == "without" and value and set(value.split(",")) <= _may_lack(spec):
                found["without"] = tuple(value.split(","))
            else:
                raise ValueError
        except ValueError:
            raise BertfuseError(f"--problem {text!r}: {word!r} is not understood for {spec.name}") from None
    _check(spec, found, _needed(spec, symbols, found.get("without", ())), text)
    problem = Problem(**found)
    _check_packed(problem, text)
    _check_given(problem, text)
    return problem


def _in_8_bits(spec: OpSpec) -> set[tuple[str, str]]:
    """The words for operands and results in 8 bits."""
    names = [name for name, ops in (("writes", WRITERS), ("weights", QUANTIZED)) if spec.name in ops]
    return {(name, value) for name in names for value in DTYPE_VARIABLES["Q"]}


def _may_lack(spec: OpSpec) -> set[str]:
    """Inputs that a problem may name as absent: packed attention may have no places, rows with places be all real."""
    packed = {"FusedAttentionVariant": ("token_index",), "FusedGemmRotary": ("row_count",)}
    return {*spec.optional_inputs, *packed.get(spec.name, ()), *writing_without(spec)}


def _needed(spec: OpSpec, symbols: set[str], without: tuple[str, ...]) -> set[str]:
    """The symbols that some tensor which is given has."""
    given = [tensor for tensor in (*spec.inputs, *spec.outputs) if tensor.name not in without]
    return symbols & {axis.symbol for tensor in given for axis in tensor.trailing} - set(_ONE)


def _natural(text: str) -> int:
    value = int(text)
    if not 0 <= value < 1 << 40:
        raise ValueError
    return value


def _choices(spec: OpSpec) -> set[tuple[str, str]]:
    choices = {("values", value) for value in VALUES} | {("index", "int32"), ("index", "int64")}
    return choices | ({("mask", mask) for mask in MASKS} if any(t.name == "mask" for t in spec.inputs) else set())


def _check(spec: OpSpec, found: dict[str, Any], symbols: set[str], text: str) -> None:
    missing = sorted(symbols - set(found["sizes"]))
    missing += [attr.name for attr in spec.attributes if attr.default is None and attr.name not in found["attributes"]]
    if missing:
        raise BertfuseError(f"--problem {text!r}: {missing[0]}= is missing")
    if "leading" not in found and any(tensor.leading for tensor in spec.inputs):
        raise BertfuseError(f"--problem {text!r}: rows= is missing, as in rows=128 or rows=2x64")
    if found.get("offset_of") and found["offset_of"] not in [t.name for t in (*spec.inputs, *spec.outputs)]:
        raise BertfuseError(f"--problem {text!r}: {spec.name} has no tensor {found['offset_of']!r}")
    for attr in spec.attributes:
        value = found["attributes"].get(attr.name, attr.default)
        if attr.choices and value not in attr.choices:
            raise BertfuseError(f"--problem {text!r}: {attr.name} is one of {', '.join(attr.choices)}")
        if attr.minimum is not None and value < attr.minimum:
            raise BertfuseError(f"--problem {text!r}: {attr.name} is {value}, expected at least {attr.minimum:g}")
        if attr.divides and (value < 1 or found["sizes"][attr.divides] % value):
            raise BertfuseError(f"--problem {text!r}: {attr.name} does not divide {attr.divides}")


def _check_packed(problem: Problem, text: str) -> None:
    name, given, mistake = problem.op, problem.packed, ""
    if given is None:
        if name in PACKED_ALONE:
            mistake = f"packed= is missing, as in packed=3,0,5x40: {name} is of packed rows"
        elif problem.broken or problem.hints:
            mistake = "broken and hints are of packed rows: add packed="
    elif name not in PACKED_ALONE and not problem.spec.packed_inputs:
        mistake = f"{name} has no packed form"
    elif name in ATTENTIONS and "mask" not in problem.without:
        mistake = "packed rows have no mask: add without=mask"
    elif sum(given) > problem.capacity:
        mistake = f"packed= holds {sum(given)} rows, more than the {problem.capacity} that the tensors hold"
    elif name == "RaggedPositions" and sum(given) < problem.capacity:
        mistake = f"packed= holds {sum(given)} rows, expected {problem.capacity}: every row is a token"
    elif name == "RaggedPositions" and max(given, default=0) > problem.sizes["M"]:
        mistake = f"a sequence has {max(given)} tokens, but M={problem.sizes['M']}"
    if mistake:
        raise BertfuseError(f"--problem {text!r}: {mistake}")


def _check_given(problem: Problem, text: str) -> None:
    mistake = "given= is of products of 8-bit operands: add weights=int8" if not problem.weights else ""
    for name in problem.given:
        if GIVEN[name] and GIVEN[name] not in problem.given:
            mistake = mistake or f"{name} needs {GIVEN[name]}: add it to given="
        if name in OF_INTEGERS and problem.weights != "int8":
            mistake = mistake or f"{name} is of integers: write weights=int8"
        if name not in {tensor.name for tensor in problem.spec.inputs}:
            mistake = mistake or f"{problem.op} has no {name}"
    if problem.given and mistake:
        raise BertfuseError(f"--problem {text!r}: {mistake}")
