from ..spec import AttrSpec, OpSpec, TensorSpec
from ._common import NUM_HEADS, QKV, QKV_BIAS


def body(d, qkv, bias, mask, *, num_heads, scale):
    q, k, v = d.split_heads(d.add(qkv, bias), num_heads)
    return d.attention(q, k, v, mask, scale)


OP = OpSpec(
    name="FusedAttention",
    doc="AddQKVBias, softmax(QKᵀ scale + mask) V, heads merged. A row whose mask hides every key attends to all alike.",
    inputs=(
        QKV,
        QKV_BIAS,
        TensorSpec("mask", ("B", "S"), dtype="I", optional=True, doc="the model's attention mask: 0 hides a key"),
    ),
    outputs=(TensorSpec("y", ("B", "S", "H")),),
    attributes=(NUM_HEADS, AttrSpec("scale", "float", minimum=0.0, maximum=1e4, doc="usually 1 / sqrt(H / num_heads)")),
    body=body,
)
