"""What a model's layers are fed on given inputs: ranges and moments of the columns, and some rows to try on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS
from bertfuse.graph_rewrite.fused_nodes import fused_nodes, input_of
from bertfuse.graph_rewrite.io import open_model

from .judgement import mask_of
from .subjects import open_session
from .tensors import expose

_MOST_ROWS = 512  # that are kept of a tensor
_SMALLEST_NORM = 1e-30


@dataclass
class LayerInput:
    """One tensor [..., K] over all inputs: `least` and `most` [K], the ends of each column's numbers and 0; `rows`, at
    most 512 of its rows of real tokens; `moments` [K, K], the sum of x xᵀ / |x|² over all such rows. Rows count alike
    there: a token that is a hundred times as large as others must not be the only one that counts.
    """

    least: np.ndarray
    most: np.ndarray
    rows: np.ndarray
    moments: np.ndarray

    @property
    def magnitudes(self) -> np.ndarray:
        """[K], the largest of each column."""
        return np.maximum(-self.least, self.most)


def layer_inputs(model: Path, names: Sequence[str], feeds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, LayerInput]:
    """Runs the model on `feeds` ([B, S] arrays by input name) and looks at the tensors `names`.

    Raises BertfuseError where one of them holds NaN or an infinity.
    """
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        exposed = Path(scratch, "model.onnx")
        expose(model, names, exposed)
        packed = _packed(exposed)
        session = open_session(exposed)
        found: dict[str, LayerInput] = {}
        for feed in feeds:
            for name, array in zip(names, session.run(list(names), feed), strict=True):
                rows = _real_rows(np.asarray(array, np.float32), mask_of(feed), name in packed)
                if not np.isfinite(rows).all():
                    raise BertfuseError(f"{model}: tensor '{name}' holds NaN or an infinity for the calibration data")
                _add(found, name, rows)
    return found


def _packed(model: Path) -> set[str]:
    """The tensors of packed rows that products read: real rows come first there, and behind them is anything."""
    found: set[str] = set()
    for node in fused_nodes(open_model(model)[0]):
        spec = OPS[node.op_type]
        if input_of(node, spec, "row_count"):
            found |= {name for tensor, name in zip(spec.inputs, node.input, strict=False) if name and tensor.leading}
    return found


def _real_rows(array: np.ndarray, mask: np.ndarray, packed: bool) -> np.ndarray:
    rows = array.reshape(-1, array.shape[-1])
    if array.shape[:-1] != mask.shape:
        return rows
    return rows[: np.count_nonzero(mask)] if packed else array[mask != 0]


def _add(found: dict[str, LayerInput], name: str, rows: np.ndarray) -> None:
    least, most = rows.min(axis=0, initial=0), rows.max(axis=0, initial=0)
    if name not in found:
        found[name] = LayerInput(least, most, rows[:0], np.zeros((rows.shape[1],) * 2, np.float32))
    entry = found[name]
    entry.least, entry.most = np.minimum(entry.least, least), np.maximum(entry.most, most)
    alike = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(_SMALLEST_NORM))
    entry.moments += alike.T @ alike
    # A few of each batch, so that not all are of the first texts.
    some = rows[:: max(1, len(rows) // 64)]
    entry.rows = np.concatenate([entry.rows, some])[-_MOST_ROWS:]
