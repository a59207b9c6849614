"""How a model is fused."""

from __future__ import annotations

from dataclasses import dataclass

from bertfuse.errors import BertfuseError

from . import passes, precision
from .ops import FAMILY_OPS, OPS

_FULL = tuple(name for name, spec in OPS.items() if not spec.by_pass and name not in FAMILY_OPS)
LEVELS = {"full": _FULL, "basic": tuple(name for name in _FULL if name not in ("EmbedLayerNorm", "FusedAttention"))}


@dataclass(frozen=True)
class FuseOptions:
    """Raises BertfuseError for a value that there is not.

    level      "full", or "basic": attention stays in standard operators behind AddQKVBias, embeddings and linear layers
               in no other op as they are
    functions  whether the model carries each op's body as a function, so that it runs without our library
    dtype      "fp32", "fp16" or "bf16": convert the fused model; None keeps the types it has
    padding    "keep"; "remove": only real tokens are computed, behind the same interface, with zeros on padding where
               an output has a row for each token; "ragged": the model takes tokens without padding (passes/ragged.py)
    output_rows  compute only those rows of the last layer that an output needs; always so unless padding is kept
    """

    level: str = "full"
    functions: bool = True
    dtype: str | None = None
    padding: str = "keep"
    output_rows: bool = False

    def __post_init__(self) -> None:
        if self.padding not in passes.PADDINGS:
            raise BertfuseError(f"padding '{self.padding}' is unknown; choose one of {', '.join(passes.PADDINGS)}")
        if self.level not in LEVELS:
            raise BertfuseError(f"level '{self.level}' is unknown; choose one of {', '.join(LEVELS)}")
        if self.dtype is not None and self.dtype not in precision.DTYPES:
            raise BertfuseError(f"dtype '{self.dtype}' is unknown; choose one of {', '.join(precision.DTYPES)}")
