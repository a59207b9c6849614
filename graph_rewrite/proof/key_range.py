"""The keys that a query sees by their distance alone: all, a window, those before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class KeyRange:
    """The keys that a query sees: from `left` places before it to `right` behind it, None where nothing limits them."""

    left: int | None = None
    right: int | None = None

    def __str__(self) -> str:
        if self.left is None and self.right is None:
            return "every key"
        if self.left is None:
            return "causal" if self.right == 0 else f"keys up to {self.right} places behind the query"
        if self.right is None:
            return f"keys from {self.left} places before the query on"
        if self.left == self.right:
            return f"window of {self.left} to each side"
        return f"causal window of {self.left}" if self.right == 0 else f"window of {self.left} before and {self.right}"

    def __and__(self, other: KeyRange) -> KeyRange:
        smallest = lambda a, b: a if b is None else b if a is None else min(a, b)  # noqa: E731
        return KeyRange(smallest(self.left, other.left), smallest(self.right, other.right))

    def seen(self, length: int) -> np.ndarray:
        """[length, length] of queries and keys: which of these see which of those."""
        distance = np.arange(length)[None, :] - np.arange(length)[:, None]
        after = True if self.left is None else distance >= -self.left
        return np.broadcast_to(after & (True if self.right is None else distance <= self.right), (length, length))


EVERY_KEY = KeyRange()
