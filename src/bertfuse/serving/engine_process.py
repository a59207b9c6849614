"""The process of an engine: opens the models, then answers on its Unix socket. Started by `supervisor.py`."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from bertfuse.errors import BertfuseError

from .child import configuration, say
from .served import ModelOptions


def _serve(settings: dict[str, Any]) -> None:
    from .engine import Engine
    from .engine_server import EngineServer
    from .heads import Shared

    models = [ModelOptions(**options) for options in settings["models"]]
    try:
        engine = Engine(
            models,
            settings["device"],
            threads=settings["threads"],
            memory=settings["memory"],
            max_waiting=settings["max_waiting"],
            warm=settings["warm"],
            resident=settings["resident"],
            shared=[Shared(**shared) for shared in settings["shared"]],
        )
    except (BertfuseError, OSError, MemoryError) as error:
        say("failed", message=str(error))
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(settings["socket"])
    EngineServer(engine, settings["socket"])
    say("ready", models=[served.to_dict() for served in engine.served])
    while os.read(0, 1 << 16):  # the end of stdin is the sign to end
        pass
    # Nobody waits for what is in work: fronts end before engines do.
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    _serve(configuration())
