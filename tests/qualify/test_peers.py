"""Every op of a model has a peer in PyTorch, and it computes what the op's description says."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertfuse.graph_rewrite.ops import MODEL_OPS
from bertfuse.qualify import values
from bertfuse.qualify.bounds import expected
from bertfuse.qualify.peers import FUNCTIONS
from bertfuse.qualify.speed import draw

SMALL = {"B": 2, "S": 5, "V": 11, "P": 7, "C": 5, "K": 24}


@pytest.mark.parametrize("op", MODEL_OPS)
def test_a_peer_computes_the_op(op: str) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for _ in range(8):
        problem = draw(rng, [op], ["float32"])
        problem = replace(problem, sizes={name: SMALL.get(name, size) for name, size in problem.sizes.items()})
        if problem.leading:
            problem = replace(problem, leading=(2, 5))
        arrays = values.inputs(problem)
        attributes = {attr.name: problem.attribute(attr.name) for attr in problem.spec.attributes}
        given = [arrays[tensor.name] for tensor in problem.spec.inputs if not tensor.by_pass]
        tensors = [None if array is None else torch.from_numpy(np.ascontiguousarray(array)) for array in given]
        wide = [t.double() if t is not None and t.is_floating_point() else t for t in tensors]
        found = FUNCTIONS[op](torch, *wide, **attributes)
        wanted = [number.value for number in expected(problem, arrays)]
        for one, other in zip(found if len(wanted) > 1 else [found], wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-6, atol=1e-6, err_msg=str(problem))
