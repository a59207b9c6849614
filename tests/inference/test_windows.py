"""Windows of a stream end where a device would compute them for long; those of a list do not."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from bertfuse.errors import BertfuseError
from bertfuse.inference import windows
from bertfuse.inference.windows import FIRST_OF_STREAM, LEAST_WINDOW, WINDOW, WINDOW_SECONDS, Text, Windows

LONGEST = 400
AHEAD = 5  # windows that are drawn before the first one is computed


def _texts(count: int, source: random.Random) -> list[Text]:
    made: list[Text] = []
    for _ in range(count):
        text = "a" * source.randint(1, LONGEST)
        made.append((text, "b" * source.randint(1, LONGEST)) if source.random() < 0.2 else text)
    return made


def _size(window: list[Text]) -> int:
    return sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in window)


def _run(texts: list[Text], stream: bool, a_second: float) -> list[list[Text]]:
    """The windows, where a device computes so many characters a second."""
    now = 0.0
    made = Windows(iter(texts) if stream else texts, lambda: now)
    found: list[tuple[int, list[Text]]] = []
    behind = 0

    def compute() -> None:
        nonlocal now, behind
        first, window = found[behind]
        now += _size(window) / a_second
        made.computed(first)  # within a window nothing is complete
        made.computed(first + len(window))
        behind += 1

    for window in made:
        assert window[0] == sum(len(texts) for _, texts in found)
        found.append(window)
        if len(found) - behind > AHEAD:
            compute()
    return [window for _, window in found]


@pytest.mark.parametrize("a_second", [100.0, 1_000.0, 20_000.0, 1e9])
def test_no_window_of_a_stream_takes_long(a_second: float) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    texts = _texts(20_000, random.Random(seed))
    found = _run(texts, True, a_second)
    assert [text for window in found for text in window] == texts
    sizes = [_size(window) for window in found]
    assert all(FIRST_OF_STREAM <= size < FIRST_OF_STREAM + 2 * LONGEST for size in sizes[: AHEAD + 1])
    wanted = min(max(a_second * WINDOW_SECONDS, LEAST_WINDOW), WINDOW)
    assert max(sizes[AHEAD + 2 :]) < wanted + 2 * LONGEST
    assert a_second < 1e9 or max(sizes) >= min(WINDOW, _size(texts) // 4), "windows of a fast device grow"


def test_windows_of_a_list_are_as_large_on_a_slow_device() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    texts = _texts(5_000, random.Random(seed))
    slow, fast = _run(texts, False, 1.0), _run(texts, False, 1e9)
    assert slow == fast and len(slow) < 6


def test_many_short_texts_end_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW_TEXTS", 7)
    assert [len(window) for _, window in Windows(["a"] * 20)] == [7, 7, 6]


def test_what_is_no_text_is_said() -> None:
    def stream() -> Iterator[Text]:
        yield "a"
        yield None  # type: ignore[misc]

    with pytest.raises(BertfuseError, match="text 1 is a NoneType, no string"):
        list(Windows(stream()))
