"""What is drawn: every operator of opsets 13 to 25 in each of its versions, and some of other domains."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from .operators import DRAWERS
from .operators.foreign import FOREIGN

FIRST, LAST = 13, 25

# Operators of which nothing can be checked, and why.
CANNOT = {"ImageDecoder": "ONNX Runtime has no kernel for it on the CPU"}
# Versions that ONNX Runtime 1.31 has no kernel for on the CPU; drawn all the same, as another may have one.
WITHOUT_KERNEL = {
    "Bernoulli-22", "GlobalLpPool-22", "MaxRoiPool-22", "Multinomial-22", "RandomNormal-22", "RandomNormalLike-22",
    "RandomUniform-22", "RandomUniformLike-22", "RoiAlign-22",
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """An operator and the opsets in which it is one version; of another domain or a function: its name alone."""

    op: str
    since: int
    opsets: tuple[int, ...]

    @property
    def foreign(self) -> bool:
        return self.op in FOREIGN

    def __str__(self) -> str:
        return self.op if self.foreign else f"{self.op}-{self.since}"


def versions(first: int = FIRST, last: int = LAST) -> dict[str, dict[int, tuple[int, ...]]]:
    """Of each standard operator that is not deprecated, by the version that it came with, the opsets it is valid in."""
    known: dict[str, dict[int, bool]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            known.setdefault(schema.name, {})[schema.since_version] = schema.deprecated
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for op, since in sorted(known.items()):
        begins = sorted(since)
        for begin, end in zip(begins, [*begins[1:], last + 1], strict=True):
            opsets = tuple(range(max(begin, first), min(end, last + 1)))
            if opsets and not since[begin]:
                found.setdefault(op, {})[begin] = opsets
    return found


def subjects() -> list[Subject]:
    found = [
        Subject(op, since, opsets)
        for op, by_version in versions().items()
        if op in DRAWERS and op not in CANNOT
        for since, opsets in by_version.items()
    ]
    every = tuple(range(FIRST, LAST + 1))
    return found + [Subject(name, 1, every) for name in FOREIGN for _ in range(2)]
