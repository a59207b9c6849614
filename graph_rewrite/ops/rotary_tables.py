"""Cosines and sines by which RoPE turns heads: normalising writes it before what reads its tables."""

from ..spec import AttrSpec, OpSpec, TensorSpec


def body(d, tokens, frequencies, like, *, angle, scaling):
    return d.rotary_tables(tokens, frequencies, like, angle, scaling)


OP = OpSpec(
    name="RotaryTables",
    doc="Cosine and sine, times `scaling`, of the angles that each place turns each pair of columns by: the place, "
    "counted from 0, times or over the pair's frequency. Angles are float32 whatever the type of the tables.",
    inputs=(
        TensorSpec("tokens", ("...", "C"), dtype="I", doc="only its shape is read: a row of the tables for each of C"),
        TensorSpec("frequencies", ("R",), dtype="S", constant=True, doc="radians a place, or places a radian"),
        TensorSpec("like", (), constant=True, doc="of the tables' type; its value is not read"),
    ),
    outputs=(TensorSpec("cos", ("C", "R")), TensorSpec("sin", ("C", "R"))),
    attributes=(
        AttrSpec(
            "angle", "string", "product", choices=("product", "quotient"), doc="place * frequency, or place / frequency"
        ),
        AttrSpec("scaling", "float", 1.0, minimum=-1e4, maximum=1e4, doc="attention scaling, of YaRN for example"),
    ),
    body=body,
    by_pass=True,
)
