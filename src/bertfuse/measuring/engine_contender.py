"""A TensorRT engine as a contender on a GPU: inputs and outputs stay there, and a run may be a CUDA graph's replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError
from bertfuse.runtime.inputs import fit_inputs
from bertfuse.runtime.trt.build import types_of
from bertfuse.runtime.trt.run import EngineSession, engine_errors, read_description

from .contenders import Contender, Feed, Fitting
from .cuda_graphs import capture


def engine_contender(plan: Path, cuda_graph: bool) -> Contender:
    """The engine, loaded, under its file's name.

    Raises BertfuseError where this machine or installation cannot run it, and for `cuda_graph` without PyTorch, whose
    CUDA graphs replay it.
    """
    session = EngineSession(plan).__enter__()  # like the other contenders' sessions, it lives as long as the process
    runs = _Replays(session) if cuda_graph else _Runs(session)
    description = read_description(plan)
    notes = f"{plan.name}, {description.get('backend', 'TensorRT')} {description.get('version', '')}".rstrip()
    plugins = (description.get("plugins") or {}).get("layers", {})
    details = {
        "dtype": types_of(description) or None,
        "fused": plugins,
        "library": bool(plugins),
    }
    return Contender(f"engine {plan.name}", runs, notes, details=details)


class _Runs:
    """Runs by polygraphy, on inputs that stay on the GPU, a set for each size."""

    def __init__(self, session: EngineSession) -> None:
        self._session, self._fitting = session, Fitting(session)
        self._ready: dict[tuple[int, ...], Callable[[], Any]] = {}

    def __call__(self, feed: Feed) -> None:
        size = next(iter(feed.values())).shape
        with engine_errors(self._session.plan):
            if size not in self._ready:
                fitting = fit_inputs(self._session, self._fitting(feed), str(self._session.plan))
                self._session.check_shapes(fitting)
                self._ready[size] = self._prepare(fitting)
            self._ready[size]()

    def _prepare(self, feed: Feed) -> Callable[[], Any]:
        from polygraphy.cuda import DeviceArray

        held = {name: DeviceArray(array.shape, array.dtype) for name, array in feed.items()}
        for name, array in feed.items():
            held[name].copy_from(array)
        # It waits for its stream by itself.
        return lambda: self._session.runner.infer(feed_dict=held, copy_outputs_to_host=False, check_inputs=False)


class _Replays(_Runs):
    """The same as CUDA graphs, by PyTorch."""

    def __init__(self, session: EngineSession) -> None:
        try:
            import torch
        except ImportError as error:
            raise BertfuseError(f"{session.plan}: a CUDA graph of an engine needs PyTorch: {error}") from error
        if not torch.cuda.is_available():
            raise BertfuseError(f"{session.plan}: a CUDA graph of an engine needs PyTorch, and this one sees no GPU")
        super().__init__(session)

    def _prepare(self, feed: Feed) -> Callable[[], Any]:
        import torch

        context, engine = self._session.runner.context, self._session.runner.engine
        tensors = {name: torch.from_numpy(array).cuda() for name, array in feed.items()}
        for name, array in feed.items():
            context.set_input_shape(name, array.shape)
        for output in self._session.get_outputs():
            shape = tuple(context.get_tensor_shape(output.name))
            dtype = getattr(torch, _TORCH[engine.get_tensor_dtype(output.name).name])
            tensors[output.name] = torch.empty(shape, dtype=dtype, device="cuda")

        def launch() -> None:
            for name, tensor in tensors.items():
                context.set_tensor_address(name, tensor.data_ptr())
            for name, array in feed.items():
                context.set_input_shape(name, array.shape)
            context.execute_async_v3(torch.cuda.current_stream().cuda_stream)

        graph = capture([launch])

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        replay.holds = tensors  # type: ignore[attr-defined]  # the graph goes on reading and writing them there
        return replay


_TORCH = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "int32", "INT64": "int64", "BOOL": "bool"}
