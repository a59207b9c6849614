"""Models made to be fused wrongly: fused and equal, or refused with a reason that names a node of the user's graph."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from bertfuse.qualify.mutants.verdict import Verdict
from tests.graph_rewrite.adversarial import APART, KINDS, recipes, tried, tried_apart

# Models of a recipe; python -m adversarial tries more.
EACH = int(os.environ.get("BERTFUSE_ADVERSARIAL_EACH", "2"))


@pytest.mark.parametrize("kind", KINDS)
def test_fused_and_equal_or_refused(kind: str) -> None:
    each = 1 if kind in ("precision", "halves") else EACH  # these are long
    seeds = range(each * len(recipes(kind)))
    said = []
    for seed, name, runs, verdict in tried_apart(kind, seeds) if kind in APART else _tried_here(kind, seeds):
        if verdict.bad:
            said.append(f"{name}, seed {seed}: {verdict.text} [{verdict.feed}]")
        assert verdict.outcome != "invalid" or not runs, f"{name}, seed {seed} tests nothing: {verdict.text}"
    assert not said, "\n".join(said)


def _tried_here(kind: str, seeds: range) -> Iterator[tuple[int, str, bool, Verdict]]:
    for seed in seeds:
        name, case, verdict = tried(kind, seed)
        yield seed, name, case.runs, verdict
