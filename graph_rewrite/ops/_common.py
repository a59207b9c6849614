"""Tensors and attributes that several ops share."""

from ..spec import AttrSpec, TensorSpec

X = TensorSpec("x", ("...", "K"), doc="input of the matrix product")
WEIGHT = TensorSpec("weight", ("N", "K"), constant=True, doc="as torch.nn.Linear.weight: K contiguous")
BIAS = TensorSpec("bias", ("N",), constant=True)
GAMMA = TensorSpec("gamma", ("N",), constant=True, doc="LayerNorm scale")
BETA = TensorSpec("beta", ("N",), constant=True, doc="LayerNorm shift")
Y = TensorSpec("y", ("...", "N"))

EPSILON = AttrSpec("epsilon", "float", 1e-12, minimum=0.0, maximum=1.0, doc="added to the variance")
APPROXIMATE = AttrSpec("approximate", "string", "none", choices=("none", "tanh"), doc="GELU by erf (none) or by tanh")
NUM_HEADS = AttrSpec("num_heads", "int", minimum=1, maximum=4096, divides="H", doc="attention heads")

QKV = TensorSpec("qkv", ("B", "S", "3*H"), doc="x times the packed [3H, K] weight: Q, K and V side by side")
QKV_BIAS = TensorSpec("bias", ("3*H",), constant=True, doc="the three projections' biases, packed as qkv is")
