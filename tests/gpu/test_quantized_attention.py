"""Every tactic of attention that writes its context in 8 bits: the bits of the rule, of what it writes without."""

from __future__ import annotations

import os
import random

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.harness import GPU  # noqa: E402
from tests.gpu.quantized_attention import OPS, Case  # noqa: E402

pytestmark = GPU


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_tactic(op: str, dtype: torch.dtype) -> None:
    seed = int(os.environ.get("BERTFUSE_TEST_SEED") or random.SystemRandom().randrange(1 << 30))
    print(f"BERTFUSE_TEST_SEED={seed}")
    for index in range(25):
        wrong = Case(seed + index, op, dtype).wrong()[1]
        assert not wrong, wrong
