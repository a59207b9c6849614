"""Which shapes an engine is built for: smallest, most usual and largest shape of every input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bertfuse.errors import BertfuseError

Axes = tuple[int | str | None, ...]
Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]

BATCHES, SEQUENCES = (1, 8, 32), (16, 128, 512)
MOST_DIGITS = 9  # TensorRT's own sizes end at 2**31 - 1

_FORM = "write input:min:opt:max, as in input_ids:1x16:8x128:32x512, or min:opt:max for all inputs"


def make_profile(inputs: Mapping[str, Axes], shapes: Sequence[str] = (), longest: int | None = None) -> Profile:
    """Input name -> (min, opt, max) shapes for every input with a dynamic axis.

    inputs   the model's inputs with their axes: a size, or a name (None: no name) where it is dynamic
    shapes   "input:min:opt:max", or "min:opt:max" for every input that no other entry names; "1x16:8x128:32x512"
    longest  the longest sequence of the model, which it has positions for

    By default the first axis is the batch (BATCHES) and the second the sequence (SEQUENCES).
    Raises BertfuseError for shapes that are malformed, contradict the model or one another.
    """
    given: Profile = {}
    if shapes and not any(_is_dynamic(axes) for axes in inputs.values()):
        raise BertfuseError(f"--shapes {shapes[0]}: the model fixes every axis; leave the option out")
    for text in shapes:
        name, bounds = _parse(text)
        for target in [name] if name else [key for key, axes in inputs.items() if _is_dynamic(axes)]:
            if target not in inputs:
                raise BertfuseError(f"--shapes {text}: no input {target!r}; the model has {', '.join(inputs)}")
            if name or target not in given:
                given[target] = _checked(text, target, inputs[target], bounds, longest)
    profile = {
        name: given.get(name) or _default(name, axes, longest) for name, axes in inputs.items() if _is_dynamic(axes)
    }
    _check_shared(inputs, profile)
    return profile


def _is_dynamic(axes: Axes) -> bool:
    return any(not isinstance(axis, int) for axis in axes)


def _parse(text: str) -> tuple[str, tuple[Shape, Shape, Shape]]:
    # From the right: names of inputs may hold colons.
    *name, least, usual, most = text.rsplit(":", 3) if text.count(":") >= 2 else ("", "", "", "")
    bounds = []
    for part in (least, usual, most):
        if not re.fullmatch(r"\d+([xX]\d+)*", part):
            raise BertfuseError(f"--shapes {text}: {_FORM}")
        sizes = re.split("[xX]", part)
        if max(map(len, sizes)) > MOST_DIGITS:
            raise BertfuseError(f"--shapes {text}: sizes have {MOST_DIGITS} digits at most")
        bounds.append(tuple(map(int, sizes)))
    return (name[0] if name else ""), (bounds[0], bounds[1], bounds[2])


def _checked(
    text: str, name: str, axes: Axes, bounds: tuple[Shape, Shape, Shape], longest: int | None
) -> tuple[Shape, Shape, Shape]:
    where = f"--shapes {text}: input {name!r}"
    if any(len(shape) != len(axes) for shape in bounds):
        raise BertfuseError(f"{where} has {len(axes)} axes: {_written(axes)}")
    for axis, least, usual, most in zip(axes, *bounds, strict=True):
        if not least <= usual <= most:
            raise BertfuseError(f"{where}: {least}, {usual}, {most}: needs min <= opt <= max")
        if least < 1:
            raise BertfuseError(f"{where}: {least}: needs sizes of 1 and more")
        if isinstance(axis, int) and (least, most) != (axis, axis):
            raise BertfuseError(f"{where}: {least} to {most}: the model fixes that axis at {axis}: {_written(axes)}")
    if longest and len(axes) == 2 and bounds[2][1] > longest:
        raise BertfuseError(f"{where}: a sequence of {bounds[2][1]}: the model has {longest} positions")
    return bounds


def _default(name: str, axes: Axes, longest: int | None) -> tuple[Shape, Shape, Shape]:
    if len(axes) > 2 and not all(isinstance(axis, int) for axis in axes[2:]):
        raise BertfuseError(f"input {name!r} {_written(axes)}: give its shapes with --shapes {name}:min:opt:max")
    sizes = (BATCHES, tuple(min(size, longest or size) for size in SEQUENCES))
    columns = [(axis,) * 3 if isinstance(axis, int) else sizes[index] for index, axis in enumerate(axes)]
    least, usual, most = zip(*columns, strict=True)
    return least, usual, most


def _check_shared(inputs: Mapping[str, Axes], profile: Profile) -> None:
    """Axes of one name have one size: TensorRT would refuse every run otherwise."""
    seen: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, bounds in profile.items():
        for index, axis in enumerate(inputs[name]):
            if not isinstance(axis, str):
                continue
            sizes = tuple(shape[index] for shape in bounds)
            other, others = seen.setdefault(axis, (name, sizes))
            if others != sizes:
                raise BertfuseError(
                    f"--shapes: axis {axis!r} is {_range(others)} in {other!r} and {_range(sizes)} in {name!r};"
                    " give both inputs the same"
                )


def _range(sizes: tuple[int, ...]) -> str:
    return ":".join(map(str, sizes))


def _written(axes: Axes) -> str:
    return "[" + ", ".join(str(axis or "?") for axis in axes) + "]"
