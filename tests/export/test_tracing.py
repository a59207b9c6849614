"""Masks that transformers makes by torch.vmap, made of broadcast indices for torch.jit."""

from __future__ import annotations

import pytest
import torch
from transformers import masking_utils

from bertfuse.errors import ExportError
from bertfuse.export.tracing import masks_by_broadcasting


def _mask(function, batch: int, length: int) -> torch.Tensor:
    sizes = {"batch_size": batch, "q_length": length, "kv_length": length, "allow_is_causal_skip": False}
    return masking_utils.sdpa_mask(**sizes, mask_function=function, use_vmap=True)


class _OfSize(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, like: torch.Tensor) -> torch.Tensor:
        return _mask(self.function, *like.shape)


def test_masks_of_indices() -> None:
    shown = torch.rand(3, 11) < 0.6

    def window(batch, head, query, key):
        return ((query - key).abs() < 4) & (key >= 0) & shown[batch, key]

    for function in (window, masking_utils.causal_mask_function, lambda *indices: torch.tensor(True)):
        plain = _mask(function, 3, 11)
        with masks_by_broadcasting():
            assert torch.equal(_mask(function, 3, 11), plain)
            traced = torch.jit.trace(_OfSize(function), torch.zeros(3, 11), check_trace=False)
        assert torch.equal(traced(torch.zeros(3, 11)), plain)
        assert torch.equal(traced(torch.zeros(2, 7)), _mask(function, 2, 7))
    assert torch.equal(_mask(window, 3, 11), _mask(window, 3, 11))


def test_a_mask_of_more_than_indices() -> None:
    with masks_by_broadcasting(), pytest.raises(ExportError, match="no function of each query's and key's place"):
        _mask(lambda batch, head, query, key: (query * key).amax() > query, 2, 5)
