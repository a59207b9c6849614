"""Texts as windows, within which they are sorted by length: not larger than a device computes in some seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeAlias

from bertfuse.errors import BertfuseError

Text: TypeAlias = str | tuple[str, str]  # with a second segment

# Texts are tokenised, and sorted by length, a window at a time: of so many characters and texts at most. The first is
# small, so that the device need not wait for long, and each next one twice as large.
FIRST_WINDOW, WINDOW, WINDOW_TEXTS = 1 << 16, 1 << 20, 1 << 15
# Of a stream results are written as it runs, and only behind whole windows: those of a machine that needs seconds for
# one are smaller.
FIRST_OF_STREAM, LEAST_WINDOW, WINDOW_SECONDS = 1 << 13, 1 << 11, 10.0


class Windows:
    """The texts in windows, each with the position of its first; iterated once.

    `clock` gives seconds. Raises BertfuseError for what is no text.
    """

    def __init__(self, texts: Iterable[Text], clock: Callable[[], float] = time.monotonic) -> None:
        self._texts, self._clock = texts, clock
        self._paced = not isinstance(texts, Sized)
        self._size = FIRST_OF_STREAM if self._paced else FIRST_WINDOW
        self._most = self._size if self._paced else WINDOW
        self._drawn: deque[tuple[int, int]] = deque()  # (behind which text, characters) of windows under way
        self._since = clock()

    def computed(self, texts: int) -> None:
        """Is told that the first `texts` texts have been computed."""
        done = 0
        while self._drawn and self._drawn[0][0] <= texts:
            done += self._drawn.popleft()[1]
        if not done or not self._paced:
            return
        now = self._clock()
        a_second = done / max(now - self._since, 1e-6)
        self._since = now
        self._most = int(min(max(a_second * WINDOW_SECONDS, LEAST_WINDOW), WINDOW))

    def __iter__(self) -> Iterator[tuple[int, list[Text]]]:
        held, first = 0, 0
        window: list[Text] = []
        for index, text in enumerate(self._texts):
            held += _characters(index, text)
            window.append(text)
            if held >= self._size or len(window) >= WINDOW_TEXTS:
                yield self._ended(first, window, held)
                first, window, held = index + 1, [], 0
        if window:
            yield self._ended(first, window, held)

    def _ended(self, first: int, window: list[Text], held: int) -> tuple[int, list[Text]]:
        self._drawn.append((first + len(window), held))
        self._size = min(2 * self._size, self._most)
        return first, window


def _characters(index: int, text: Text) -> int:
    if isinstance(text, str):
        return len(text)
    if isinstance(text, tuple) and all(isinstance(part, str) for part in text):
        return sum(map(len, text))
    inside = " with something else than strings in it" if isinstance(text, tuple) else ", no string"
    raise BertfuseError(f"text {index} is a {type(text).__name__}{inside}")
