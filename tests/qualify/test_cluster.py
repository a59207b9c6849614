"""What a campaign's workers on other machines are asked, by a Ray that this file stands in for."""

from __future__ import annotations

import time
from types import SimpleNamespace

from bertfuse.qualify.cluster import Remote
from bertfuse.qualify.worker import Answer, Settings

PLACING = 0.3  # seconds


class Actor:
    """Its methods answer at once, but for the first: Ray looks for a machine."""

    def __init__(self, asked: list[tuple]) -> None:
        self._asked = asked

    def __getattr__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *arguments: (name, arguments))

    def answer(self, call: tuple) -> object:
        name, arguments = call
        if not self._asked:
            time.sleep(PLACING)
        self._asked.append((name, arguments))
        return (Answer(), []) if name == "run" else None


def test_placing_an_actor_takes_from_the_time_that_is_left() -> None:
    asked: list[tuple] = []
    actor = Actor(asked)
    made = SimpleNamespace(options=lambda **resources: SimpleNamespace(remote=lambda settings: actor))
    ray = SimpleNamespace(
        remote=lambda kind: made, get=actor.answer, exceptions=SimpleNamespace(RayActorError=ConnectionError)
    )
    remote = Remote(ray, Settings("", "cpu"), {"num_cpus": 1})
    remote.run(["first"], (), 10.0)
    remote.run(["second"], (), 10.0)
    remote.run(["third"], (), 0.0)
    assert [name for name, _ in asked] == ["placed", "run", "run", "run"]
    first, second, third = (arguments[-1] for name, arguments in asked if name == "run")
    assert 0.0 < first <= 10.0 - PLACING and 0.0 < second <= 10.0 and third == 0.0
