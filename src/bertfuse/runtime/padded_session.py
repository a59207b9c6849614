"""A model of ragged batches behind the padded interface, so that it runs beside models that have that one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from .ragged_inputs import LONGEST, MASK, OFFSETS, ragged


def padded_inputs(inputs: Sequence[Any]) -> list[SimpleNamespace]:
    """The inputs [batch, sequence] that stand for those of a ragged model, an attention mask among them."""
    named = [value for value in inputs if value.name not in (OFFSETS, LONGEST)]
    shape = ["batch", "sequence"]
    mask = SimpleNamespace(name=MASK, type="tensor(int64)", shape=shape)
    return [*(SimpleNamespace(name=value.name, type=value.type, shape=shape) for value in named), mask]


def padded_outputs(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[SimpleNamespace]:
    """The outputs, those with a row for each token as [batch, sequence, ...]."""
    tokens = inputs[0].shape[0]
    return [
        SimpleNamespace(
            name=value.name,
            type=value.type,
            shape=["batch", "sequence", *value.shape[1:]] if value.shape[:1] == [tokens] else value.shape,
        )
        for value in outputs
    ]


class PaddedSession:
    """What is used of an onnxruntime session, of one that takes ragged batches; outputs have zeros on padding."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._tokens = session.get_inputs()[0].shape[0]

    def get_inputs(self) -> list[SimpleNamespace]:
        return padded_inputs(self._session.get_inputs())

    def get_outputs(self) -> list[SimpleNamespace]:
        return padded_outputs(self._session.get_inputs(), self._session.get_outputs())

    def run(self, names: Sequence[str] | None, feed: Mapping[str, np.ndarray], options: Any = None) -> list[np.ndarray]:
        """As an onnxruntime session's, with arrays [batch, sequence]."""
        values = {value.name: value for value in self._session.get_outputs()}
        real = np.asarray(feed[MASK]) != 0
        made = []
        for name, array in zip(
            names or values, self._session.run(list(names or values), ragged(feed), options), strict=True
        ):
            if values[name].shape[:1] == [self._tokens]:
                padded = np.zeros((*real.shape, *array.shape[1:]), array.dtype)
                padded[real] = array
                array = padded
            made.append(array)
        return made
