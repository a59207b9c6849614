"""Engines at work: polygraphy's TensorRT runner, behind the checks that turn its failures into one line."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError

from .backend import Backend, load_backend, load_plugins
from .build import description_path, file_sha256
from .gpu import PORTABLE, check_plugins_run, compute_capability

# What TensorRT for RTX leaves out: Hopper and the data centre's Blackwell; and what is older than Turing.
_DATA_CENTRE, _OLDEST = (9, 10), (7, 5)
_ORT_TYPES = {"INT64": "int64", "INT32": "int32", "FLOAT": "float", "HALF": "float16", "BOOL": "bool"}


def read_description(plan: str | Path) -> dict[str, Any]:
    """The JSON file beside a plan; empty where there is none."""
    file = description_path(plan)
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BertfuseError(f"{file}: cannot be read: {error}; build the engine again") from error
    if not _is_description(found):
        raise BertfuseError(f"{file}: does not describe an engine; build the engine again")
    return found


def _is_description(found: Any) -> bool:
    """Whether what is read of a description, where it has it, is of the kind that `bertfuse engine` writes."""
    try:
        bounds = [entry[key] for entry in found.get("shapes", {}).values() for key in ("min", "opt", "max")]
        tensors = [entry for key in ("inputs", "outputs") for entry in found.get(key, {}).values()]
        kinds = [entry["dtype"] for entry in tensors] + [(found.get("plugins") or {"sha256": ""})["sha256"]]
        sizes = [size for shape in [*bounds, *(entry["shape"] for entry in tensors)] for size in shape]
    except (AttributeError, KeyError, TypeError):
        return False
    return all(isinstance(size, int) for size in sizes) and all(isinstance(kind, str) for kind in kinds)


def shortest_sequence(plan: str | Path) -> int:
    """The least that a plan's second axes take, by the JSON file beside it; 1 where that is missing."""
    shapes = read_description(plan).get("shapes", {}).values()
    return max((entry["min"][1] for entry in shapes if len(entry["min"]) > 1), default=1)


@contextmanager
def engine_errors(plan: Path) -> Iterator[None]:
    """Turns what polygraphy raises for an engine into a BertfuseError of one line."""
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1):
            yield
    except (PolygraphyException, OSError) as error:
        raise BertfuseError(f"{plan}: {' '.join(str(error).split())}") from error


def _check_gpu(plan: Path, backend: Backend, built_for: list[str], plugins: bool) -> None:
    gpu = compute_capability()
    if gpu is None:
        raise BertfuseError(f"{plan}: running an engine needs an NVIDIA GPU and its driver; there is none here")
    name = f"{gpu[0]}.{gpu[1]}"
    if backend.name == "rtx" and (gpu[0] in _DATA_CENTRE or gpu < _OLDEST):
        raise BertfuseError(
            f"{plan}: {backend} does not run on this GPU's compute capability {name}; build with --backend tensorrt"
        )
    if built_for and name not in built_for and tuple(built_for) != PORTABLE:
        raise BertfuseError(
            f"{plan}: built for compute capability {', '.join(built_for)}, this GPU's is {name}; build it again"
        )
    if plugins:
        check_plugins_run([gpu])


def engine_runner(plan: str | Path, name: str | None = None) -> Any:
    """A polygraphy TrtRunner for a plan, activated by `with` as every polygraphy runner.

    Backend, versions and plugin library are those of the JSON file beside the plan; without it, of what is installed.
    Raises BertfuseError, before anything is loaded, where this machine or installation cannot run the plan.
    """
    plan = Path(plan)
    if not plan.is_file():
        raise BertfuseError(f"{plan}: no such engine; build it with 'bertfuse engine'")
    if plan.suffix == ".onnx":
        raise BertfuseError(f"{plan}: is an ONNX file; build an engine of it with 'bertfuse engine'")
    description = read_description(plan)
    backend = load_backend(description.get("backend"))
    built_with = description.get("version", backend.version)
    if built_with != backend.version:
        raise BertfuseError(f"{plan}: built with {backend.title} {built_with}, this is {backend}; build it again")
    if description.get("plan_sha256") not in (None, file_sha256(plan)):
        raise BertfuseError(f"{plan}: {description_path(plan).name} beside it is another plan's; build it again")
    plugins = description.get("plugins")
    _check_gpu(plan, backend, description.get("compute_capabilities") or [], bool(plugins))
    wide = [name for name, entry in description.get("outputs", {}).items() if entry["dtype"] == "bf16"]
    if wide:
        raise BertfuseError(
            f"{plan}: output {wide[0]!r} is bfloat16, which NumPy lacks; build a float16 engine for this"
        )
    if plugins or not description:
        library = load_plugins(backend)
        if plugins and plugins["sha256"] != file_sha256(library):
            warnings.warn(f"{plan} was built with another build of {library.name}", RuntimeWarning, stacklevel=2)
    _use_in_polygraphy(backend)
    from polygraphy.backend.trt import TrtRunner

    runtime = backend.trt.Runtime(backend.log)  # outlives the engine, as the runner keeps `load`

    def load() -> Any:
        engine = runtime.deserialize_cuda_engine(plan.read_bytes())
        if engine is None:
            raise BertfuseError(
                f"{plan}: {backend}: {backend.log.take('it is not an engine for this GPU and version')}"
            )
        return engine

    return TrtRunner(load, name=name or str(plan))


def _use_in_polygraphy(backend: Backend) -> None:
    from polygraphy import config

    _offer_cuda_runtime()
    config.USE_TENSORRT_RTX = backend.name == "rtx"
    if backend.name == "rtx":
        # polygraphy knows the name of NVIDIA's metapackage only.
        sys.modules.setdefault("tensorrt_rtx", backend.trt)


def _offer_cuda_runtime() -> None:
    """polygraphy looks for libcudart where a CUDA toolkit has it, and by LD_LIBRARY_PATH, but not where pip puts it."""
    spec = find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    folders = {str(file.parent) for root in roots for file in Path(root).glob("*/lib/libcudart.so*")}
    known = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if new := sorted(folders - set(known)):
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([*filter(None, known), *new])


class DescribedEngine:
    """What the JSON file beside a plan says of its inputs and outputs, as an onnxruntime session says it.

    `shapes` are the engine's: input -> {"min", "opt", "max"}; `quantized`: some weights are. Raises BertfuseError
    where the file is missing.
    """

    def __init__(self, plan: str | Path) -> None:
        self._found = read_description(plan)
        if not {"inputs", "outputs", "shapes"} <= set(self._found):
            what = "is incomplete" if self._found else "is missing beside it"
            raise BertfuseError(f"{plan}: {description_path(plan).name} {what}; build the engine again")
        self.shapes: dict[str, dict[str, list[int]]] = self._found["shapes"]
        self.quantized = bool(self._found.get("weights"))

    def get_inputs(self) -> list[SimpleNamespace]:
        return self._values("inputs")

    def get_outputs(self) -> list[SimpleNamespace]:
        return self._values("outputs")

    def _values(self, key: str) -> list[SimpleNamespace]:
        return [_value(name, entry["dtype"], entry["shape"]) for name, entry in self._found[key].items()]


def _value(name: str, dtype: str, shape: list[int]) -> SimpleNamespace:
    return SimpleNamespace(name=name, type=f"tensor({_ORT_TYPES.get(dtype.upper(), dtype)})", shape=shape)


class EngineSession:
    """A plan ready to run, in a `with` block; the few methods of an onnxruntime session that `run` needs.

    `runner` is its polygraphy TrtRunner.
    """

    def __init__(self, plan: str | Path) -> None:
        self.plan = Path(plan)
        self.runner = engine_runner(plan)
        self.task = str(read_description(plan).get("task", ""))

    def __enter__(self) -> EngineSession:
        with engine_errors(self.plan):
            self.runner.activate()
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.deactivate()

    def get_inputs(self) -> list[SimpleNamespace]:
        """name, type (as onnxruntime writes it) and shape of each input; -1 is a dynamic axis."""
        return self._values("INPUT")

    def get_outputs(self) -> list[SimpleNamespace]:
        """The same of each output."""
        return self._values("OUTPUT")

    def _values(self, mode: str) -> list[SimpleNamespace]:
        engine = self.runner.engine
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        return [
            _value(name, engine.get_tensor_dtype(name).name, list(engine.get_tensor_shape(name)))
            for name in names
            if engine.get_tensor_mode(name).name == mode
        ]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Output name -> array. Raises BertfuseError for shapes outside the engine's profile."""
        self.check_shapes(feed)
        with engine_errors(self.plan):
            results = self.runner.infer(feed_dict=dict(feed))
            return {name: np.array(array) for name, array in results.items()}

    def check_shapes(self, feed: Mapping[str, np.ndarray]) -> None:
        """Raises BertfuseError for shapes outside the engine's profile."""
        for name, array in feed.items():
            least, _, most = map(tuple, self.runner.engine.get_tensor_profile_shape(name, 0))
            fits = all(low <= size <= high for low, size, high in zip(least, array.shape, most, strict=True))
            if not fits:
                raise BertfuseError(
                    f"{self.plan}: input {name!r} of {list(array.shape)}: the engine takes {list(least)} to"
                    f" {list(most)}; build it with other --shapes"
                )
