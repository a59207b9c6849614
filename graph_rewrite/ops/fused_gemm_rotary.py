"""The product that makes Q, K and V where attention takes them rotated: a pass writes it."""

from dataclasses import replace

from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import BIAS, ROW_COUNT, WEIGHT, X, Y
from .products import QUANTIZED, linear

ROWS = ("B", "S")
INPUTS = (
    replace(X, axes=(*ROWS, "K")),
    replace(WEIGHT, doc="heads of Q, of K and of V, one below the other"),
    TensorSpec("cos", ("C", "R"), doc="of each place's angles, for 2 R columns of a head; C is S without places"),
    TensorSpec("sin", ("C", "R")),
    replace(BIAS, optional=True),
    # Not the offsets of sequences: then a row would have to look for its own.
    TensorSpec("places", ROWS, dtype="C", optional=True, packed=True, doc="of each packed row: see places_in"),
    ROW_COUNT,
    *(replace(t, axes=(*ROWS, *t.axes[1:])) if t.leading else t for t in QUANTIZED),
)


def body(d, *values, num_heads, kv_num_heads, pairs, places_in):
    named = {tensor.name: value for tensor, value in zip(INPUTS, values, strict=True)}
    cos, sin, places, _ = (named.pop(name) for name in ("cos", "sin", "places", "row_count"))
    q, k, v = d.split_grouped_heads(linear(d, **named), num_heads, kv_num_heads)
    if places is not None:
        places = d.columns_of(places, cos) if places_in == "batch" else places
        cos, sin = d.rows_at(cos, places), d.rows_at(sin, places)
    return d.join_heads(d.rotary(q, cos, sin, pairs), d.rotary(k, cos, sin, pairs), v)


OP = OpSpec(
    name="FusedGemmRotary",
    doc="x Wᵀ + bias, of which heads of Q and K are rotated by their place: what FusedAttentionVariant would rotate.",
    inputs=INPUTS,
    outputs=(replace(Y, axes=(*ROWS, "N")),),
    attributes=(
        AttrSpec("num_heads", "int", minimum=1, maximum=4096, doc="heads of Q"),
        AttrSpec("kv_num_heads", "int", minimum=1, maximum=4096, doc="heads of K and of V"),
        AttrSpec(
            "pairs", "string", "halves", choices=("halves", "neighbours"), doc="columns i and i + R, or 2i and 2i + 1"
        ),
        AttrSpec(
            "places_in",
            "string",
            "tables",
            choices=("tables", "batch"),
            by_pass=True,
            doc="what places count: rows of cos and sin, or tokens of the flattened padded batch, of C in each text",
        ),
    ),
    body=body,
    by_pass=True,
)
