"""What the kernel tests share: random inputs, poisoned outputs, every tactic of a call, and the comparison."""

from __future__ import annotations

import math

import pytest
import torch

from bertfuse.qualify.tolerances import TOLERANCES
from tests.gpu.kernels import SOURCE, Bound, constants, library_file

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
EPSILON = 1e-12


def _without_library() -> str | None:
    try:
        file = library_file()
    except Exception as error:  # the package is not installed, or has no library: either is the reason
        return str(error)
    return None if file.exists() else f"{file}: no such library"


GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device that PyTorch can use"),
    pytest.mark.skipif(_without_library() is not None, reason=str(_without_library())),
]


def randn(*shape, dtype, gain=1.0, offset=0):
    """Random values; `offset` elements into its allocation, so that the pointer is that much off alignment."""
    flat = torch.randn(math.prod(shape) + offset, device=SOURCE) * gain
    return flat.to(dtype).cuda()[offset:].view(shape)


def randint(below, shape, dtype):
    return torch.randint(0, below, shape, device=SOURCE).to(dtype).cuda()


def near_one(count, dtype, offset=0):
    """LayerNorm's scales."""
    return (1 + 0.2 * torch.randn(count + offset, device=SOURCE)).to(dtype).cuda()[offset:]


def turns(places, pairs, dtype):
    """cos and sin [places, pairs] of random angles."""
    angles = 2 * math.pi * torch.rand(places, pairs, device=SOURCE)
    return angles.cos().to(dtype).cuda(), angles.sin().to(dtype).cuda()


def poisoned(*shape, dtype):
    return torch.full(shape, float("nan"), device=SOURCE, dtype=dtype).cuda()


def check(op, outputs, expected, scale=1.0, dtype=None, more=0.0):
    """`dtype` names a row of the table other than the outputs' own; `more` is allowed on top, where it is said why."""
    for actual, wanted in zip(outputs, expected, strict=True):
        if not wanted.numel():  # packed rows of empty sequences alone
            assert not actual.numel(), f"{op}: {actual.numel()} values where there are none"
            continue
        tolerance = TOLERANCES[op, dtype or str(actual.dtype).removeprefix("torch.")]
        assert torch.isfinite(actual).all(), f"{op}: {(~torch.isfinite(actual)).sum().item()} values are not finite"
        error = (actual.double() - wanted).abs()
        excess = (error / (scale * (tolerance.atol + tolerance.rtol * wanted.abs()) + more)).max().item()
        assert excess <= 1, f"{op}: largest error {error.max().item():.3g}, {excess:.2f} times what is allowed"


def run(op, inputs, outputs, attributes, tactic=-1, **fields):
    bound = Bound(op, inputs, outputs, attributes, tactic, **fields)
    bound.run()
    torch.cuda.synchronize()
    return bound


def gemm_inputs(m, n, k, dtype, offset=0, gain=1.0):
    x = randn(m, k, dtype=dtype, offset=offset, gain=gain)
    weight = randn(n, k, dtype=dtype, gain=1 / math.sqrt(k), offset=offset)
    return x, weight, randn(n, dtype=dtype, offset=offset)


def norm_inputs(m, n, dtype, offset=0, op="FusedGemmLayerNorm"):
    """Residual, gamma and beta in the op's order."""
    residual = randn(m, n, dtype=dtype, offset=offset)
    gamma = near_one(n, dtype, offset)
    beta = randn(n, dtype=dtype, offset=offset)
    return (gamma, beta, residual) if op == "FusedGemmGeluLayerNorm" else (residual, gamma, beta)


def all_tactics(op, inputs, shape, dtype, attributes, expected, scale=1.0, more=0.0):
    """Runs the op with the tactic it chooses and with every other one; several outputs, all of `shape`, have a tuple of
    expected values.

    A second time with constant weights, which a kernel may read before the one ahead of it has ended: that one writes x
    here, and the op comes twice, so that it runs beside itself.
    """
    expected = expected if isinstance(expected, tuple) else (expected,)
    tactics = Bound(op, inputs, [poisoned(*shape, dtype=dtype) for _ in expected], attributes).tactics()
    x = inputs[0].clone()
    for tactic in range(-1, tactics):
        outputs, again = ([poisoned(*shape, dtype=dtype) for _ in expected] for _ in range(2))
        run(op, inputs, outputs, attributes, tactic)
        queued = Bound(op, inputs, again, attributes, tactic, constant_inputs=constants(inputs))
        inputs[0].fill_(float("nan"))
        inputs[0].copy_(x)
        queued.run()
        queued.run()
        torch.cuda.synchronize()
        same = all(map(torch.equal, again, outputs))
        assert same, f"tactic {tactic} of {tactics}: {op} gives something else with constant weights"
        try:
            check(op, outputs, expected, scale, more=more)
        except AssertionError as error:
            raise AssertionError(f"tactic {tactic} of {tactics}: {error}") from None
