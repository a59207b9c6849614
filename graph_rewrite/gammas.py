"""Gammas of RMSNorms in the type of a fused op, and what it adds to them (gamma_offset).

Models that scale by 1 + weight in float32 (Gemma) have gammas near 1, where 16 bits are coarse: float16's step there is
0.001, and of weight itself a hundredth of that. All gammas of a node have one offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from .graph import FusionGraph, as_weight
from .nodes import data_type
from .ops import OPS
from .spec import DOMAIN
from .weights import cast_array

OFFSETS = (0.0, 1.0)
# By op, the places of its inputs that are such gammas.
_GAMMAS = {
    op.name: {t.name: i for i, t in enumerate(op.inputs) if t.name in ("gamma", "product_gamma", "q_gamma", "k_gamma")}
    for op in OPS.values()
    if any(attribute.name == "gamma_offset" for attribute in op.attributes)
}
_OF_EITHER_NORM = {op.name for op in OPS.values() if any(attribute.name == "norm" for attribute in op.attributes)}


def stored(
    graph: FusionGraph, gammas: Mapping[str, gs.Constant], dtype: Any
) -> tuple[dict[str, gs.Constant], dict[str, float]]:
    """The gammas in the type `dtype`, and the attribute of what was subtracted from them, where rounding loses less so.

    By the absolute error of all of them, as a row's result has it. A model in half precision that adds 1 to its weights
    rounds those, and so has the same error.
    """
    if dtype is None:  # not known
        return dict(gammas), {}
    offset = min(OFFSETS, key=lambda offset: sum(_error(gamma, offset, dtype) for gamma in gammas.values()))
    if offset == 0:
        return {name: graph.cast(gamma, dtype) for name, gamma in gammas.items()}, {}
    made = {
        name: graph.constant(f"{gamma.name}_less_{offset:g}", _rounded(_values(gamma) - offset, dtype))
        for name, gamma in gammas.items()
    }
    return made, {"gamma_offset": offset}


def convert(graph: FusionGraph, dtype: Any) -> None:
    """Chooses an offset for gammas that are about to be converted to `dtype`, while they have all of their bits.

    A node that has one already keeps it.
    """
    for node in graph.gs.nodes:
        places = _GAMMAS.get(node.op, {}) if node.domain == DOMAIN else {}
        given = {name: node.inputs[i] for name, i in places.items() if i < len(node.inputs)}
        given = {name: gamma for name, gamma in given.items() if not gamma.is_empty()}
        if node.op in _OF_EITHER_NORM and node.attrs.get("norm", "layer") == "layer":  # whose gamma is LayerNorm's
            given.pop("gamma", None)
        constant = all(isinstance(gamma, gs.Constant) for gamma in given.values())
        if not given or not constant or node.attrs.get("gamma_offset"):
            continue
        made, settings = stored(graph, given, dtype)
        if settings:
            for name, gamma in made.items():
                node.inputs[places[name]] = gamma
            node.attrs.update(settings)


def _values(gamma: gs.Constant) -> np.ndarray:
    return np.asarray(as_weight(gamma).load()).astype(np.float64)


def _rounded(values: np.ndarray, dtype: Any) -> np.ndarray:
    return cast_array(values.astype(np.float32), data_type(dtype))


def _error(gamma: gs.Constant, offset: float, dtype: Any) -> float:
    """The sum of the squares of what the gammas lose."""
    values = _values(gamma) - offset
    with np.errstate(all="ignore"):
        return float(np.sum(np.square(_rounded(values, dtype).astype(np.float64) - values)))
