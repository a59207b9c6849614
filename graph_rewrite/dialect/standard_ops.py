"""The dialect in standard ONNX operators: bodies of model-local functions, and attention that stays unfused."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from .packed import PackedDialect
from .quantized import QuantizedDialect
from .reference import MASKED_SCORE
from .variants import VariantDialect


@dataclass(frozen=True)
class AttributeRef:
    """An attribute of the enclosing function, used by a node of its body."""

    name: str
    kind: str  # "int", "float" or "string"


class OnnxDialect(PackedDialect, QuantizedDialect, VariantDialect):
    """The dialect's ops as standard operators of `opset`. A subclass says what emitting a node means.

    Every operator used here means the same from opset 13 on, or is spelled for the opset at hand: a function's opset
    must be the model's own, because ONNX Runtime inlines it. `heads` are number and size of an attention's heads, None
    where they are left to the shapes of its inputs.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.heads: tuple[int, int] | None = None

    def emit(self, op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns its output, or a tuple of `outputs` of them."""
        raise NotImplementedError("a subclass says where nodes go")

    def constant(self, value: Any, dtype: Any) -> Any:
        return self.emit("Constant", [], value=helper.make_tensor("value", *_tensor_arguments(value, dtype)))

    def linear(self, x, weight, bias, residual=None):
        product = self.emit("MatMul", [x, self.emit("Transpose", [weight], perm=[1, 0])])
        # The bias last: of a sum of two activations in front of a LayerNormalization ONNX Runtime makes
        # SkipLayerNormalization, which takes longer on a CPU than what it replaces.
        with_residual = product if residual is None else self.add(product, residual)
        return with_residual if bias is None else self.add(with_residual, bias)

    def add(self, a, b):
        return self.emit("Add", [a, b])

    def gelu(self, x, approximate):
        if self.opset >= 20:
            return self.emit("Gelu", [x], approximate=approximate)
        scalar = lambda value: self.constant(value, np.float32)  # noqa: E731
        if approximate == "tanh":
            half = self.emit("Mul", [x, scalar(0.5)])
            cube = self.emit("Mul", [self.emit("Mul", [self.emit("Mul", [x, x]), x]), scalar(0.044715)])
            inner = self.emit("Mul", [self.add(x, cube), scalar(math.sqrt(2 / math.pi))])
            return self.emit("Mul", [half, self.add(self.emit("Tanh", [inner]), scalar(1.0))])
        # Spelled as ONNX Runtime's own fusion expects it, so that an unfused session gets its Gelu kernel.
        erf = self.emit("Erf", [self.emit("Div", [x, scalar(math.sqrt(2))])])
        return self.emit("Mul", [self.emit("Mul", [x, self.add(erf, scalar(1.0))]), scalar(0.5)])

    def layer_norm(self, x, gamma, beta, epsilon):
        if self.opset >= 17:
            vectors = [gamma] if beta is None else [gamma, beta]
            return self.emit("LayerNormalization", [x, *vectors], axis=-1, epsilon=epsilon)
        centred = self.emit("Sub", [x, self._mean(x)])
        variance = self._mean(self.emit("Mul", [centred, centred]))
        deviation = self.emit("Sqrt", [self.add(variance, self._float_attribute(epsilon))])
        y = self.emit("Mul", [self.emit("Div", [centred, deviation]), gamma])
        return y if beta is None else self.add(y, beta)

    def embedding(self, table, ids):
        return self.emit("Gather", [table, ids], axis=0)

    def positions(self, ids):
        zero, one = self.constant(0, np.int64), self.constant(1, np.int64)
        length = self.emit("Gather", [self.emit("Shape", [ids]), one], axis=0)
        return self._unsqueeze(self.emit("Range", [zero, length, one]), [0])

    def split_heads(self, qkv, num_heads, mask=None):
        """With a mask [B, S] its S is asked of Q and its B of K: Reshape fails where they have others.

        What comes of the mask alone is the same in all layers, and ONNX Runtime computes it once.
        """
        split = {"num_outputs": 3} if self.opset >= 18 else {}
        parts = self.emit("Split", [qkv], outputs=3, axis=-1, **split)
        shapes = [self._shape_by_head(qkv, num_heads)] * 3
        if mask is not None:  # no Concat, of which ONNX Runtime's optimizer makes a shape with -1
            sizes = self.emit("Gather", [self.emit("Shape", [mask]), self.constant([0, 1, 1, 1], np.int64)])
            for part, kept in enumerate(([0, 1, 0, 0], [1, 0, 0, 0])):
                shapes[part] = self.add(shapes[part], self.emit("Mul", [sizes, self.constant(kept, np.int64)]))
        heads = [self.emit("Reshape", [part, shape]) for part, shape in zip(parts, shapes, strict=True)]
        return tuple(self.emit("Transpose", [part], perm=[0, 2, 1, 3]) for part in heads)

    def _shape_by_head(self, qkv, num_heads):
        """[0, 0, heads, D] for a Reshape. D is never left as -1: of no row or no token it cannot be worked out."""
        if self.heads is not None:
            return self.constant([0, 0, *self.heads], np.int64)
        count = self._int_attribute(num_heads)
        hidden_size = self.emit("Div", [self._axes(qkv, 2, 3), self.constant([3], np.int64)])
        return self.emit(
            "Concat", [self.constant([0, 0], np.int64), count, self.emit("Div", [hidden_size, count])], axis=0
        )

    def attention(self, q, k, v, mask, scale):
        scores = self.scores(q, self.emit("Transpose", [k], perm=[0, 1, 3, 2]), self._float_attribute(scale))
        if mask is not None:
            scores = self.add(scores, self.additive_mask(mask))
        context = self.emit("MatMul", [self.emit("Softmax", [scores], axis=-1), v])
        merged = self.emit("Transpose", [context], perm=[0, 2, 1, 3])
        return self.emit("Reshape", [merged, self._merged_shape(merged)])

    def scores(self, q, k_transposed, scale):
        return self.emit("Mul", [self.emit("MatMul", [q, k_transposed]), scale])

    def _merged_shape(self, merged):
        """[B, S, H] of [B, S, heads, D]."""
        if self.heads is not None:
            return self.constant([0, 0, self.heads[0] * self.heads[1]], np.int64)
        # No Concat at the end, of which ONNX Runtime's optimizer makes a shape with -1.
        shape = self.emit("Shape", [merged])
        part = lambda *bounds: self.emit("Slice", [shape, *(self.constant([i], np.int64) for i in bounds)])  # noqa: E731
        factors = self.emit("Concat", [self.constant([1, 1], np.int64), part(3, 4)], axis=0)
        return self.emit("Mul", [part(0, 3), factors])

    def of_one_shape(self, mask, x):
        """Reshape(Reshape(mask, [0, S]), [B, 0]): 0 leaves an axis as it is, so the other one must be what it is in x.

        Without it Add would broadcast token types of one row, where the kernels end with a status.
        """
        shape = self._axes(x, 0, 2)
        for kept in ([0, 1], [1, 0]):
            mask = self.emit("Reshape", [mask, self.emit("Mul", [shape, self.constant(kept, np.int64)])])
        return mask

    def additive_mask(self, mask):
        """[B, S] of 0 and 1 to [B, 1, 1, S] of MASKED_SCORE and 0."""
        visible = self._unsqueeze(self.emit("Cast", [mask], to=TensorProto.BOOL), [1, 2])
        return self.emit("Where", [visible, self.constant(0.0, np.float32), self.constant(MASKED_SCORE, np.float32)])

    def _axes(self, x, start, end):
        """The sizes of some axes, an int64 tensor."""
        if self.opset >= 15:
            return self.emit("Shape", [x], start=start, end=end)
        return self.emit("Slice", [self.emit("Shape", [x]), *(self.constant([i], np.int64) for i in (start, end))])

    def _mean(self, x):
        if self.opset >= 18:
            return self.emit("ReduceMean", [x, self.constant([-1], np.int64)], keepdims=1)
        return self.emit("ReduceMean", [x], axes=[-1], keepdims=1)

    def _unsqueeze(self, x, axes):
        return self.emit("Unsqueeze", [x, self.constant(axes, np.int64)])

    def _float_attribute(self, value):
        if isinstance(value, AttributeRef):
            return self.emit("Constant", [], value_float=value)
        return self.constant(value, np.float32)

    def _int_attribute(self, value):
        """A one-element int64 tensor."""
        if isinstance(value, AttributeRef):
            return self.emit("Reshape", [self.emit("Constant", [], value_int=value), self.constant([1], np.int64)])
        return self.constant([value], np.int64)


class FunctionBody(OnnxDialect):
    """Collects the NodeProtos of a function. Handles are tensor names."""

    def __init__(self, opset: int) -> None:
        super().__init__(opset)
        self.nodes: list[onnx.NodeProto] = []
        self.data_type = TensorProto.FLOAT  # of the op's floats
        self._count = 0

    def emit(self, op: str, inputs: list[Any], outputs: int = 1, **attributes: Any) -> Any:
        names = []
        for _ in range(outputs):
            self._count += 1
            names.append(f"{op.lower()}_{self._count}")
        node = helper.make_node(op, inputs, names)
        for name, value in attributes.items():
            node.attribute.append(_attribute(name, value))
        self.nodes.append(node)
        return names[0] if outputs == 1 else tuple(names)

    def as_output(self, y):
        if self.data_type == TensorProto.FLOAT:
            return y
        return self.emit("Cast", [self.emit("Cast", [y], to=self.data_type)], to=TensorProto.FLOAT)

    def rename(self, old: str, new: str) -> None:
        """Give an output of the body its declared name."""
        for node in self.nodes:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    if name == old:
                        names[index] = new


_REFERENCE_TYPES = {
    "int": onnx.AttributeProto.INT,
    "float": onnx.AttributeProto.FLOAT,
    "string": onnx.AttributeProto.STRING,
}


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, AttributeRef):
        return onnx.AttributeProto(name=name, type=_REFERENCE_TYPES[value.kind], ref_attr_name=value.name)
    return helper.make_attribute(name, value)


def _tensor_arguments(value: Any, dtype: Any) -> tuple[int, list[int], list[Any]]:
    array = np.asarray(value, dtype)
    return helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape), array.reshape(-1).tolist()
