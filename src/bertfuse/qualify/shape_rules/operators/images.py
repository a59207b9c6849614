"""Convolutions, pooling, resizing, sampling: operators on images (and lines, and volumes)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..draw import Draw
from ..runtime import Refused
from .registry import draws


def _image(d: Draw, channels: int | None = None, spatial: int | None = None, least: int = 3) -> str:
    if channels is None and d.chance(0.4):
        rank = None if spatial is None else spatial + 2
        found = d.tensors(lambda v: v.dtype == np.float32 and v.ndim in (3, 4, 5) and v.ndim == (rank or v.ndim)
                          and min(v.shape) > 0 and v.size < 2000)  # fmt: skip
        if found:
            return d.r.choice(found)
    spatial = spatial or d.r.choice((1, 2, 2, 2, 3))
    sizes = [d.r.choice((least, least + 1, least + 2, 7)) for _ in range(spatial)]
    return d.new([d.r.choice((1, 2, 3)), channels or d.r.choice((1, 2, 4)), *sizes])


def _window(d: Draw, spatial: int, dilated: bool = True) -> dict[str, Any]:
    """Attributes that windows share, without kernel_shape."""
    attrs: dict[str, Any] = {"strides": d.maybe([d.r.choice((1, 1, 2, 3)) for _ in range(spatial)])}
    if dilated:
        attrs["dilations"] = d.maybe([d.r.choice((1, 1, 2)) for _ in range(spatial)], 0.3)
    if d.chance(0.4):
        attrs["auto_pad"] = d.r.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"))
    if attrs.get("auto_pad", "NOTSET") == "NOTSET":
        attrs["pads"] = d.maybe([d.r.choice((0, 0, 1)) for _ in range(2 * spatial)])
    return attrs


@draws("Conv", "ConvTranspose")
def conv(d: Draw, op: str) -> None:
    name = _image(d)
    channels, spatial = d.shape(name)[1], d.rank(name) - 2
    group = channels if d.chance(0.2) else 1
    kernel = [d.r.choice((1, 2, 3)) for _ in range(spatial)]
    made = group * d.r.choice((1, 2, 3))
    weight = [made, channels // group, *kernel] if op == "Conv" else [channels, made // group, *kernel]
    attrs = _window(d, spatial)
    if op == "ConvTranspose":
        attrs["output_padding"] = d.maybe([d.r.choice((0, 0, 1)) for _ in range(spatial)], 0.3)
        if d.chance(0.2):
            attrs.pop("pads", None)
            strides = attrs.get("strides") or [1] * spatial
            attrs["output_shape"] = [n * s + d.r.choice((0, 1)) for n, s in
                                     zip(d.shape(name)[2:], strides, strict=True)]  # fmt: skip
    inputs = [name, d.new(weight)] + ([d.new([made])] if d.chance(0.4) else [])
    d.node(op, inputs, kernel_shape=d.maybe(kernel), group=d.maybe(group) if group == 1 else group, **attrs)


@draws("ConvInteger", "QLinearConv")
def conv_integer(d: Draw, op: str) -> None:
    spatial = d.r.choice((1, 2, 2))
    channels, made = d.r.choice((1, 2)), d.r.choice((1, 2, 3))
    name = d.new([d.r.choice((1, 2)), channels, *(d.r.choice((3, 4, 5)) for _ in range(spatial))], np.uint8)
    kernel = [d.r.choice((1, 2, 3)) for _ in range(spatial)]
    weight = d.new([made, channels, *kernel], np.uint8)
    attrs = _window(d, spatial)
    if op == "ConvInteger":
        zeros = [d.given(np.array(1, np.uint8))] if d.chance(0.5) else []
        d.node(op, [name, weight, *zeros], kernel_shape=d.maybe(kernel), **attrs)
        return
    scale, zero = d.given(np.array(0.5, np.float32)), d.given(np.array(1, np.uint8))
    inputs = [name, scale, zero, weight, scale, zero, scale, zero]
    d.node(op, inputs, kernel_shape=d.maybe(kernel), **attrs)


@draws("DeformConv")
def deform_conv(d: Draw, op: str) -> None:
    channels, made, kernel = d.r.choice((1, 2)), d.r.choice((1, 2)), [d.r.choice((1, 2)), d.r.choice((1, 2, 3))]
    batch, sizes = d.r.choice((1, 2)), [d.r.choice((3, 4, 5)) for _ in range(2)]
    strides = d.maybe([d.r.choice((1, 2)) for _ in range(2)])
    pads = [d.r.randrange(2) for _ in range(4)]
    out = [(sizes[i] + pads[i] + pads[i + 2] - kernel[i]) // (strides[i] if strides else 1) + 1 for i in range(2)]
    inputs = [d.new([batch, channels, *sizes]), d.new([made, channels, *kernel]),
              d.new([batch, 2 * math.prod(kernel), *out])]  # fmt: skip
    inputs.append(d.new([made]) if d.chance(0.4) else "")
    inputs.append(d.new([batch, math.prod(kernel), *out]) if d.chance(0.4) else "")
    d.node(op, inputs, kernel_shape=d.maybe(kernel), strides=strides, pads=pads)


@draws("AveragePool", "MaxPool", "LpPool")
def pool(d: Draw, op: str) -> None:
    name = _image(d, least=4)
    spatial = d.rank(name) - 2
    kernel = [d.r.choice((1, 2, 3)) for _ in range(spatial)]
    attrs = _window(d, spatial, op == "MaxPool" or (op == "AveragePool" and d.opset >= 19) or
                    (op == "LpPool" and d.opset >= 18))  # fmt: skip
    if op != "LpPool" or d.opset >= 18:
        attrs["ceil_mode"] = d.maybe(d.r.randrange(2), 0.7)
    if op == "AveragePool":
        attrs["count_include_pad"] = d.maybe(1, 0.3)
    if op == "LpPool":
        attrs["p"] = d.maybe(d.r.choice((1, 2)))
    if op == "MaxPool":
        attrs["storage_order"] = d.maybe(1, 0.2)
    d.node(op, [name], outputs=d.r.choice((1, 2)) if op == "MaxPool" else 1, kernel_shape=kernel, **attrs)


@draws("MaxUnpool")
def max_unpool(d: Draw, op: str) -> None:
    name = d.new([d.r.choice((1, 2)), d.r.choice((1, 2)), 2 * d.r.choice((1, 2)), 2 * d.r.choice((2, 3))])
    attrs = {"kernel_shape": [2, 2], "strides": d.r.choice(([2, 2], [2, 2], [1, 1]))}
    pads = d.maybe([d.r.randrange(2) for _ in range(4)], 0.2)
    pooled, places = d.node("MaxPool", [name], outputs=2, pads=pads, **attrs)
    inputs = [pooled, places]
    if d.chance(0.4):
        inputs.append(d.ints([n + d.r.choice((0, 0, 1)) if i > 1 else n for i, n in enumerate(d.shape(name))]))
    d.node(op, inputs, pads=pads, **attrs)


@draws("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(d: Draw, op: str) -> None:
    d.node(op, [_image(d)], **({"p": d.maybe(1)} if op == "GlobalLpPool" else {}))


@draws("LRN")
def lrn(d: Draw, op: str) -> None:
    d.node(op, [_image(d, spatial=2)], size=d.r.choice((1, 3)), alpha=d.maybe(0.1), beta=d.maybe(0.5))


@draws("BatchNormalization")
def batch_normalization(d: Draw, op: str) -> None:
    name = _image(d) if d.chance(0.7) else d.tensor((np.float32,), (2, 3))
    channels = d.shape(name)[1]
    training = d.opset >= 14 and d.chance(0.2)
    attrs = {"training_mode": 1} if training else {}
    inputs = [name, *(d.node("Abs", [d.new([channels])]) for _ in range(4))]
    d.node(op, inputs, outputs=3 if training else 1, epsilon=d.maybe(0.1), momentum=d.maybe(0.5), **attrs)


@draws("InstanceNormalization")
def instance_normalization(d: Draw, op: str) -> None:
    name = _image(d)
    d.node(op, [name, *(d.new([d.shape(name)[1]]) for _ in range(2))], epsilon=d.maybe(0.1))


@draws("GroupNormalization")
def group_normalization(d: Draw, op: str) -> None:
    name = _image(d)
    if d.shape(name)[1] == 1:  # of an axis with a name, which may be 0: ONNX Runtime makes that the scale's 1
        name = _image(d, channels=2)
    channels = d.shape(name)[1]
    d.node(op, [name, *(d.new([channels]) for _ in range(2))],
           num_groups=d.r.choice([n for n in (1, 2, channels) if channels % n == 0]), epsilon=d.maybe(0.1))  # fmt: skip


@draws("LayerNormalization", "RMSNormalization")
def layer_normalization(d: Draw, op: str) -> None:
    name = d.tensor((np.float32,), (1, 4))
    axis = d.axis(d.rank(name))
    shape = list(d.shape(name)[axis % d.rank(name) :])
    inputs = [name, d.fitting([1 if d.chance(0.1) else n for n in shape])]
    outputs = 1
    if op == "LayerNormalization":
        inputs += [d.fitting(shape)] if d.chance(0.6) else []
        outputs = d.r.choice((1, 1, 3))
    d.node(op, inputs, outputs=outputs, axis=axis if axis != -1 or d.chance(0.5) else None, epsilon=d.maybe(0.1))


@draws("Resize")
def resize(d: Draw, op: str) -> None:
    name = d.tensor((np.float32,), (1, 4), lambda v: v.size > 0)
    rank = d.rank(name)
    attrs: dict[str, Any] = {
        "mode": d.r.choice(("nearest", "nearest", "linear", "cubic")),
        "coordinate_transformation_mode": d.maybe(
            d.r.choice(("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")), 0.6
        ),
        "nearest_mode": d.maybe(d.r.choice(("floor", "ceil", "round_prefer_floor"))),
    }
    places = list(range(rank))
    if d.opset >= 18 and d.chance(0.5):
        places = d.axes(rank, 1)
        attrs["axes"] = places
    if d.opset >= 18:
        attrs["antialias"] = d.maybe(1, 0.1)
    roi = ""
    if d.chance(0.15):
        attrs["coordinate_transformation_mode"] = "tf_crop_and_resize"
        roi = d.constant(np.array([0.1] * len(places) + [0.8] * len(places), np.float32))
    leave = attrs["mode"] != "nearest" and len(places) > 2
    if d.chance(0.5):
        scales = [1.0 if leave and i < len(places) - 2 else d.r.choice((0.5, 1.0, 2.0, 1.5, 0.6, 1.3)) for i in
                  range(len(places))]  # fmt: skip
        d.node(op, [name, roi, d.given(np.array(scales, np.float32), fixed=True)], **attrs)
        return
    sizes = [d.shape(name)[axis] if leave and i < len(places) - 2 else d.r.choice((1, 2, 3, 5)) for i, axis in
             enumerate(places)]  # fmt: skip
    if d.opset >= 18:
        attrs["keep_aspect_ratio_policy"] = d.maybe(d.r.choice(("stretch", "not_larger", "not_smaller")), 0.6)
    d.node(op, [name, roi, "", d.ints(sizes)], **attrs)


@draws("AffineGrid")
def affine_grid(d: Draw, op: str) -> None:
    spatial, batch = d.r.choice((2, 2, 3)), d.r.choice((1, 2, 3))
    sizes = [batch, d.r.choice((1, 2)), *(d.r.choice((1, 2, 3)) for _ in range(spatial))]
    d.node(op, [d.new([batch, spatial, spatial + 1]), d.ints(sizes)], align_corners=d.maybe(d.r.randrange(2)))


@draws("GridSample")
def grid_sample(d: Draw, op: str) -> None:
    name = _image(d, spatial=d.r.choice((2, 2, 3)) if d.opset >= 20 else 2)
    spatial = d.rank(name) - 2
    grid = d.new([d.shape(name)[0], *(d.r.choice((1, 2, 3)) for _ in range(spatial)), spatial])
    modes = ("linear", "nearest", "cubic") if d.opset >= 20 else ("bilinear", "nearest", "bicubic")
    d.node(op, [name, grid], mode=d.maybe(d.r.choice(modes[: 2 if spatial > 2 else 3])),
           padding_mode=d.maybe(d.r.choice(("zeros", "border", "reflection"))),
           align_corners=d.maybe(d.r.randrange(2)))  # fmt: skip


def _boxes(d: Draw, number: int, columns: int = 4) -> str:
    boxes = np.abs(d.array([number, 4]))
    boxes[:, 2:] += boxes[:, :2]
    if columns == 5:
        boxes = np.concatenate([np.zeros((number, 1), np.float32), boxes], axis=1)

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.resize(boxes, shape) if boxes.size else np.zeros(shape, np.float32)

    return d.input(boxes, [None if d.chance(0.4) else d._axis(number), columns], fill)


@draws("RoiAlign")
def roi_align(d: Draw, op: str) -> None:
    name, number = _image(d, spatial=2), d.size()
    places = d.input(np.zeros(number, np.int64), None, lambda rng, shape: np.zeros(shape, np.int64))
    attrs = {"coordinate_transformation_mode": d.maybe("output_half_pixel")} if d.opset >= 16 else {}
    d.node(op, [name, _boxes(d, number), places], output_height=d.maybe(d.r.choice((1, 2, 3))),
           output_width=d.maybe(d.r.choice((1, 2, 3))), mode=d.maybe(d.r.choice(("avg", "max"))),
           sampling_ratio=d.maybe(2), **attrs)  # fmt: skip


@draws("MaxRoiPool")
def max_roi_pool(d: Draw, op: str) -> None:
    name = _image(d, spatial=2)
    d.node(op, [name, _boxes(d, d.size(), 5)], pooled_shape=[d.r.choice((1, 2)), d.r.choice((1, 3))])


@draws("NonMaxSuppression")
def non_max_suppression(d: Draw, op: str) -> None:
    batch, boxes = d.r.choice((1, 2)), d.size()
    inputs = [d.new([batch, boxes, 4]), d.new([batch, d.r.choice((1, 2)), boxes])]
    for number, dtype in ((d.r.choice((1, 3)), np.int64), (0.5, np.float32), (0.1, np.float32))[: d.r.randrange(4)]:
        inputs.append(d.given(np.array([number], dtype)) if d.chance(0.8) else "")
    d.node(op, inputs, center_point_box=d.maybe(1))


@draws("ImageDecoder")
def image_decoder(d: Draw, op: str) -> None:
    raise Refused("no file")
