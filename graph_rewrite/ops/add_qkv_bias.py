from ..spec import OpSpec, TensorSpec
from ._common import NUM_HEADS, QKV, QKV_BIAS


def body(d, qkv, bias, *, num_heads):
    return d.split_heads(d.add(qkv, bias), num_heads)


_HEADS = ("B", "num_heads", "S", "H/num_heads")

OP = OpSpec(
    name="AddQKVBias",
    doc="Adds the packed bias, splits Q, K and V and brings the heads forward: attention left to the runtime.",
    inputs=(QKV, QKV_BIAS),
    outputs=tuple(TensorSpec(name, _HEADS) for name in ("q", "k", "v")),
    attributes=(NUM_HEADS,),
    body=body,
)
