"""`--ray`: the same fronts and engines as deployments of Ray Serve, for clusters of several machines."""

# Ray pickles the classes as they are decorated, by value: what stands below them in this file would not be there.

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bertfuse.errors import BertfuseError, first_line
from bertfuse.inference.devices import gpu_count

from .served import ModelOptions, Served
from .supervisor import Server
from .work import Answer, EngineError, EngineFull, Work

NAME = "bertfuse"
FRONTS = 4
OBJECT_STORE_BYTES = 200 << 20  # vectors and tokens on their way between processes


@dataclass(frozen=True)
class Scale:
    """How many engines, and how many fronts. `most` above `least` scales engines by the requests in work."""

    least: int | None = None  # None: one for each GPU, or one on the CPU
    most: int | None = None
    target_ongoing: int = 64  # requests in work at an engine that autoscaling aims at
    fronts: int | None = None  # None: FRONTS on a GPU, or one on the CPU, whose cores the model takes


class RayEngine:
    """An engine in a replica."""

    def __init__(self, models: list[dict[str, Any]], settings: dict[str, Any]) -> None:
        from bertfuse.serving.engine import Engine
        from bertfuse.serving.options import apart

        on_gpu = settings["device"] != "cpu"
        options = [part for model in models for part in apart(ModelOptions(**model), on_gpu)]
        self._engine = Engine(options, **settings)

    async def served(self) -> list[dict[str, Any]]:
        return [served.to_dict() for served in self._engine.served]

    async def answer(self, work: Work) -> Any:
        """The answer, or the exception in place of it: Ray would word it anew."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def done(_: Any, result: Any) -> None:
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(result))

        job = self._engine.submit(work, done)
        if job is None:
            return EngineFull()
        try:
            return await future
        except asyncio.CancelledError:
            self._engine.cancel(job)
            raise


class RayEngines:
    """`engines.Engines` by a handle of Ray Serve's."""

    ready = True

    def __init__(self, handle: Any, retried: Callable[[], None]) -> None:
        self._handle, self._retried = handle, retried

    async def ask(self, work: Work, timeout: float) -> Answer:
        """A request changes nothing, so that asking twice does no harm."""
        return await asyncio.wait_for(self._ask(work), timeout)

    async def _ask(self, work: Work) -> Answer:
        import ray.exceptions
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        gone = (ray.exceptions.RayActorError, ray.exceptions.ActorUnavailableError, DeploymentUnavailableError)
        deaths = 0
        while True:
            try:
                result = await self._handle.answer.remote(work)
            except BackPressureError:
                raise EngineFull from None
            except gone:
                deaths += 1
                self._retried()
                if deaths > 20:
                    raise EngineError(f"{deaths} engines ended while they computed this request") from None
                await asyncio.sleep(min(0.1 * deaths, 2.0))
                continue
            except Exception as error:
                raise EngineError(first_line(getattr(error, "cause", None) or error)) from None
            if isinstance(result, Exception):
                raise result
            return result


class RayFront:
    """The HTTP side in a replica: `app.py`'s application behind Ray Serve's ingress."""

    def __init__(self, handle: Any, settings: dict[str, Any]) -> None:
        self._handle, self._settings = handle, settings
        self._front: Any = None
        self._app: Any = None
        self._starting = asyncio.Lock()

    async def __call__(self, request: Any) -> Any:
        """Starlette's request, through the application, as Starlette's streaming answer."""
        from starlette.responses import StreamingResponse

        app = await self._application()
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue(8)
        task = asyncio.ensure_future(app(request.scope, request.receive, messages.put))

        async def next_message() -> dict[str, Any]:
            getting = asyncio.ensure_future(messages.get())
            await asyncio.wait([getting, task], return_when="FIRST_COMPLETED")
            if not getting.done() and not messages.empty():
                await getting
            if not getting.done():
                getting.cancel()
                await task
                return {"type": "http.response.body", "body": b""}
            return getting.result()

        start = await next_message()

        async def body() -> Any:
            while True:
                message = await next_message()
                yield message.get("body", b"")
                if not message.get("more_body", False):
                    return

        answer = StreamingResponse(body(), start.get("status", 499))
        answer.raw_headers = [
            # Ray gives requests ids of its own, and a length is unknown until all of it has come.
            pair
            for pair in start.get("headers", [])
            if pair[0] not in (b"content-length", b"x-request-id")
        ]
        return answer

    async def drain(self, seconds: float) -> bool:
        """Refuses new requests and waits for those in work; whether all were answered in time."""
        if self._front is None:
            return True
        self._front.draining = True
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._front.ongoing and loop.time() < end:
            await asyncio.sleep(0.02)
        return not self._front.ongoing

    async def counts(self) -> Any:
        """Of this front."""
        await self._application()
        self._front.metrics.ongoing.set(self._front.ongoing)
        return self._front.metrics.collected()

    async def _sums(self) -> bytes:
        """What /metrics says, whichever front is asked."""
        from ray import serve

        from bertfuse.serving.metrics import text_of

        fronts = serve.get_deployment_handle("front", NAME).broadcast("counts")
        return text_of(await fronts.results_async(timeout_s=5))

    async def _application(self) -> Any:
        async with self._starting:
            if self._app is None:
                from bertfuse.serving.app import Access, application
                from bertfuse.serving.checks import Limits
                from bertfuse.serving.front import Front
                from bertfuse.serving.metrics import Metrics

                settings, metrics = self._settings, Metrics()
                models = [Served.of_dict(model) for model in await self._handle.served.remote()]
                engines = RayEngines(self._handle, metrics.retries.inc)
                self._front = Front(models, Limits(**settings["limits"]), engines, metrics, self._sums)
                self._app = application(self._front, Access(tuple(settings["keys"]), tuple(settings["origins"])))
            return self._app


def serve_on_ray(
    models: Sequence[ModelOptions], server: Server, scale: Scale, address: str, say: Callable[[str], None] = print
) -> None:
    """Serves until SIGINT or SIGTERM, then answers what is in work, and returns.

    `address` is that of a Ray cluster, "auto", or "local", which starts Ray on this machine. Raises BertfuseError where
    Ray cannot be reached, a port is taken or no engine comes up.
    """
    if server.certificate or server.tracing:
        raise BertfuseError("--ray takes neither --tls-certificate nor --tracing: put them before Ray's HTTP process")
    _check_port(server.host, server.port)
    _check_cluster(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    # Seconds after which Serve gives a proxy up that has not started: Ray's 5 are too few for a busy machine.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    stop = threading.Event()
    try:
        handle = _start(ray, serve, models, server, scale, address)
        for number in (signal.SIGINT, signal.SIGTERM):  # after Ray has set its own handler
            signal.signal(number, lambda *_: stop.set())
        say(f"Serving {', '.join(str(model.name) for model in models)} at http://{server.host}:{server.port}")
        stop.wait()
        say("Stopping: new requests are refused, those in work are answered")
        if not all(asyncio.run(_drain(handle, server.drain))):
            say(f"Requests that took longer than {server.drain:g} seconds were given up")
    finally:
        if ray.is_initialized():
            if address != "local":
                serve.delete(NAME)
            ray.shutdown()


def _start(ray: Any, serve: Any, models: Sequence[ModelOptions], server: Server, scale: Scale, address: str) -> Any:
    """The running application's handle."""
    device = server.devices[0]
    local: dict[str, Any] = {}
    if address == "local":
        cpus = 1 + (scale.most or scale.least or 1)
        local = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        if device == "cuda":
            local["num_gpus"] = gpu_count()  # by the driver: Ray asks NVML, which containers may lack
    try:
        ray.init(None if address == "local" else address, logging_level="ERROR", log_to_driver=False, **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BertfuseError(f"Ray cannot be started: {first_line(error)}") from error
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if device == "cuda" and not gpus:
        raise BertfuseError("Ray finds no GPU: leave --provider cuda out, or name a cluster with GPUs by --ray")
    least = scale.least or (gpus if device == "cuda" else 1)
    most = max(least, scale.most or 0)
    options: dict[str, Any] = {"num_replicas": least}
    if most > least:
        target = {"target_ongoing_requests": scale.target_ongoing}
        options = {"autoscaling_config": {"min_replicas": least, "max_replicas": most, **target}}
    resources = {"num_cpus": 0, "num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
    threads = server.threads or (max(1, (os.cpu_count() or 1) // most) if device == "cpu" else None)
    limits, quiet = server.limits, {"log_level": "ERROR", "enable_access_log": False}
    settings = {
        "device": device,
        "threads": threads,
        "memory": server.memory,
        "max_waiting": limits.max_queued,
        "warm": server.warm,
    }
    engine = serve.deployment(RayEngine, name="engine").options(
        ray_actor_options=resources, max_ongoing_requests=1 << 16, logging_config=quiet, **options
    )
    front = serve.deployment(RayFront, name="front").options(
        num_replicas=scale.fronts or (FRONTS if device == "cuda" else 1),
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1 << 16,
        logging_config=quiet,
    )
    http = {"host": server.host, "port": server.port}
    asked = {"limits": asdict(limits), "keys": server.keys, "origins": server.origins}
    try:
        # A proxy that does not start in time is an error of Ray's own.
        serve.start(proxy_location="HeadOnly", http_options=http, logging_config=quiet)
        bound = engine.bind([asdict(model) for model in models], settings)
        return serve.run(front.bind(bound, asked), name=NAME)
    except (RuntimeError, ray.exceptions.RayError) as error:
        raise BertfuseError(f"the server did not come up: {first_line(error)}") from error


async def _drain(handle: Any, seconds: float) -> list[bool]:
    return await handle.broadcast("drain", seconds).results_async(timeout_s=seconds + 5)


def _check_port(host: str, port: int) -> None:
    try:
        with socket.create_server((host, port)):
            pass
    except (OSError, OverflowError) as error:
        raise BertfuseError(f"{host}:{port} cannot be listened on: {error}; give another --port") from error


def _check_cluster(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:  # "auto", "local", ray://…
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise BertfuseError(f"--ray {address}: nothing answers there: {error}; check the address") from error
