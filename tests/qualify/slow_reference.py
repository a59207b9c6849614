"""A worker's task whose reference takes a second, and whose kernel takes none."""

from __future__ import annotations

import time
from typing import Any

from bertfuse.qualify.check import Verdict
from bertfuse.qualify.problem import Problem

SECONDS = 1.0


class SlowReference:
    def prepare(self, problem: Problem) -> None:
        time.sleep(SECONDS)

    def tactics(self, problem: Problem) -> range:
        return range(1)

    def name(self, problem: Problem) -> str:
        return ""

    def check(self, problem: Problem) -> Verdict:
        return Verdict(str(problem), problem.op)


def task(settings: Any) -> SlowReference:
    return SlowReference()
