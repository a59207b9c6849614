"""Tensors and attributes that several ops share."""

from dataclasses import replace

from ..spec import AttrSpec, TensorSpec

X = TensorSpec("x", ("...", "K"), doc="input of the matrix product")
WEIGHT = TensorSpec("weight", ("N", "K"), dtype="W", constant=True, doc="as torch.nn.Linear.weight: K contiguous")
BIAS = TensorSpec("bias", ("N",), constant=True)
GAMMA = TensorSpec("gamma", ("N",), constant=True, doc="LayerNorm scale")
BETA = TensorSpec("beta", ("N",), constant=True, doc="LayerNorm shift")
Y = TensorSpec("y", ("...", "N"))

EPSILON = AttrSpec("epsilon", "float", 1e-12, minimum=0.0, maximum=1.0, doc="added to the variance")
GAMMA_OFFSET = AttrSpec(
    "gamma_offset",
    "float",
    0.0,
    minimum=-1.0,
    maximum=1.0,
    doc="added to the gammas of RMSNorms, not of a LayerNorm, in float32: gammas near 1 are stored as their difference "
    "from 1, which 16 bits hold more exactly",
)
APPROXIMATE = AttrSpec("approximate", "string", "none", choices=("none", "tanh"), doc="GELU by erf (none) or by tanh")
NUM_HEADS = AttrSpec("num_heads", "int", minimum=1, maximum=4096, divides="H", doc="attention heads")

QKV = TensorSpec("qkv", ("B", "S", "3*H"), doc="x times the packed [3H, K] weight: Q, K and V side by side")
QKV_BIAS = TensorSpec("bias", ("3*H",), constant=True, doc="the three projections' biases, packed as qkv is")

# Of packed rows: [B, S, ...] then holds real rows first, one sequence after the other, and B and S only say how many
# rows there is room for.
ROW_COUNT = TensorSpec(
    "row_count", (), dtype="C", optional=True, packed=True, doc="of the rows only so many are computed; scalar"
)
# Of the quantised form: weight[n] is weight_scale[n] times 8-bit numbers, and so is x, by one scale or a scale per row.
WEIGHT_SCALE = TensorSpec("weight_scale", ("N",), dtype="S", optional=True, constant=True, scales="weight")
# Of two axes, of which the first is 1, so that a rank tells it from other vectors.
X_SMOOTH = TensorSpec(
    "x_smooth",
    ("J", "K"),
    dtype="S",
    optional=True,
    constant=True,
    needs="weight_scale",
    scales="x",
    doc="what x's columns are multiplied with before they are rounded; the weight's are divided by it. J is 1",
)
X_SCALE = TensorSpec(
    "x_scale",
    (),
    dtype="S",
    optional=True,
    constant=True,
    needs="weight_scale",
    scales="x",
    doc="x is rounded to multiples of it; without it, to multiples of each row's largest magnitude / 127",
)
X_ZERO = TensorSpec(
    "x_zero",
    (),
    dtype="C",
    optional=True,
    constant=True,
    needs="x_scale",
    scales="x",
    doc="which of the integers from 0 to 255 x's 0 becomes; without it 128. Not of 8-bit floats",
)
# x as another op has written it in 8 bits: then x itself is not read, nor are x_smooth and x_scale.
X_QUANTIZED = TensorSpec(
    "x_quantized", ("...", "K"), dtype="W", optional=True, needs="weight_scale", quantized=True, doc="of weight's type"
)
X_ROW_SCALE = TensorSpec("x_row_scale", ("...",), dtype="S", optional=True, needs="x_quantized", scales="x_quantized")
X_COMPENSATION = TensorSpec(
    "x_compensation",
    ("N",),
    dtype="C",
    optional=True,
    constant=True,
    needs="x_quantized",
    quantized=True,
    doc="of integers whose zero point is not 0: it, times the sums of weight's rows. Taken off the products' sums",
)
# With it y is written in 8 bits, too, of this scalar's type: y, rounded to T, is quantised as a product quantises x
# that has no x_scale, or by y_tensor_scale. Its value is 0, and not read, but of integers beside that: there it stands
# for y's 0.
Y_ZERO_POINT = TensorSpec("y_zero_point", (), dtype="Q", optional=True, constant=True, quantized=True)
Y_SMOOTH = TensorSpec(
    "y_smooth",
    ("I", "N"),
    dtype="S",
    optional=True,
    constant=True,
    needs="y_zero_point",
    quantized=True,
    doc="what y's columns are multiplied with before they are rounded. I is 1",
)
# y times its inverse is rounded, and it is each row's scale. An op without whole rows needs it, and may then leave y
# itself unwritten.
Y_TENSOR_SCALE = TensorSpec(
    "y_tensor_scale", (), dtype="S", optional=True, constant=True, needs="y_zero_point", quantized=True
)
Y_QUANTIZED = TensorSpec("y_quantized", ("...", "N"), dtype="Q", optional=True, needs="y_zero_point")
Y_SCALE = TensorSpec("y_scale", ("...",), dtype="S", optional=True, needs="y_zero_point", doc="of each row")
# A residual as another op has written it in 8 bits: then the residual itself is not read.
RESIDUAL_QUANTIZED = TensorSpec(
    "residual_quantized", ("...", "N"), dtype="Q", optional=True, needs="residual_row_scale", quantized=True
)
RESIDUAL_ROW_SCALE = TensorSpec(
    "residual_row_scale", ("...",), dtype="S", optional=True, needs="residual_quantized", scales="residual_quantized"
)
RESIDUAL_FACTOR = TensorSpec(
    "residual_factor",
    ("J", "N"),
    dtype="S",
    optional=True,
    constant=True,
    needs="residual_quantized",
    quantized=True,
    doc="what its columns, times their row's scale, are multiplied with: the inverse of a y_smooth. J is 1",
)
QUANTIZED_RESIDUAL = (RESIDUAL_QUANTIZED, RESIDUAL_ROW_SCALE, RESIDUAL_FACTOR)
# Of an op without whole rows (Y_TENSOR_SCALE).
QUANTIZED_BY_TENSOR = (replace(Y_ZERO_POINT, needs="y_tensor_scale"), Y_SMOOTH, Y_TENSOR_SCALE)
Y_USE = AttrSpec(
    "y_use",
    "string",
    "read",
    choices=("read", "unread"),
    by_pass=True,
    doc="unread: what reads y reads it in 8 bits, and y itself may be left unwritten beside y_quantized",
)
CU_SEQLENS = TensorSpec(
    "cu_seqlens", ("N+1",), dtype="C", doc="where each of N packed sequences begins and the last one ends; 0 first"
)
TOKEN_INDEX = TensorSpec(
    "token_index", ("B", "S"), dtype="C", doc="for each packed row its place in the flattened [B, S]; padding's last"
)
