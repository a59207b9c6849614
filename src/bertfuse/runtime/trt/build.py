"""Fused file to engine: plugin layers counted, plan and its description written side by side."""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onnx import TensorProto

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.files import check_target, replacing
from bertfuse.graph_rewrite.spec import DOMAIN, NODE_MARKERS
from bertfuse.model_folder.files import folder_of, longest_sequence, read_config

from .backend import Backend, has_creator, load_backend, load_plugins
from .gpu import PORTABLE, check_plugins_run, targets
from .model import Prepared, prepare
from .shapes import Profile, make_profile

PLUGIN_LAYERS = ("PLUGIN_V2", "PLUGIN_V3")  # of TensorRT 8 and 9, and of later ones
# Layers that compute nothing a precision could be set for.
_WITHOUT_PRECISION = {"CONSTANT", "SHAPE", "CAST", "IDENTITY", "ASSERTION", *PLUGIN_LAYERS}


@dataclass(frozen=True)
class Layer:
    """One layer of the network that TensorRT was given. `op` is the fused op of a plugin layer, else ""."""

    name: str
    kind: str
    op: str = ""


@dataclass
class EngineReport:
    """How an engine was built; `to_dict` is what stands in the JSON file beside the plan.

    compute_capabilities  "8.9", …: of the GPUs that it is for; a portable engine of TensorRT for RTX has gpu.PORTABLE
    weights               "int8" or "fp8" where some are quantised, else ""
    plugins               {"library": path, "sha256": …, "layers": {op: count}}; None where the op bodies were taken
    shapes                input -> {"min", "opt", "max"}; an input of fixed shape is left out
    """

    backend: str
    version: str
    model: str
    plan: str
    plan_bytes: int
    plan_sha256: str
    precision: str
    tf32: bool
    compute_capabilities: list[str]
    shapes: dict[str, dict[str, list[int]]]
    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, dict[str, Any]]
    plugins: dict[str, Any] | None
    fused: dict[str, int]
    task: str
    layers: list[Layer]
    workspace_bytes: int | None
    weights: str = ""
    bertfuse: str = bertfuse.__version__
    python: str = field(default_factory=platform.python_version)

    @property
    def types(self) -> str:
        """As in "float16 with int8 weights"."""
        return types_of(self.to_dict())

    @property
    def kinds(self) -> dict[str, int]:
        """How many layers of each kind the network has; our plugins' layers by their op."""
        return dict(Counter(layer.op or layer.kind for layer in self.layers).most_common())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def types_of(description: Mapping[str, Any]) -> str:
    """By what stands beside a plan: its precision ("" where nothing does), and quantised weights, if any."""
    precision, weights = description.get("precision", ""), description.get("weights")
    return f"{precision} with {weights} weights" if weights else precision


def description_path(plan: str | Path) -> Path:
    """The JSON file beside a plan."""
    return Path(f"{plan}.json")


def build_engine(
    model: str | Path,
    output: str | Path,
    *,
    backend: str | None = None,
    shapes: Sequence[str] = (),
    compute_capabilities: Sequence[str] = (),
    plugins: bool = True,
    tf32: bool = False,
    timing_cache: str | Path | None = None,
    workspace: int | None = None,
    expose: bool = False,
    save_onnx: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> EngineReport:
    """Builds an engine of `model` into `output`, with a JSON description beside it; both appear, or neither.

    Args:
        backend: "tensorrt", "rtx", or None for the first that is installed.
        shapes: see shapes.make_profile.
        compute_capabilities: "8.9" and so on, of the GPUs to build for; TensorRT for RTX only, and without a GPU, too.
        plugins: take our plugins for the fused ops; else the op bodies, and the engine needs no library.
        tf32: allow TF32 in float32 matrix products.
        timing_cache: a file that is read where it exists and written afterwards; TensorRT only.
        workspace: bytes that a layer may use; None leaves it to TensorRT.
        expose: the engine also puts out what every fused op gives, for comparing it tensor by tensor.
        save_onnx: also write the ONNX file that TensorRT was given, for trtexec: from 10 on without saying which
            inputs are constant, as trtexec's networks may convert them.

    Raises:
        RuntimeLibraryError: TensorRT or the plugin library is missing, too old or does not load.
        BertfuseError: options that cannot be used, an op without plugin, a GPU or a model that TensorRT does not take.
    """
    say = progress or (lambda step: None)
    chosen = load_backend(backend)
    wanted = targets(chosen, compute_capabilities)
    if timing_cache is not None and chosen.name == "rtx":
        raise BertfuseError("--timing-cache: TensorRT for RTX times nothing while building; leave the option out")
    model, output = Path(model), Path(output)
    given = [Path(file) for file in (output, description_path(output), save_onnx, timing_cache) if file is not None]
    for index, target in enumerate(given):
        check_target(target, [model, *given[:index]], onnx_file=save_onnx is not None and target == Path(save_onnx))
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        say(f"Preparing {model}")
        onnx_file = Path(scratch) / "model.onnx"
        prepared = prepare(model, onnx_file, plugins, _strongly_typed(chosen), **_parser(chosen))
        _check_types(chosen, model, prepared)
        longest = prepared.longest or longest_sequence(read_config(folder_of(model)))
        profile = make_profile(prepared.inputs, shapes, longest)
        if prepared.nodes:
            check_plugins_run(wanted)
        library = _load_plugins_for(chosen, prepared, model) if prepared.nodes else None
        say(f"Parsing with {chosen}")
        network = _parse(chosen, model, onnx_file)
        layers = _layers(network.network, prepared)
        _check_plugin_layers(chosen, model, prepared, layers)
        if expose:
            _mark_outputs(network.network, prepared.tensors)
        say("Building the engine")
        config = _config(chosen, network, profile, wanted, tf32, workspace, timing_cache)
        if chosen.is_older:
            _settle_types(chosen.trt, network.network, config, prepared)
        plan = network.builder.build_serialized_network(network.network, config)
        if plan is None:
            hint = "" if workspace is None else "; a larger --workspace may do"
            raise BertfuseError(f"{model}: {chosen}: {chosen.log.take('the engine could not be built')}{hint}")
        plan = bytes(plan)
        report = EngineReport(
            backend=chosen.name,
            version=chosen.version,
            model=str(model),
            plan=str(output),
            plan_bytes=len(plan),
            plan_sha256=hashlib.sha256(plan).hexdigest(),
            precision=prepared.precision,
            tf32=tf32,
            compute_capabilities=[f"{major}.{minor}" for major, minor in wanted] or list(PORTABLE),
            shapes={
                name: dict(zip(("min", "opt", "max"), map(list, bounds), strict=True))
                for name, bounds in profile.items()
            },
            inputs=_tensors(network.network.get_input, network.network.num_inputs),
            outputs=_tensors(network.network.get_output, network.network.num_outputs),
            plugins=_plugins(library, layers),
            fused=prepared.ops,
            task=prepared.task,
            layers=layers,
            workspace_bytes=workspace,
            weights=prepared.weights,
        )
        say(f"Writing {output}")
        if save_onnx is not None:
            prepare(model, save_onnx, plugins, **_parser(chosen))
        with replacing(output) as plan_file, replacing(description_path(output)) as description:
            plan_file.write_bytes(plan)
            description.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
        if timing_cache is not None:
            with replacing(timing_cache) as file:
                file.write_bytes(bytes(config.get_timing_cache().serialize()))
    return report


@dataclass(frozen=True)
class _Network:
    """What has to live as long as the network does."""

    builder: Any
    network: Any
    parser: Any


def _load_plugins_for(backend: Backend, prepared: Prepared, model: Path) -> Path:
    library = load_plugins(backend)
    missing = [op for op in prepared.ops if not has_creator(backend, op, NODE_MARKERS["plugin_version"], DOMAIN)]
    if missing:
        raise BertfuseError(
            f"{model}: {library} has no plugin for {', '.join(missing)}; build it again, or take --no-plugins"
        )
    return library


def _parser(backend: Backend) -> dict[str, bool]:
    return {"older_parser": backend.is_older, "layer_normalization": backend.knows_layer_normalization}


def _strongly_typed(backend: Backend) -> bool:
    """Whether its networks are, or can be; RTX has no others. Of 9, which has them too, that is not made use of."""
    flags = backend.trt.NetworkDefinitionCreationFlag
    return backend.name == "rtx" or (hasattr(flags, "STRONGLY_TYPED") and not backend.is_older)


def _check_types(backend: Backend, model: Path, prepared: Prepared) -> None:
    """Raises BertfuseError for an element type that this TensorRT lacks."""
    if prepared.precision == "bfloat16" and not hasattr(backend.trt.DataType, "BF16"):
        raise BertfuseError(f"{model}: is bfloat16, which {backend} lacks; fuse the model with --dtype fp16")


def _settle_types(trt: Any, network: Any, config: Any, prepared: Prepared) -> None:
    """Makes TensorRT 8 compute in the model's types, as strongly typed networks do: it would choose otherwise.

    The plugins say their type themselves (model.ELEMENT_TYPE). They take no handles of cuBLAS and cuDNN, so that an
    engine of plugins needs neither library.
    """
    floats = {TensorProto.FLOAT: trt.float32, TensorProto.FLOAT16: trt.float16}
    if hasattr(trt, "bfloat16"):
        floats[TensorProto.BFLOAT16] = trt.bfloat16
    used = {floats[kind] for kind in prepared.types.values() if kind in floats}
    if trt.float16 in used:
        config.set_flag(trt.BuilderFlag.FP16)
    if floats.get(TensorProto.BFLOAT16) in used:
        config.set_flag(trt.BuilderFlag.BF16)
    if used - {trt.float32}:
        # Not OBEY: a layer without an implementation in its type would fail the build.
        config.set_flag(trt.BuilderFlag.PREFER_PRECISION_CONSTRAINTS)
        for index in range(network.num_layers):
            layer = network.get_layer(index)
            kinds = [floats.get(prepared.types.get(layer.get_output(i).name, 0)) for i in range(layer.num_outputs)]
            if layer.type.name in _WITHOUT_PRECISION or None in kinds or len(set(kinds)) != 1:
                continue
            layer.precision = kinds[0]
            for number, kind in enumerate(kinds):
                layer.set_output_type(number, kind)
    if prepared.nodes:
        external = {getattr(trt.TacticSource, name) for name in ("CUBLAS", "CUBLAS_LT", "CUDNN")}
        config.set_tactic_sources(config.get_tactic_sources() & ~sum(1 << int(source) for source in external))


def _parse(backend: Backend, model: Path, file: Path) -> _Network:
    trt, log = backend.trt, backend.log
    log.take("")
    try:
        builder = trt.Builder(log)
    except TypeError as error:  # what pybind11 makes of a builder that could not be made
        reason = log.take("it needs a GPU to build on")
        raise BertfuseError(f"{backend}: {reason}; --backend rtx builds without a GPU") from error
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH) if backend.is_older else 0
    if backend.name == "tensorrt" and _strongly_typed(backend):
        flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(file)):
        error = parser.get_error(0) if parser.num_errors else None
        named = hasattr(error, "node_name") and error.node_name()  # not before 9
        where = f"node {error.node_name()!r} ({error.node_operator()}): " if named else ""
        reason = " ".join(error.desc().split()) if error else ""
        first = log.take(reason)
        raise BertfuseError(f"{model}: {where}{backend} does not take it: {reason or first}")
    return _Network(builder, network, parser)


def _layers(network: Any, prepared: Prepared) -> list[Layer]:
    layers = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        kind = layer.type.name
        layers.append(Layer(layer.name, kind, prepared.nodes.get(layer.name, "") if kind in PLUGIN_LAYERS else ""))
    return layers


def _check_plugin_layers(backend: Backend, model: Path, prepared: Prepared, layers: list[Layer]) -> None:
    made = {layer.name for layer in layers if layer.op}
    missed = [f"{name} ({op})" for name, op in prepared.nodes.items() if name not in made]
    if missed:
        more = f" and {len(missed) - 3} more" if len(missed) > 3 else ""
        raise BertfuseError(
            f"{model}: {backend} made no plugin layer of {', '.join(missed[:3])}{more}; update it, or take --no-plugins"
        )


def _mark_outputs(network: Any, names: Sequence[str]) -> None:
    present = {network.get_output(index).name for index in range(network.num_outputs)}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        for tensor in (layer.get_output(number) for number in range(layer.num_outputs)):
            if tensor.name in names and tensor.name not in present:
                network.mark_output(tensor)


def _config(
    backend: Backend,
    network: _Network,
    profile: Profile,
    capabilities: Sequence[tuple[int, int]],
    tf32: bool,
    workspace: int | None,
    timing_cache: str | Path | None,
) -> Any:
    trt = backend.trt
    config = network.builder.create_builder_config()
    if not tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if profile:
        made = network.builder.create_optimization_profile()
        for name, bounds in profile.items():
            made.set_shape(name, *bounds)
        config.add_optimization_profile(made)
    if workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, workspace)
    if backend.name == "rtx" and capabilities:
        config.num_compute_capabilities = len(capabilities)
        for index, (major, minor) in enumerate(capabilities):
            config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{major}{minor}"), index)
    if timing_cache is not None:
        file = Path(timing_cache)
        cache = config.create_timing_cache(file.read_bytes() if file.exists() else b"")
        if not config.set_timing_cache(cache, False):
            raise BertfuseError(f"{file}: {backend.log.take('not a timing cache of this TensorRT')}; remove it")
    return config


def _tensors(get: Callable[[int], Any], count: int) -> dict[str, dict[str, Any]]:
    tensors = [get(index) for index in range(count)]
    return {tensor.name: {"dtype": tensor.dtype.name.lower(), "shape": list(tensor.shape)} for tensor in tensors}


def _plugins(library: Path | None, layers: list[Layer]) -> dict[str, Any] | None:
    if library is None:
        return None
    counts = Counter(layer.op for layer in layers if layer.op)
    return {"library": str(library), "sha256": file_sha256(library), "layers": dict(counts)}


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
