"""Every tactic of quantised products against the rule in float64: random shapes, scales and rows."""

from __future__ import annotations

import os
import random

import pytest

from tests.gpu.harness import GPU
from tests.gpu.quantized import Case

pytestmark = GPU


@pytest.mark.parametrize("part", range(4))
def test_every_tactic(part: int) -> None:
    seed = int(os.environ.get("BERTFUSE_TEST_SEED") or random.SystemRandom().randrange(1 << 30)) + 100 * part
    print(f"BERTFUSE_TEST_SEED={seed}")
    for index in range(15):
        case = Case(seed + index)
        _, worst, whose = case.check()
        assert worst <= 1, f"{case}: {whose}: {worst:.2f} times what is allowed"
