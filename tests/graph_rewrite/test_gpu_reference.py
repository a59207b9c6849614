"""The GPU tests' oracle against the op descriptions', which were written apart; on the CPU."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.cases import absences, make_case, shapes
from tests.one_node import as_float64

torch = pytest.importorskip("torch")

from bertfuse.graph_rewrite import OPS, oracle  # noqa: E402
from bertfuse.graph_rewrite.ops import MODEL_OPS  # noqa: E402
from tests.gpu import reference  # noqa: E402


@pytest.mark.parametrize("op", MODEL_OPS)
def test_both_agree(op: str) -> None:
    """In every form of the op, with the inputs in the order that kernels are called with."""
    function = getattr(reference, re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=QKV|RMS)", "_", op).lower())
    shape = next(shape for shape in shapes(op) if shape.label == "primes")
    for absent in absences(op):
        case = make_case(op, shape, absent=absent)
        arrays = as_float64(case.inputs)
        tensors = [arrays.get(tensor.name) for tensor in OPS[op].inputs if not tensor.by_pass]
        attributes = [case.attributes.get(attribute.name, attribute.default) for attribute in OPS[op].attributes]
        got = function(*[None if array is None else torch.from_numpy(array) for array in tensors], *attributes)
        wanted = oracle(op, arrays, dict(case.attributes))
        for ours, theirs in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-9, atol=1e-11)
