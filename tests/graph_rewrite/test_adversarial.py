"""Models made to be fused wrongly: fused and equal, or refused with a reason that names a node of the user's graph."""

from __future__ import annotations

import os

import pytest
from adversarial import KINDS, recipes, tried

# Models of a recipe; python -m adversarial tries more.
EACH = int(os.environ.get("BERTFUSE_ADVERSARIAL_EACH", "2"))


@pytest.mark.parametrize("kind", KINDS)
def test_fused_and_equal_or_refused(kind: str) -> None:
    said = []
    each = 1 if kind in ("precision", "halves") else EACH  # these are long
    for seed in range(each * len(recipes(kind))):
        name, case, verdict = tried(kind, seed)
        if verdict.bad:
            said.append(f"{name}, seed {seed}: {verdict.text} [{verdict.feed}]")
        assert verdict.outcome != "invalid" or not case.runs, f"{name}, seed {seed} tests nothing: {verdict.text}"
    assert not said, "\n".join(said)
