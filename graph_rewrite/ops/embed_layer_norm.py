from dataclasses import replace

from ..spec import OpSpec, TensorSpec
from ._common import EPSILON, ROW_COUNT, TOKEN_INDEX, WEIGHT_SCALE, Y_QUANTIZED, Y_SCALE, Y_SMOOTH, Y_ZERO_POINT


def body(
    d,
    ids,
    word_table,
    position_table,
    gamma,
    beta,
    token_type_ids,
    token_type_table,
    position_ids,
    token_index,
    row_count,
    word_scale,
    y_zero_point,
    y_smooth,
    *,
    epsilon,
):
    token_type_ids = None if token_type_ids is None else d.of_one_shape(token_type_ids, ids)
    positions = None if position_ids is None else d.of_one_shape(position_ids, ids)
    if token_index is not None:
        if positions is not None:
            positions = d.take_tokens(positions, token_index)
        elif position_table is not None:
            positions = d.places(token_index, ids)
        token_type_ids = None if token_type_ids is None else d.take_tokens(token_type_ids, token_index)
        ids = d.take_tokens(ids, token_index)
    y = d.embedding(word_table, ids) if word_scale is None else d.quantized_embedding(word_table, word_scale, ids)
    if token_type_ids is not None:
        y = d.add(y, d.embedding(token_type_table, token_type_ids))
    if position_table is not None:
        y = d.add(y, d.embedding(position_table, d.positions(ids) if positions is None else positions))
    y = d.layer_norm(y, gamma, beta, epsilon)
    return y if y_zero_point is None else (y, *d.quantize_rows(y, y_zero_point, y_smooth))


OP = OpSpec(
    name="EmbedLayerNorm",
    doc="LayerNorm(word[ids] + token_type[token_type_ids] + position[position_ids]); positions are 0..S-1 if absent. "
    "Without position_table none are added.",
    inputs=(
        TensorSpec("ids", ("B", "S"), dtype="I"),
        TensorSpec("word_table", ("V", "H"), dtype="W", constant=True),
        # A plugin layer of TensorRT cannot have gaps: there a third input of one axis is gamma, and this one is absent.
        TensorSpec("position_table", ("P", "H"), optional=True, constant=True),
        TensorSpec("gamma", ("H",), constant=True),
        TensorSpec("beta", ("H",), constant=True),
        TensorSpec("token_type_ids", ("B", "S"), dtype="I", optional=True, needs="token_type_table"),
        TensorSpec("token_type_table", ("T", "H"), optional=True, constant=True, needs="token_type_ids"),
        TensorSpec("position_ids", ("B", "S"), dtype="I", optional=True, needs="position_table"),
        # With it row i is of the token at place token_index[i] of the flattened [B, S].
        replace(TOKEN_INDEX, optional=True, packed=True, needs="row_count"),
        replace(ROW_COUNT, needs="token_index"),
        replace(WEIGHT_SCALE, name="word_scale", axes=("V",), scales="word_table"),
        Y_ZERO_POINT,
        replace(Y_SMOOTH, axes=("I", "H")),
    ),
    outputs=(TensorSpec("y", ("B", "S", "H")),),
    attributes=(EPSILON,),
    body=body,
    quantized_outputs=(replace(Y_QUANTIZED, axes=("B", "S", "H")), replace(Y_SCALE, axes=("B", "S"))),
)
