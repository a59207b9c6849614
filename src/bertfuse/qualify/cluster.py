"""Workers on other machines: Ray places them, each is an actor that holds a worker process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bertfuse.errors import BertfuseError

from .campaign import Local, Runner, share_out
from .isolate import Finding
from .worker import Answer, Fault, Settings

LOCAL = "local"  # an address: Ray is started here


class Holder:
    """What an actor is: a worker process beside it, so that a fault costs neither the actor nor the job."""

    def __init__(self, settings: Settings) -> None:
        self._worker = Local(settings)

    def placed(self) -> None:
        """Is answered once Ray has found a machine, and Python and this package are loaded there."""

    def run(
        self, problems: Sequence[str], skipped: Sequence[tuple[str, str, str]], seconds: float
    ) -> tuple[Answer, list[str]]:
        return self._worker.run(problems, skipped, seconds), self._worker.ran

    def explain(self, fault: Any, problem: str, before: Sequence[str], seconds: float) -> Finding:
        return self._worker.explain(fault, problem, before, time.monotonic() + seconds)

    def stop(self) -> None:
        self._worker.stop()


class Remote:
    """An actor, as a campaign sees a worker. One whose machine is lost is placed anew, and its batch is run again."""

    def __init__(self, ray: Any, settings: Settings, resources: dict[str, float]) -> None:
        self.settings = settings
        self._ray, self._resources = ray, resources
        self._actor: Any = None
        self.ran: list[str] = []

    def _ask(self, method: str, *arguments: Any, until: float) -> Any:
        """The last argument of a method is how many seconds are left when the actor is there: clocks of two machines
        have nothing in common, and placing an actor takes seconds."""
        try:
            if self._actor is None:
                self._actor = self._ray.remote(Holder).options(**self._resources).remote(self.settings)
                self._ray.get(self._actor.placed.remote())
            left = max(0.0, until - time.monotonic())
            return self._ray.get(getattr(self._actor, method).remote(*arguments, left))
        except self._ray.exceptions.RayActorError:
            self._actor = None
            raise

    def run(
        self, problems: Sequence[str], skipped: Sequence[tuple[str, str, str]] = (), seconds: float = math.inf
    ) -> Answer:
        try:
            until = time.monotonic() + seconds
            answer, self.ran = self._ask("run", list(problems), list(skipped), until=until)
            return answer
        except self._ray.exceptions.RayActorError:
            return Answer(rest=list(problems))

    def explain(self, fault: Fault | tuple[str, str], problem: str, before: Sequence[str], until: float) -> Finding:
        return self._ask("explain", fault, problem, list(before), until=until)

    def stop(self) -> None:
        if self._actor is not None:
            self._ray.kill(self._actor)
            self._actor = None


def ray_runners(address: str, settings: Settings, devices: Sequence[str], workers: int | None) -> list[Runner]:
    """Workers for these devices on all machines of the cluster, as many as it has cores.

    Every machine needs this package and, at the same path, the library. Workers share a GPU; Ray shows
    each only its own, as cuda:0. Raises BertfuseError where Ray is missing or the cluster is not there.
    """
    try:
        import ray
    except ImportError as error:
        raise BertfuseError("--ray needs Ray, which is not installed: pip install 'bertfuse[ray]'") from error
    try:
        place = {} if address == LOCAL else {"address": address}
        ray.init(**place, log_to_driver=False, logging_level="ERROR", include_dashboard=False if not place else None)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BertfuseError(f"--ray {address}: {' '.join(str(error).split())[:200]}") from error
    has = ray.cluster_resources()
    gpus = int(has.get("GPU", 0))
    kinds = list(dict.fromkeys(name.partition(":")[0] for name in devices))
    if kinds == ["cuda"] and not gpus:
        raise BertfuseError(f"--ray {address}: no machine of the cluster has a GPU")
    counts = share_out(["cpu" if kind == "cpu" else "cuda:0" for kind in kinds], workers or int(has.get("CPU", 1)))
    runners: list[Runner] = []
    for name, count in counts.items():
        needs: dict[str, float] = {"num_cpus": 1}
        if name != "cpu":
            needs = {"num_cpus": 0, "num_gpus": math.floor(1000 * gpus / count) / 1000 if count > gpus else 1}
        runners += [Remote(ray, replace(settings, device=name), needs) for _ in range(count)]
    return runners
