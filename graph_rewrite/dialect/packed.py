"""The dialect's operations on packed rows in standard ONNX operators.

There are as many rows here as real tokens, [1, T, ...]: what the kernels leave undone, these shapes leave out. So the
sizes depend on the data, which a CPU minds no more than NonZero; on a device the kernels keep [B, S, ...].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto


class PackedDialect:
    """What OnnxDialect has for packed rows; `emit` and `constant` are its own."""

    def pack_tokens(self, mask):
        real = self.emit("Cast", [self.emit("Cast", [mask], to=TensorProto.BOOL)], to=TensorProto.INT32)
        index = self.emit("NonZero", [self._shaped(real, [-1])])
        counts = self.emit("ReduceSum", [real, self._integers([1])], keepdims=0)
        cu_seqlens = self.emit(
            "Concat", [self.constant([0], np.int32), self.emit("CumSum", [counts, self.constant(0, np.int64)])], axis=0
        )
        row_count = self.emit("ReduceSum", [counts, self._integers([0])], keepdims=0)
        return self.emit("Cast", [index], to=TensorProto.INT32), cu_seqlens, row_count

    def take_tokens(self, values, token_index):
        return self.emit("Gather", [self._shaped(values, [-1]), token_index], axis=0)

    def places(self, token_index, ids):
        length = self._at_least_one(self._sliced(self.emit("Shape", [ids]), 1, 2))
        return self.emit("Mod", [self.emit("Cast", [token_index], to=TensorProto.INT64), length])

    def columns_of(self, places, table):
        length = self._at_least_one(self._sliced(self.emit("Shape", [table]), 0, 1))
        return self.emit("Mod", [self.emit("Cast", [places], to=TensorProto.INT64), length])

    def unpack_tokens(self, x, mask, token_index, row_count):
        return self._scatter(x, self.emit("Cast", [token_index], to=TensorProto.INT64), self.emit("Shape", [mask]))

    def first_tokens(self, x, cu_seqlens):
        first, lengths = self._lengths(cu_seqlens)
        width = self._sliced(self.emit("Shape", [x]), -1, None)
        rows = self._shaped(x, [-1], width)
        # One row of zeros behind the others, for sequences without a token.
        zeros = self._zeros(self.emit("Concat", [self._integers([1]), width], axis=0))
        nowhere = self._sliced(self.emit("Shape", [rows]), 0, 1)
        some = self.emit("Greater", [lengths, self._integers([0])])
        index = self.emit("Where", [some, first, nowhere])
        return self.emit("Gather", [self.emit("Concat", [rows, zeros], axis=0), index], axis=0)

    def pad_sequences(self, x, cu_seqlens, token_index=None):
        mask = self._ragged_mask(cu_seqlens)
        if token_index is not None:
            mask = self._spread(mask, cu_seqlens, token_index)
        return self._scatter(x, self._places_of(mask), self.emit("Shape", [mask])), mask

    def first_rows(self, table, x):
        return self.emit("Slice", [table, self._integers([0]), self._sliced(self.emit("Shape", [x]), 1, 2)])

    def join_sequences(self, y, mask, x):
        width = self._sliced(self.emit("Shape", [y]), -1, None)
        return self.emit("Gather", [self._shaped(y, [-1], width), self._places_of(mask)], axis=0)

    def ragged_positions(self, tokens, cu_seqlens, max_seqlen):
        longest = self.emit("Squeeze", [self.emit("Shape", [max_seqlen]), self._integers([0])])
        both = self.emit("NonZero", [self._ragged_mask(cu_seqlens, longest)])
        split = {"num_outputs": 2} if self.opset >= 18 else {}
        shape = self.emit("Shape", [tokens])
        # A cu_seqlens that does not end with T or does not ascend, or a sequence longer than max_seqlen, gives another
        # number than tokens has, which Reshape refuses.
        found = [self.emit("Reshape", [part, shape]) for part in self.emit("Split", [both], outputs=2, axis=0, **split)]
        if self.opset < 15:  # there is no CastLike: whoever calls it has tokens of int64 (passes/ragged.py)
            return tuple(found)
        return tuple(self.emit("CastLike", [part, tokens]) for part in found)

    def _lengths(self, cu_seqlens):
        """Where each sequence begins and how long it is, int64 [N]."""
        offsets = self.emit("Cast", [cu_seqlens], to=TensorProto.INT64)
        first = self._sliced(offsets, 0, -1)
        return first, self.emit("Sub", [self._sliced(offsets, 1, None), first])

    def _ragged_mask(self, cu_seqlens, longest=None):
        """int32 [N, longest]: 1 where the sequence has a token; None: as long as the longest.

        It has one column at least, since Reshape works no size out of nothing.
        """
        lengths = self._lengths(cu_seqlens)[1]
        if longest is None:
            longest = self._reduce_max(self.emit("Concat", [lengths, self._integers([1])], axis=0))
        columns = self.emit("Range", [self.constant(0, np.int64), longest, self.constant(1, np.int64)])
        there = self.emit("Less", [columns, self._unsqueeze(lengths, [1])])
        return self.emit("Cast", [there], to=TensorProto.INT32)

    def _spread(self, mask, cu_seqlens, token_index):
        """int32 [N, longest]: the mask's tokens as far apart as `token_index` [1, T] says, the first ones first."""
        both = self.emit("NonZero", [mask])
        split = {"num_outputs": 2} if self.opset >= 18 else {}
        sequence = self._shaped(self.emit("Split", [both], outputs=2, axis=0, **split)[0], [-1])
        index = self._shaped(self.emit("Cast", [token_index], to=TensorProto.INT64), [-1])
        # One more, since a sequence without a token may begin behind the last one.
        begins = self.emit(
            "Gather", [self.emit("Concat", [index, self._integers([0])], axis=0), self._lengths(cu_seqlens)[0]]
        )
        places = self.emit("Sub", [index, self.emit("Gather", [begins, sequence])])
        longest = self._shaped(self._reduce_max(self.emit("Concat", [places, self._integers([0])], axis=0)), [1])
        sequences = self._sliced(self.emit("Shape", [mask]), 0, 1)
        shape = self.emit("Concat", [sequences, self.emit("Add", [longest, self._integers([1])])], axis=0)
        where = self.emit("Concat", [self._shaped(part, [-1, 1]) for part in (sequence, places)], axis=1)
        ones = self.emit("Add", [self.emit("Mul", [places, self._integers([0])]), self._integers([1])])
        zeros = self.emit("Cast", [self._zeros(shape)], to=TensorProto.INT32)
        return self.emit("ScatterND", [zeros, where, self.emit("Cast", [ones], to=TensorProto.INT32)])

    def _places_of(self, mask):
        """int64 [1, T]: the places of a mask's real tokens in the flattened mask."""
        return self.emit("NonZero", [self._shaped(mask, [-1])])

    def _scatter(self, x, index, shape):
        """Rows of x at `index` [1, T] of a batch of zeros, which has the two axes of `shape`, and x's last.

        By row and column: a Reshape to the batch would take a size of 0 for "as it was".
        """
        width = self._sliced(self.emit("Shape", [x]), -1, None)
        length = self._at_least_one(self._sliced(shape, 1, 2))
        index = self._shaped(index, [-1, 1])
        both = self.emit("Concat", [self.emit(op, [index, length]) for op in ("Div", "Mod")], axis=1)
        zeros = self._zeros(self.emit("Concat", [shape, width], axis=0))
        return self.emit("ScatterND", [zeros, both, self._shaped(x, [-1], width)])

    def _at_least_one(self, length):
        """Nothing is divided by it where there is no token, but dividing by 0 is an error even so."""
        return self.emit("Max", [length, self._integers([1])])

    def _zeros(self, shape):
        return self.emit("ConstantOfShape", [shape])  # float32, as everything inside a body

    def _reduce_max(self, x):
        """The largest element, a scalar. Opset 18 made the axes an input; all of them is the default in both."""
        return self.emit("ReduceMax", [x], keepdims=0)

    def _shaped(self, x, shape, last=None):
        """x in `shape`, constants, with `last` (a tensor of one number) as its last axis."""
        wanted = self._integers(shape)
        return self.emit("Reshape", [x, wanted if last is None else self.emit("Concat", [wanted, last], axis=0)])

    def _sliced(self, x, begin: int, end: int | None):
        """Elements of a vector from `begin` up to `end` (None: to the last)."""
        end = np.iinfo(np.int64).max if end is None else end
        return self.emit("Slice", [x, self._integers([begin]), self._integers([end])])

    def _integers(self, values: list[int]) -> Any:
        return self.constant(values, np.int64)
