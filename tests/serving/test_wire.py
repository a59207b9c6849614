"""Messages between fronts and engines come out as they went in, however the bytes are cut on their way."""

from __future__ import annotations

import random

import numpy as np

from bertfuse.serving.wire import Messages, of_result, of_work, to_result, to_work
from bertfuse.serving.work import Answer, EngineError, EngineFull, Timing, Work


def test_any_cut() -> None:
    seed = random.randrange(1 << 30)
    source, numbers = random.Random(seed), np.random.default_rng(seed)
    works, answers, sent = [], [], bytearray()
    for number in range(20):
        lengths = numbers.integers(1, 9, source.randint(1, 5)).astype(np.int32)
        total = int(lengths.sum())
        types = numbers.integers(0, 2, total).astype(np.uint8) if source.random() < 0.5 else None
        seen = numbers.integers(1, 9, len(lengths)).astype(np.int32) if source.random() < 0.5 else None
        size = len(lengths), *numbers.integers(1, 5, 2), 3
        pixels = numbers.integers(0, 256, size).astype(np.uint8) if source.random() < 0.5 else None
        ids = numbers.integers(0, 30000, total).astype(np.int32)
        works.append(Work(1, "words", lengths, ids, types, number, seen, pixels))
        counts = lengths if source.random() < 0.5 else None
        rows = numbers.normal(size=(total, 3)).astype(np.float32)
        answers.append(Answer(rows, counts, Timing(1, 2, 3, 4, 1 << 20)))
        sent += of_work(number, works[-1]) + of_result(number, answers[-1])
    sent += of_result(20, EngineFull()) + of_result(21, EngineError("é" * 9))
    got: list[tuple[int, bytes]] = []
    messages = Messages()
    at = 0
    while at < len(sent):
        step = source.choice([1, 3, 50, 4000])
        got += messages.of(bytes(sent[at : at + step]))
        at += step
    assert len(got) == 42, f"seed {seed}"
    for number, (work, answer) in enumerate(zip(works, answers, strict=True)):
        back, found = to_work(got[2 * number][1]), to_result(*got[2 * number + 1])
        assert back[0] == found[0] == number
        assert back[1].left_out == work.left_out == number
        for name in ("lengths", "ids", "type_ids", "seen", "pixels"):
            np.testing.assert_array_equal(getattr(back[1], name), getattr(work, name))
        assert isinstance(found[1], Answer) and found[1].timing == answer.timing
        np.testing.assert_array_equal(found[1].rows, answer.rows)
        np.testing.assert_array_equal(found[1].counts, answer.counts)
    assert isinstance(to_result(*got[40])[1], EngineFull)
    assert str(to_result(*got[41])[1]) == "é" * 9
