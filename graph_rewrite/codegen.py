"""The op descriptions as a C++ header, written into the build tree. Standard library only: a build runs this.

python -m graph_rewrite.codegen --output op_table.generated.h
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from .ops import OPS
from .spec import DOMAIN, DTYPE_VARIABLES, NODE_MARKERS, OP_VERSION, AttrSpec, Axis, OpSpec, TensorSpec

_HEADER = """// Generated from graph_rewrite/ops by graph_rewrite/codegen.py: change those, not this.
#ifndef BERTFUSE_OP_TABLE_GENERATED_H_
#define BERTFUSE_OP_TABLE_GENERATED_H_

#include "bertfuse/op.h"
#include "core/op_def.h"

namespace bertfuse {
"""


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _number(value: float) -> str:
    return repr(float(value)).replace("inf", "HUGE_VAL")


def _array(kind: str, name: str, rows: Iterable[str]) -> tuple[list[str], str]:
    """The lines of a constant array and the expression for it: C++ has no empty arrays, so those become a null."""
    rows = list(rows)
    if not rows:
        return [], "nullptr"
    return [f"inline constexpr {kind} {name}[] = {{", *(f"    {row}," for row in rows), "};"], name


def _axis(op: OpSpec, axis: Axis, text: str) -> str:
    names = [attr.name for attr in op.attributes]
    for used in (axis.divisor, axis.symbol if axis.is_attribute else None, *(name for _, name in axis.terms)):
        if used is not None and used not in names:
            raise ValueError(f"{op.name}: axis {text!r} uses the attribute {used!r}, which the op does not have")
    divisor = -1 if axis.divisor is None else names.index(axis.divisor)
    value = names.index(axis.symbol) if axis.is_attribute else -1
    terms = "".join(f"{{{number}, {names.index(name)}}}, " for number, name in axis.terms).removesuffix(", ")
    return (
        f"{{{_string(text)}, {_string(axis.symbol)}, {axis.multiplier}, {divisor}, {value}, {axis.offset}, "
        f"{{{terms}}}, {len(axis.terms)}}}"
    )


def _tensors(op: OpSpec, role: str, tensors: tuple[TensorSpec, ...]) -> list[str]:
    lines: list[str] = []
    rows = []
    for tensor in tensors:
        if tensor.dtype not in DTYPE_VARIABLES:
            raise ValueError(f"{op.name}: {tensor.name!r} has the unknown dtype variable {tensor.dtype!r}")
        named = [text for text in tensor.axes if text != "..."]
        axes = [_axis(op, axis, text) for axis, text in zip(tensor.trailing, named, strict=True)]
        array, expression = _array("AxisDef", f"k{op.name}_{role}_{tensor.name}", axes)
        lines += array
        index = op.input_index(tensor.needs) if tensor.needs else -1
        scales = op.input_index(tensor.scales) if tensor.scales else -1
        flags = ", ".join(
            str(flag).lower()
            for flag in (tensor.optional, tensor.constant, tensor.leading, tensor.packed, tensor.of_quantized_form)
        )
        rows.append(
            f"{{{_string(tensor.name)}, Variable::k{tensor.dtype}, {flags}, {index}, {scales}, "
            f"{expression}, {len(axes)}}}"
        )
    return lines + _array("TensorDef", f"k{op.name}_{role}", rows)[0]


def _attribute(op: OpSpec, attr: AttrSpec) -> tuple[list[str], str]:
    lines, choices = _array("const char*", f"k{op.name}_{attr.name}_choices", map(_string, attr.choices))
    default = {"int": "0", "float": "0.0f", "string": '""'}
    if attr.kind not in default:
        raise ValueError(f"{op.name}: attribute {attr.name!r} has the unknown kind {attr.kind!r}")
    if attr.default is not None:
        given = {"int": str, "float": lambda value: _number(value) + "f", "string": _string}[attr.kind](attr.default)
        default[attr.kind] = given
    minimum = "-HUGE_VAL" if attr.minimum is None else _number(attr.minimum)
    maximum = "HUGE_VAL" if attr.maximum is None else _number(attr.maximum)
    row = ", ".join(
        (
            _string(attr.name),
            f"AttrKind::k{attr.kind.capitalize()}",
            "true" if attr.default is None else "false",
            *default.values(),
            minimum,
            maximum,
            choices,
            str(len(attr.choices)),
            _string(attr.divides) if attr.divides else "nullptr",
        )
    )
    return lines, f"{{{row}}}"


def _indices(op: OpSpec) -> list[str]:
    """Names for the places in a call, so that kernels write In::bias and not 1."""
    outputs = (*op.outputs, *op.quantized_outputs)
    lines = [f"// {op.doc}", f"struct {op.name} {{", f"  static constexpr const char* kName = {_string(op.name)};"]
    for role, members in (("In", op.inputs), ("Out", outputs), ("Attr", op.attributes)):
        names = ", ".join(member.name for member in members)
        lines.append(f"  struct {role} {{\n    enum : int {{ {names} }};\n  }};")
    return [*lines, "};"]


def header() -> str:
    """The whole header: axis, tensor and attribute arrays of every op, the op list, and index names for kernels."""
    lines = [f"inline constexpr const char* kDomain = {_string(DOMAIN)};"]
    lines.append(f"inline constexpr int kOpVersion = {OP_VERSION};")
    lines.append(f"inline constexpr const char* kPluginVersion = {_string(NODE_MARKERS['plugin_version'])};")
    for variable, dtypes in DTYPE_VARIABLES.items():
        names = {f"BERTFUSE_{name.upper()}": number for name, number in dtypes.items()}
        lines.append(f"inline constexpr int32_t kDtypes{variable}[] = {{{', '.join(names)}}};")
        lines += [f"static_assert({name} == {number});" for name, number in names.items()]
    table = []
    for op in OPS.values():
        outputs = (*op.outputs, *op.quantized_outputs)
        lines += ["", *_indices(op), *_tensors(op, "inputs", op.inputs), *_tensors(op, "outputs", outputs)]
        rows = []
        for attr in op.attributes:
            extra, row = _attribute(op, attr)
            lines += extra
            rows.append(row)
        array, attributes = _array("AttrDef", f"k{op.name}_attributes", rows)
        lines += array
        table.append(
            f"{{{_string(op.name)}, k{op.name}_inputs, {len(op.inputs)}, k{op.name}_outputs, {len(op.outputs)}, "
            f"{len(op.quantized_outputs)}, {attributes}, {len(op.attributes)}}}"
        )
    lines += ["", *_array("OpDef", "kOps", table)[0]]
    return (
        _HEADER + "\n" + "\n".join(lines) + "\n\n}  // namespace bertfuse\n#endif  // BERTFUSE_OP_TABLE_GENERATED_H_\n"
    )


def write_header(path: Path) -> bool:
    """Write the header if it changed (an unchanged one keeps its time, so nothing is recompiled). True if it did."""
    text = header()
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="header to write")
    write_header(parser.parse_args().output)


if __name__ == "__main__":
    main()
