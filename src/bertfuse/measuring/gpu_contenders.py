"""The benchmark's contenders on a GPU: inputs and outputs stay there, and a run may be a CUDA graph's replay."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS, fuse_file
from bertfuse.graph_rewrite.io import open_model
from bertfuse.graph_rewrite.quantization import is_quantized
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.model_folder.files import model_pair
from bertfuse.runtime.ragged_inputs import OFFSETS
from bertfuse.runtime.session import CPU, InferenceSession, ort_errors, providers_of

from .contenders import (
    PADDED,
    RANDOM_WEIGHTS,
    REMOVED,
    Contender,
    Feed,
    Fitting,
    attempt,
    encoder,
    float_type,
    is_large,
    optimized_model,
    weight_types,
)
from .cuda_graphs import capture

CUDA = "CUDAExecutionProvider"
DTYPES = ("fp32", "fp16")
_OUTPUTS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


@dataclass(frozen=True)
class GpuOptions:
    """How every contender runs; `tuning` is ours alone. `dtype` "fp32" or "fp16"; None: the fused file's."""

    dtype: str | None = None
    cuda_graph: bool = False
    tf32: bool = False
    tuning: str | None = None


def cuda_session(path: Path, library: str, options: GpuOptions, **changes: Any) -> InferenceSession:
    """A session on the CUDA provider. Raises BertfuseError where it would run on the CPU instead."""
    providers_of("cuda")
    settings = {"enable_cuda_graph": str(int(options.cuda_graph)), "use_tf32": str(int(options.tf32))}
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = 4
    for name, value in changes.items():
        setattr(session_options, name, value)
    ours = {"tuning": options.tuning, "tf32": options.tf32} if library == "always" else {}
    session = InferenceSession(
        path, [(CUDA, settings | {"device_id": "0"}), CPU], library=library, sess_options=session_options, **ours
    )
    if session.get_providers()[0] != CUDA:
        raise BertfuseError(
            f"{path}: ONNX Runtime's CUDA provider does not load here, so nothing would run on the GPU;"
            " see 'bertfuse doctor'; onnxruntime-gpu needs CUDA's and cuDNN's libraries on its path"
        )
    return session


class BoundRuns:
    """Runs of a session on tensors that stay on the GPU, one set for each size; each replays a graph of its own."""

    def __init__(self, session: onnxruntime.InferenceSession, name: str) -> None:
        self._session, self._name, self._fitting = session, name, Fitting(session)
        self._bindings: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def __call__(self, feed: Feed) -> Any:
        size = next(iter(feed.values())).shape
        with ort_errors(self._name):
            if size not in self._bindings:
                self._bindings[size] = self._bind(self._fitting(feed), len(self._bindings))
            binding, options = self._bindings[size]
            self._session.run_with_iobinding(binding, options)
        return binding

    def _bind(self, feed: Feed, number: int) -> tuple[Any, Any]:
        binding = self._session.io_binding()
        for value in self._session.get_inputs():
            array = onnxruntime.OrtValue.ortvalue_from_numpy(feed[value.name], "cuda", 0)
            binding.bind_ortvalue_input(value.name, array)
        for value in self._session.get_outputs():
            shape = output_shape(value, self._session.get_inputs(), feed)
            if None in shape or value.type not in _OUTPUTS:
                raise BertfuseError(
                    f"{self._name}: output {value.name!r} ({value.type}, {value.shape}) cannot be bound"
                )
            array = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, _OUTPUTS[value.type], "cuda", 0)
            binding.bind_ortvalue_output(value.name, array)
        options = onnxruntime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(number + 1))
        return binding, options


def output_shape(output: Any, inputs: Sequence[Any], feed: Feed) -> list[int | None]:
    """The shape that an output has for this feed; None where the model does not say."""
    sizes: dict[Any, int] = {}  # of the model's named axes
    for value in inputs:
        sizes |= zip(value.shape, feed[value.name].shape, strict=True)
    shape = [dim if isinstance(dim, int) else sizes.get(dim) for dim in output.shape]
    if OFFSETS in feed and shape[:1] == [None]:  # no row for each token, so one for each text
        shape[0] = len(feed[OFFSETS]) - 1
    return shape


def kernels_run(path: Path, feed: Feed, options: GpuOptions) -> dict[str, int]:
    """How often each of our ops ran as a CUDA kernel in one run of the fused model, from ONNX Runtime's profile.

    Raises BertfuseError unless every fused node did: a body of standard operators, or a CPU kernel, would be measured
    in its place.
    """
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as folder:
        prefix = str(Path(folder) / "profile")
        plain = GpuOptions(options.dtype, False, options.tf32, options.tuning)
        session = cuda_session(path, "always", plain, enable_profiling=True, profile_file_prefix=prefix)
        with ort_errors(str(path)):
            session.run(None, Fitting(session)(feed))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return check_profile(path, events)


def check_profile(path: Path, events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What `kernels_run` says of the profile of one run of the model at `path`."""
    wanted = Counter(node.op_type for node in open_model(path)[0].graph.node if node.domain == DOMAIN)
    if not wanted:
        raise BertfuseError(f"{path}: has no fused op, so there is nothing of ours to measure; see 'bertfuse explain'")
    ran: dict[str, Counter[str]] = {}
    for event in events:
        arguments = event.get("args") or {}
        if event.get("cat") == "Node" and arguments.get("op_name") in OPS:
            ran.setdefault(arguments.get("provider", "?"), Counter())[arguments["op_name"]] += 1
    on_gpu = ran.get(CUDA, Counter())
    missing = [f"{op} {on_gpu[op]} of {count}" for op, count in wanted.items() if on_gpu[op] < count]
    if missing:
        elsewhere = [
            f"{op} {count} on {name}" for name, ops in ran.items() if name != CUDA for op, count in ops.items()
        ]
        raise BertfuseError(
            f"{path}: not every fused op ran as our CUDA kernel ({', '.join(missing + elsewhere)}), so it is not"
            " measured; 'bertfuse doctor' says which GPU code the library holds"
        )
    return dict(on_gpu)


def in_dtype(source: Path, dtype: str, target: Path) -> Path:
    """The model in `dtype`: `source`, or `target` with it in float16. Raises BertfuseError for any other conversion."""
    found = float_type(source)
    if found == dtype:
        return source
    if (found, dtype) != ("fp32", "fp16"):
        raise BertfuseError(f"{source.name} is {found or 'without float weights'}, which is not converted to {dtype}")
    return half_precision(source, target)


def half_precision(source: Path, target: Path) -> Path:
    """The model in float16, inputs and outputs too, as ONNX Runtime's own tool converts it."""
    import onnx
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = OnnxModel(onnx.load(str(source)))
    model.convert_float_to_float16(keep_io_types=False)
    model.save_model_to_file(str(target), use_external_data_format=is_large(model.model))
    return target


def _session_contender(name: str, path: Path, library: str, options: GpuOptions, notes: str) -> Contender:
    session = cuda_session(path, library, options)
    return Contender(name, BoundRuns(session, str(path)), notes, details={"dtype": weight_types(path)})


def gpu_contenders(
    folder: Path, options: GpuOptions, feed: Feed, scratch: Path, say: Callable[[str], None], ragged: bool = False
) -> list[Contender]:
    """The original, ONNX Runtime's own fusion, the fused model and PyTorch, each on the GPU in one float type.

    With `ragged`, also the original fused here with padding kept and with padding removed. `feed` is one input to try
    the fused model on. Raises BertfuseError unless all its fused ops run as our kernels, and where the fused file is of
    a type that the others are not made in.
    """
    original, fused = model_pair(folder)
    if options.dtype is not None and is_quantized(open_model(fused)[0]):
        raise BertfuseError(f"{fused}: has 8-bit weights, and runs in the type that it has; leave --dtype out")
    if options.dtype is not None:
        say(f"Fusing {original} in {options.dtype}")
        fused = scratch / "fused.onnx"
        fuse_file(original, fused, dtype=options.dtype)
    dtype = float_type(fused)
    if dtype not in DTYPES:
        raise BertfuseError(
            f"{fused}: is {dtype or 'without float weights'}, which the others are not converted to;"
            f" give --dtype {' or '.join(DTYPES)}"
        )
    say("Checking with a profile that our kernels run")
    ran = kernels_run(fused, feed, options)
    metadata = {entry.key: entry.value for entry in open_model(original)[0].metadata_props}

    def plain(name: str) -> Contender:
        path = in_dtype(original, dtype, scratch / "original.onnx")
        notes = original.name if path == original else f"{original.name}, converted to {dtype}"
        return _session_contender(name, path, "never", options, notes)

    def optimized(name: str) -> Contender:
        path, notes, weights, counts = optimized_model(folder, metadata, scratch, use_gpu=True)
        path = in_dtype(path, dtype, scratch / "optimized.fp16.onnx")
        contender = _session_contender(name, path, "never", options, notes)
        contender.weights = weights
        contender.details["fused"] = counts
        return contender

    say("Loading the original model")
    made = [attempt("original ONNX", plain)]
    say("Running ONNX Runtime's own optimizer")
    made.append(attempt("ORT optimizer", optimized))
    made.append(_session_contender("fused, library", fused, "always", options, f"{fused.name}, CUDA kernels"))
    made[-1].details |= {"fused": ran, "library": True}
    if ragged:
        for padding, name in (("keep", PADDED), ("remove", REMOVED)):
            say(f"Fusing {original.name} with padding {padding}")
            path = scratch / f"padding-{padding}.onnx"
            make = partial(_fused_here, original, path, padding, feed, replace(options, dtype=dtype))
            made.append(attempt(f"{name}, library", make))
    say("Building the PyTorch model")
    made.append(attempt("PyTorch", lambda name: _pytorch(name, folder, metadata, replace(options, dtype=dtype), feed)))
    return made


def _fused_here(original: Path, path: Path, padding: str, feed: Feed, options: GpuOptions, name: str) -> Contender:
    reports = fuse_file(original, path, dtype=options.dtype, padding=padding).passes
    left = [reason for report in reports if report.changes_padding and not report.done for reason in report.left]
    if left:
        return Contender(name, absent="; ".join(left))
    counts = kernels_run(path, feed, options)
    notes = f"{original.name} fused here, padding {padding}, CUDA kernels"
    contender = _session_contender(name, path, "always", options, notes)
    contender.details |= {"fused": counts, "library": True}
    return contender


def _pytorch(name: str, folder: Path, metadata: Mapping[str, str], options: GpuOptions, feed: Feed) -> Contender:
    """Eager mode; as a CUDA graph where the model's code does not look at its tensors, which capturing forbids."""
    import torch

    if not torch.cuda.is_available():
        return Contender(name, absent="this PyTorch sees no GPU")
    model = encoder(folder, metadata).to("cuda", torch.float16 if options.dtype == "fp16" else torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    notes = f"torch {torch.__version__}, sdpa"
    made = Contender(name, notes=notes, details={"dtype": options.dtype}, weights=RANDOM_WEIGHTS)

    def runner(cuda_graph: bool) -> Callable[[Feed], None]:
        # With its inputs, which stay where they are: a graph goes on reading them there.
        ready: dict[tuple[int, ...], tuple[Callable[[], Any], dict[str, Any]]] = {}

        def run(feed: Feed) -> None:
            size = next(iter(feed.values())).shape
            with torch.inference_mode():
                if size not in ready:
                    tensors = {key: torch.from_numpy(array).to("cuda") for key, array in feed.items()}
                    call = partial(model, **tensors)
                    ready[size] = (capture([call]).replay if cuda_graph else call), tensors
                ready[size][0]()
                torch.cuda.synchronize()

        return run

    made.run = runner(options.cuda_graph)
    if options.cuda_graph:
        try:
            made.run(feed)
        except RuntimeError:
            made.run, made.notes = runner(False), made.notes + "; without a CUDA graph: it cannot be captured"
    return made
