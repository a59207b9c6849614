"""RNN, GRU and LSTM."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..draw import Draw
from .registry import draws

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}


@draws("RNN", "GRU", "LSTM")
def recurrent(d: Draw, op: str) -> None:
    """Each optional input and output, both layouts, all directions."""
    gates, direction = _GATES[op], d.r.choice(("forward", "reverse", "bidirectional", None))
    directions = 2 if direction == "bidirectional" else 1
    batch_first = d.opset >= 14 and d.chance(0.25)
    name = d.tensor((np.float32,), 3, lambda v: v.size > 0)
    length, batch, width = d.shape(name)
    if batch_first:
        length, batch = batch, length
    hidden = d.r.choice((1, 2, 3))
    inputs = [name, d.new([directions, gates * hidden, width]), d.new([directions, gates * hidden, hidden])]
    inputs.append(d.new([directions, 2 * gates * hidden]) if d.chance(0.4) else "")
    inputs.append(d.given(np.full(batch, max(1, length - 1), np.int32)) if d.chance(0.3) else "")
    state = [batch, directions, hidden] if batch_first else [directions, batch, hidden]
    for _ in range(_STATES[op]):
        inputs.append(d.new(state) if d.chance(0.3) else "")
    if op == "LSTM":
        inputs.append(d.new([directions, 3 * hidden]) if d.chance(0.2) else "")
    attrs: dict[str, Any] = {"direction": direction, "hidden_size": hidden, "clip": d.maybe(1.0, 0.2)}
    if batch_first:
        attrs["layout"] = 1
    if op == "GRU":
        attrs["linear_before_reset"] = d.maybe(1, 0.3)
    if op == "LSTM":
        attrs["input_forget"] = d.maybe(1, 0.2)
    every = range(1 + _STATES[op])
    keep = sorted(d.r.sample(every, d.r.randint(1, len(every))))
    d.node(op, inputs, outputs=keep[-1] + 1, keep=keep, **attrs)
