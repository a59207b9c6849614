"""Windows, Fourier transforms and mel filters."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from ..draw import Draw, near
from .registry import draws


@draws("BlackmanWindow", "HammingWindow", "HannWindow")
def window(d: Draw, op: str) -> None:
    d.node(op, [d.integer(d.r.choice((1, 2, 4, 5, 8)))], periodic=d.maybe(d.r.randrange(2)),
           output_datatype=d.maybe(d.r.choice((TensorProto.FLOAT, TensorProto.DOUBLE))))  # fmt: skip


@draws("MelWeightMatrix")
def mel_weights(d: Draw, op: str) -> None:
    inputs = [d.integer(d.r.choice((1, 2, 4))), d.integer(d.r.choice((8, 16, 9))), d.integer(8000),
              d.given(np.array(0.0, np.float32)), d.given(np.array(4000.0, np.float32))]  # fmt: skip
    d.node(op, inputs, output_datatype=d.maybe(TensorProto.DOUBLE))


@draws("DFT")
def dft(d: Draw, op: str) -> None:
    inverse, onesided = d.chance(0.3), d.chance(0.4)
    parts = 1 if onesided and not inverse else d.r.choice((1, 2))
    if inverse and onesided:
        onesided = False
    spatial = d.r.choice((1, 1, 2))
    name = d.new([d.r.choice((1, 2)), *(d.r.choice((2, 3, 4, 5, 8)) for _ in range(spatial)), parts])
    axis = d.r.randint(1, spatial)
    attrs = {"inverse": d.maybe(int(inverse)) if not inverse else 1, "onesided": 1 if onesided else None}
    length = d.r.choice((2, 4, 6, 8))
    inputs = [name, d.integer(length, near(length)) if d.chance(0.4) else ""]
    if d.opset >= 20:
        axis = axis - d.rank(name) if d.chance(0.4) else axis
        inputs.append(d.integer(axis) if axis != -2 or d.chance(0.5) else "")
    else:
        attrs["axis"] = axis if axis != 1 or d.chance(0.5) else None
    d.node(op, inputs, **attrs)


@draws("STFT")
def stft(d: Draw, op: str) -> None:
    length, frame, step = d.r.choice((8, 9, 12, 16)), d.r.choice((4, 5, 8)), d.r.choice((1, 2, 3))
    onesided = d.r.choice((0, 1, None))
    parts = 1 if onesided != 0 or d.chance(0.5) else 2
    inputs = [d.new([d.r.choice((1, 2)), length, parts]), d.integer(step)]
    windowed = d.chance(0.5)
    inputs.append(d.new([frame]) if windowed else "")
    inputs.append(d.integer(frame) if not windowed or d.chance(0.5) else "")
    d.node(op, inputs, onesided=onesided)
