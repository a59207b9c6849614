"""Starts Ray Serve with the two deployments, and stops it without losing a request."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bertfuse.errors import BertfuseError, first_line
from bertfuse.inference.devices import gpu_count

from .requests import Limits
from .served import Served

NAME = "bertfuse"
FRONTS = 4
OBJECT_STORE_BYTES = 200 << 20  # vectors and texts on their way between processes


@dataclass(frozen=True)
class Scale:
    """How many replicas of the model, and how many processes speak HTTP.

    `most` above `least` scales the replicas by the requests in work.
    """

    least: int | None = None  # None: one for each GPU, or one on the CPU
    most: int | None = None
    target_ongoing: int = 64  # requests in work at a replica that autoscaling aims at
    fronts: int | None = None  # None: FRONTS on a GPU, or one on the CPU, whose cores the model takes


def serve_model(
    served: Served,
    limits: Limits,
    scale: Scale,
    *,
    host: str,
    port: int,
    address: str | None = None,
    drain: float = 30.0,
    say: Callable[[str], None] = print,
) -> None:
    """Serves until SIGINT or SIGTERM, then answers what is in work, for at most `drain` seconds, and returns.

    `address` is that of a Ray cluster, or "auto"; None starts Ray on this machine. Raises BertfuseError where Ray
    cannot be started, a port is taken or no replica comes up.
    """
    _check_port(host, port)
    if address is not None:
        _check_cluster(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    ray, serve = _import_ray()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    stop = threading.Event()
    try:
        handle = _start(ray, serve, served, limits, scale, host, port, address)
        for number in (signal.SIGINT, signal.SIGTERM):  # after Ray has set its own handler
            signal.signal(number, lambda *_: stop.set())
        say(f"Serving {served.name} at http://{host}:{port}")
        stop.wait()
        say("Stopping: new requests are refused, those in work are answered")
        if not all(asyncio.run(_drain(handle, drain))):
            say(f"Requests that took longer than {drain:g} seconds were given up")
    finally:
        if ray.is_initialized():
            if address is not None:
                serve.delete(NAME)
            ray.shutdown()


def _start(
    ray: Any,
    serve: Any,
    served: Served,
    limits: Limits,
    scale: Scale,
    host: str,
    port: int,
    address: str | None,
) -> Any:
    """The running application's handle."""
    from .http import Http
    from .replica import Replica

    local: dict[str, Any] = {}
    if address is None:
        cpus = 1 + (scale.most or scale.least or 1)
        local = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        if served.device == "cuda":
            local["num_gpus"] = gpu_count()  # by the driver: Ray asks NVML, which containers may lack
    try:
        ray.init(address, logging_level="ERROR", log_to_driver=False, **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BertfuseError(f"Ray cannot be started: {first_line(error)}") from error
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if served.device == "cuda" and not gpus:
        raise BertfuseError("Ray finds no GPU: leave --provider cuda out, or name a cluster with GPUs by --ray")
    least = scale.least or (gpus if served.device == "cuda" else 1)
    most = max(least, scale.most or 0)
    if served.device == "cpu":
        served = replace(served, threads=max(1, (os.cpu_count() or 1) // most))
    options: dict[str, Any] = {"num_replicas": least}
    if most > least:
        target = {"target_ongoing_requests": scale.target_ongoing}
        options = {"autoscaling_config": {"min_replicas": least, "max_replicas": most, **target}}
    resources = {"num_cpus": 0, "num_gpus": 1} if served.device == "cuda" else {"num_cpus": 1}
    fronts = scale.fronts or (FRONTS if served.device == "cuda" else 1)
    quiet = {"log_level": "ERROR", "enable_access_log": False}
    model = Replica.options(
        ray_actor_options=resources,
        max_ongoing_requests=limits.max_ongoing,
        max_queued_requests=max(1, limits.max_queued // fronts),  # each process that asks it has a queue of its own
        logging_config=quiet,
        **options,
    )
    # The front takes in whatever comes: it is the model's queue that is limited.
    front = Http.options(
        num_replicas=fronts, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1 << 16, logging_config=quiet
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port}, logging_config=quiet)
    try:
        return serve.run(front.bind(model.bind(served), served, limits), name=NAME)
    except RuntimeError as error:
        raise BertfuseError(f"the server did not come up: {first_line(error)}") from error


async def _drain(handle: Any, seconds: float) -> list[bool]:
    return await handle.broadcast("drain", seconds).results_async(timeout_s=seconds + 5)


def _import_ray() -> tuple[Any, Any]:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import ray
        from ray import serve
    except ModuleNotFoundError as error:
        raise BertfuseError(f"{error.name} is not installed: pip install 'bertfuse[serve]'") from error
    return ray, serve


def _check_port(host: str, port: int) -> None:
    try:
        with socket.create_server((host, port)):
            pass
    except (OSError, OverflowError) as error:
        raise BertfuseError(f"{host}:{port} cannot be listened on: {error}; give another --port") from error


def _check_cluster(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:  # "auto", ray://…
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise BertfuseError(f"--ray {address}: nothing answers there: {error}; check the address") from error
