"""What fusion reports."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx


@dataclass(frozen=True)
class Miss:
    """Something that the model's structure promised and fusion could not do.

    `anchor` is the node that promised it (a Softmax, a LayerNormalization, ...), `node` the one where the match broke.
    """

    op: str
    anchor: str
    node: str
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.op} at {self.anchor}: {self.node}: {self.reason}"
        return f"{where} ({self.hint})" if self.hint else where


@dataclass
class FusionResult:
    """The fused model, with per-op counts. `model` is the caller's own object when nothing was fused.

    `fused` and `expected` map op names to counts; `misses` explains each difference. `nodes` holds the number of nodes
    before and after (constants not counted). `messages` are remarks for the user, one line each.
    """

    model: onnx.ModelProto
    fused: dict[str, int]
    expected: dict[str, int]
    misses: list[Miss] = field(default_factory=list)
    nodes: tuple[int, int] = (0, 0)
    messages: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether everything that was expected was fused."""
        return not self.misses
