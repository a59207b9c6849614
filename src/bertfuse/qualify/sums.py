"""How exactly products of 8-bit operands are summed. Standard library alone: GPU tests load it without the package."""

from __future__ import annotations

import math

# Of the sum of the terms' magnitudes. Integers are summed exactly; what is left is float32's: sums of parts, of 8-bit
# floats all of them, and two scales.
IN_FLOAT32 = 2e-6
PART = 128  # products whose sums tensor cores add up by themselves where they are promoted


def cut_off(k: int, short: bool) -> float:
    """The error of k summed products of 8-bit floats by tensor cores, as a share of the largest sum on the way.

    They cut off what they add, 13 bits behind the largest: of sums over all of k (`short`), or over PART, of which the
    results are promoted to float32. They add 32 products at a time; errors of either sign grow as the root of the
    steps.
    """
    span = max(1, k if short else min(PART, k))
    steps, sums = math.ceil(span / 32), math.ceil(k / span)
    return (steps + 8 * math.sqrt(steps)) * math.sqrt(sums) / 4096
