"""Other values in every test, by a seed that is printed."""

import random
import secrets

import pytest


@pytest.fixture(autouse=True)
def _seed():
    import torch

    seed = secrets.randbits(31)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    random.seed(seed)
