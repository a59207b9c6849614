"""Optimization profiles: defaults from the model's axes, and shapes that contradict the model or one another."""

from __future__ import annotations

import pytest

from bertfuse.errors import BertfuseError
from bertfuse.runtime.trt.shapes import make_profile

INPUTS = {"input_ids": ("batch", "sequence"), "attention_mask": ("batch", "sequence")}
DEFAULT = ((1, 16), (8, 128), (32, 512))


def test_defaults() -> None:
    assert make_profile(INPUTS) == dict.fromkeys(INPUTS, DEFAULT)
    assert make_profile(INPUTS, longest=40)["input_ids"] == ((1, 16), (8, 40), (32, 40))
    assert make_profile({"x": ("batch", 7), "fixed": (2, 3)}) == {"x": ((1, 7), (8, 7), (32, 7))}
    assert make_profile({"x": (None, None)}) == {"x": DEFAULT}


def test_given() -> None:
    given = ((1, 8), (2, 16), (3, 32))
    assert make_profile(INPUTS, ["1x8:2x16:3X32"]) == dict.fromkeys(INPUTS, given)
    each = [f"{name}:1x8:2x16:3x32" for name in INPUTS]
    assert make_profile(INPUTS, each) == dict.fromkeys(INPUTS, given)
    colons = {"serving:0": ("n", 2)}
    assert make_profile(colons, ["serving:0:1x2:2x2:3x2"]) == {"serving:0": ((1, 2), (2, 2), (3, 2))}
    # An entry for one input goes before one for all, in any order.
    free = {"a": ("n",), "b": ("m",)}
    for shapes in (["a:1:2:3", "4:5:6"], ["4:5:6", "a:1:2:3"]):
        assert make_profile(free, shapes) == {"a": ((1,), (2,), (3,)), "b": ((4,), (5,), (6,))}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (["input_ids"], "write input:min:opt:max"),
        (["input_ids:1x2:3x4"], "write input:min:opt:max"),
        (["1x2:ax4:5x6"], "write input:min:opt:max"),
        (["1x2:3x4:5x"], "write input:min:opt:max"),
        (["1x8:2x8:99999999999999999999x16"], "sizes have 9 digits at most"),
        (["ids:1x2:3x4:5x6"], "no input 'ids'; the model has input_ids, attention_mask"),
        (["1:2:3"], r"has 2 axes: \[batch, sequence\]"),
        (["1x4:3x2:5x6"], "4, 2, 6: needs min <= opt <= max"),
        (["0x4:3x4:5x6"], "0: needs sizes of 1 and more"),
        (["input_ids:1x2:3x4:5x6"], "axis 'batch' is 1:3:5 in 'input_ids' and 1:8:32 in 'attention_mask'"),
    ],
)
def test_refused(shapes: list[str], message: str) -> None:
    with pytest.raises(BertfuseError, match=message):
        make_profile(INPUTS, shapes)


def test_refused_by_the_model() -> None:
    with pytest.raises(BertfuseError, match="a sequence of 41: the model has 40 positions"):
        make_profile(INPUTS, ["1x1:2x8:4x41"], longest=40)
    with pytest.raises(BertfuseError, match=r"the model fixes that axis at 7: \[batch, 7\]"):
        make_profile({"x": ("batch", 7)}, ["1x7:2x7:3x8"])
    with pytest.raises(BertfuseError, match="--shapes 1x7:2x7:3x7: the model fixes every axis"):
        make_profile({"x": (2, 7)}, ["1x7:2x7:3x7"])
    with pytest.raises(BertfuseError, match="give its shapes with --shapes image:min:opt:max"):
        make_profile({"image": ("batch", 3, "height", "width")})
