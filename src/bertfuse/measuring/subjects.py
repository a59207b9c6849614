"""What a comparison runs: an ONNX file in ONNX Runtime, on the CPU or on a GPU, or an engine in TensorRT."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.io import open_model
from bertfuse.graph_rewrite.quantization import foreign_operators
from bertfuse.graph_rewrite.spec import PADDING_KEY, QUANTIZED_KEY
from bertfuse.model_folder.files import find_model
from bertfuse.runtime.inputs import is_fixed
from bertfuse.runtime.padded_session import PaddedSession, padded_inputs, padded_outputs
from bertfuse.runtime.session import CPU, PROVIDERS, InferenceSession, check_on, providers_of

# How "FILE@HOW" is run: ONNX Runtime's provider, and whether with our library.
HOWS = {
    "cpu": ("cpu", "auto"),
    "cpu+library": ("cpu", "always"),
    "cuda": ("cuda", "auto"),
    "cuda-library": ("cuda", "never"),
}
ENGINES = (".plan", ".engine")
# Batch and sequence where nothing bounds them.
_LEAST, _MOST = (1, 1), (1 << 20, 1 << 20)


def open_session(model: str | Path | bytes, **options: Any) -> Any:
    """Our InferenceSession; of a model of ragged batches, behind the padded interface."""
    session = _session(model, **options)
    padding = session.get_modelmeta().custom_metadata_map.get(PADDING_KEY)
    return PaddedSession(session) if padding == "ragged" else session


def session_runner(model: str | Path | bytes, name: str, **options: Any) -> Any:
    """A polygraphy runner around our InferenceSession: made when it is activated, freed when it is done.

    A model of ragged batches gets the padded interface.
    """
    from polygraphy.backend.onnxrt import OnnxrtRunner

    return OnnxrtRunner(lambda: open_session(model, **options), name=name)


def _session(model: str | Path | bytes, providers: list[Any] | None = None, **options: Any) -> InferenceSession:
    """A session that runs where it was asked to: the CPU compared with itself agrees, and says nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*ONNX Runtime left", category=RuntimeWarning)
        session = InferenceSession(model, providers, **options)
    check_on(session, providers or [CPU], "model" if isinstance(model, bytes) else str(model))
    return session


class DescribedModel:
    """What an ONNX file says of its inputs and outputs, as an onnxruntime session says it; nothing is loaded to run.

    Raises BertfuseError for a file that cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        model = open_model(path)[0]
        self._graph = model.graph
        # What was done about padding: "keep", "remove", or "ragged", whose inputs are described as padded ones.
        said = {entry.key: entry.value for entry in model.metadata_props}
        self.padding = said.get(PADDING_KEY, "keep")
        self.quantized = QUANTIZED_KEY in said or bool(foreign_operators(model))

    def get_inputs(self) -> list[SimpleNamespace]:
        weights = {tensor.name for tensor in self._graph.initializer}
        values = [_value(value) for value in self._graph.input if value.name not in weights]
        return padded_inputs(values) if self.padding == "ragged" else values

    def get_outputs(self) -> list[SimpleNamespace]:
        values = [_value(value) for value in self._graph.output]
        return padded_outputs([_value(self._graph.input[0])], values) if self.padding == "ragged" else values


def _value(value: onnx.ValueInfoProto) -> SimpleNamespace:
    kind = value.type.tensor_type
    shape = [size.dim_value if size.HasField("dim_value") else size.dim_param or None for size in kind.shape.dim]
    name = onnx.TensorProto.DataType.Name(kind.elem_type).lower()
    return SimpleNamespace(name=value.name, type=f"tensor({name})", shape=shape)


@dataclass(frozen=True)
class Subject:
    """A file and how it is run: `providers` and `library` as InferenceSession's; an engine has neither."""

    path: Path
    providers: tuple[Any, ...] = ()
    library: str = "auto"

    @classmethod
    def parse(cls, text: str, provider: str = "cpu", library: str = "auto") -> Subject:
        """From "FILE" or "FILE@HOW", HOW a key of HOWS; a folder stands for the model in it."""
        name, _, how = text.rpartition("@")
        if name and not Path(text).exists():
            if how not in HOWS:
                raise BertfuseError(
                    f"{text}: no such file, and {how!r} is not a way to run one: choose one of {', '.join(HOWS)}"
                )
            if Path(name).suffix in ENGINES:
                raise BertfuseError(f"{text}: an engine runs in TensorRT and nowhere else: leave @{how} out")
            text = name
            provider, library = HOWS[how]
        path = find_model(text)
        if path.suffix in ENGINES:
            return cls(path)
        return cls(path, tuple(providers_of(provider)), library)

    @property
    def is_engine(self) -> bool:
        return self.path.suffix in ENGINES

    def __str__(self) -> str:
        if self.is_engine:
            return f"{self.path} (TensorRT)"
        names = tuple(entry[0] if isinstance(entry, tuple) else entry for entry in self.providers or (CPU,))
        known = {(tuple(PROVIDERS[provider]), library): how for how, (provider, library) in HOWS.items()}
        how = known.get((names, self.library), f"{names[0]}, library {self.library}")
        return str(self.path) if how == "cpu" else f"{self.path} ({how})"

    def runner(self, prefix: str, file: Path | None = None) -> Any:
        """A polygraphy runner of this subject, or of `file` in its place; the prefix keeps names apart."""
        name = f"{prefix}: {self}"
        if self.is_engine:
            from bertfuse.runtime.trt.run import engine_runner

            return engine_runner(self.path, name)
        return session_runner(file or self.path, name, providers=list(self.providers) or None, library=self.library)

    def errors(self) -> AbstractContextManager[None]:
        """What turns an engine's failures into a BertfuseError of one line."""
        if not self.is_engine:
            return nullcontext()
        from bertfuse.runtime.trt.run import engine_errors

        return engine_errors(self.path)

    def session(self, file: Path | None = None) -> InferenceSession:
        """A session of this subject (no engine), or of `file` in its place."""
        return _session(file or self.path, providers=list(self.providers) or None, library=self.library)

    def probe(self) -> Any:
        """Something with an onnxruntime session's get_inputs and get_outputs, made without GPU."""
        if not self.is_engine:
            return DescribedModel(self.path)
        from bertfuse.runtime.trt.run import DescribedEngine

        return DescribedEngine(self.path)

    def bounds(self, probe: Any = None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The least and the largest (batch, sequence) that it takes; `probe` spares reading the file again."""
        probe = probe or self.probe()
        shapes = [entry for entry in probe.shapes.values() if len(entry["min"]) == 2] if self.is_engine else []
        if shapes:
            return tuple(shapes[0]["min"]), tuple(shapes[0]["max"])
        least, most = list(_LEAST), list(_MOST)
        for value in probe.get_inputs():
            for axis, size in enumerate(value.shape if len(value.shape) == 2 else ()):
                if is_fixed(size):
                    least[axis] = most[axis] = size
        return tuple(least), tuple(most)
