"""Tracing models whose attention masks transformers makes by torch.vmap, which torch.jit cannot trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING
from unittest import mock

from bertfuse.errors import ExportError

if TYPE_CHECKING:
    import torch

    Mask = Callable[..., torch.Tensor]


@contextmanager
def masks_by_broadcasting() -> Iterator[bool]:
    """Within it a mask that a model brings (Gemma 3's) is made of broadcast indices where it is traced.

    A mask function gets the indices of one text, head, query and key. Where nothing is traced both ways are taken, and
    ExportError is raised where they differ: run the model once before it is traced. Yields whether transformers has
    such masks at all.
    """
    from torch.overrides import TorchFunctionMode
    from transformers import masking_utils

    vmapped = getattr(masking_utils, "_vmap_expansion_sdpa", None)
    indexed = getattr(masking_utils, "TransformGetItemToIndex", None)  # what lets vmap index by a scalar
    here = vmapped is not None and isinstance(indexed, type) and issubclass(indexed, TorchFunctionMode)
    with ExitStack() as stack:
        if here:
            stack.enter_context(mock.patch.object(masking_utils, "TransformGetItemToIndex", nullcontext))
            made = _both_ways(vmapped, indexed)
            stack.enter_context(mock.patch.object(masking_utils, "_vmap_expansion_sdpa", made))
        yield here


def _both_ways(vmapped: Callable[[Mask], Mask], indexed: type) -> Callable[[Mask], Mask]:
    import torch

    def expansion(mask: Mask) -> Mask:
        def made(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            all_axes = (batch[:, None, None, None], head[:, None, None], query[:, None], key)
            found = mask(*all_axes).expand(batch.shape[0], head.shape[0], query.shape[0], key.shape[0])
            if not torch.jit.is_tracing():
                with indexed():
                    wanted = vmapped(mask)(batch, head, query, key)
                if not torch.equal(found, wanted):
                    raise ExportError("an attention mask is no function of each query's and key's place alone")
            return found

        return made

    return expansion
