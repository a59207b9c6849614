"""What fusion reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import onnx

from bertfuse.printable import printable


@dataclass(frozen=True)
class Miss:
    """Something that the model's structure promised and fusion could not do.

    `anchor` is the node that promised it (a Softmax, a LayerNormalization, ...), `node` the first one at which the
    match broke and `place` what that does and between which others. `found` and `wanted` are what is there and what the
    op takes; `wanted` and `hint` are empty where nothing can be said. `layer` counts as in Part.
    """

    op: str
    anchor: str
    node: str
    found: str
    wanted: str = ""
    hint: str = ""
    layer: int = 0
    place: str = ""

    @property
    def reason(self) -> str:
        """What was found and what was wanted, in one line."""
        return f"{self.found}, expected {self.wanted}" if self.wanted else self.found

    def to_dict(self) -> dict[str, Any]:
        """The fields and the reason as plain data."""
        return asdict(self) | {"reason": self.reason}

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        where = f"{self.op} at {self.anchor}: {self.node}{place}: {self.reason}"
        return printable(f"{where} ({self.hint})" if self.hint else where)


@dataclass(frozen=True)
class Part:
    """One op that was promised or found: fused, or missed where `miss` is given.

    `layer` is 1 for the first encoder layer, 0 before it, and one more than there are layers for what follows the last.
    `output` is the fused node's first output, `replaced` the first outputs of the nodes whose place it took, in the
    graph's order; `attributes` are the fused node's own, and `note` says what is unusual about them.
    """

    op: str
    anchor: str
    layer: int
    output: str = ""
    replaced: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    miss: Miss | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return asdict(self) | {"replaced": list(self.replaced), "miss": self.miss and self.miss.to_dict()}


@dataclass(frozen=True)
class PassReport:
    """What a pass over the fused graph did, and what it left alone and why, a line each."""

    name: str
    done: list[str]
    left: list[str]
    changes_padding: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)


@dataclass
class FusionResult:
    """The fused model, with per-op counts. `model` is the caller's own object when nothing was fused.

    `fused` and `expected` map op names to counts; `misses` explains each difference. `nodes` holds the number of nodes
    before and after (constants not counted). `messages` are remarks for the user, one line each. `parts` are all ops
    that were fused or missed, layer by layer, in the graph's order; `layers` is how many encoder layers there are.
    `passes` reports on the passes that were asked for or found something to do, in their order.
    """

    model: onnx.ModelProto
    fused: dict[str, int]
    expected: dict[str, int]
    misses: list[Miss] = field(default_factory=list)
    nodes: tuple[int, int] = (0, 0)
    messages: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    layers: int = 0
    passes: list[PassReport] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether everything that was expected was fused."""
        return not self.misses

    @property
    def pass_lines(self) -> list[str]:
        """What passes did, and what they left alone and why, a line each."""
        done = [(report, line) for report in self.passes for line in report.done]
        left = [(report, f"left as it is: {line}") for report in self.passes for line in report.left]
        return [f"{report.name}: {line}" for report, line in (*done, *left)]

    def layer_name(self, layer: int) -> str:
        """How a Part's layer is called: "embeddings", "layer 3", "head"."""
        if layer == 0:
            return "embeddings"
        return f"layer {layer}" if layer <= self.layers else "head"
