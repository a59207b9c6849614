"""What a benchmark runs side by side: each contender is a callable on arrays, made once."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from bertfuse.errors import BertfuseError, RuntimeLibraryError
from bertfuse.graph_rewrite import fuse_file
from bertfuse.graph_rewrite.io import MAX_INLINE_BYTES, open_model
from bertfuse.graph_rewrite.precision import DTYPES
from bertfuse.graph_rewrite.spec import QUANTIZED_KEY
from bertfuse.model_folder.files import model_pair, read_config
from bertfuse.runtime.library import library_path
from bertfuse.runtime.ragged_inputs import OFFSETS, ragged
from bertfuse.runtime.session import InferenceSession, check_on, ort_errors, providers_of

Feed = Mapping[str, np.ndarray]
# The original fused with padding kept, and with padding removed: beginnings of contenders' names.
PADDED, REMOVED = "padded", "padding removed"
# Which weights a contender has.
OWN_WEIGHTS, RANDOM_WEIGHTS = "the model's own weights", "random weights, since the weights make no difference to time"


@dataclass
class Contender:
    """`run(feed)` computes the outputs. `notes` and `weights` say what it is; `absent` why it could not be made.

    `details` has its float type as "dtype".
    """

    name: str
    run: Callable[[Feed], Any] | None = None
    notes: str = ""
    absent: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    weights: str = OWN_WEIGHTS


def session_contender(
    name: str, path: Path, provider: str, threads: int | None, library: str, notes: str, ours: bool = False
) -> Contender:
    """An ONNX file in ONNX Runtime; `ours` says that it is to run as bertfuse.InferenceSession runs it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if threads:
        options.intra_op_num_threads = threads
    try:
        # Stock ONNX Runtime is measured as it comes: what our own session adds to it is not the peers' to have.
        stock: dict[str, Any] = {} if ours else {"disabled_optimizers": []}
        providers = providers_of(provider)
        if not ours and provider == "cuda":
            stock["provider_options"] = [{"use_tf32": 1}, {}]
        session = InferenceSession(path, providers, library=library, sess_options=options, **stock)
        check_on(session, providers, str(path))
    except RuntimeLibraryError as error:
        return Contender(name, absent=str(error))
    fitting = Fitting(session)

    def run(feed: Feed) -> list[np.ndarray]:
        taken = fitting(feed)
        with ort_errors(str(path)):
            return session.run(None, taken)

    return Contender(name, run, notes, details={"library": session.uses_library, "dtype": weight_types(path)})


class Fitting:
    """Of padded arrays [batch, sequence] what a session takes; of a ragged model's, real tokens one after the other.

    These are laid out once for each feed, not in the time that is measured: a server gets its tokens so.
    """

    def __init__(self, session: Any) -> None:
        self._names = [value.name for value in session.get_inputs()]
        self._given: Feed | None = None
        self._taken: dict[str, np.ndarray] = {}

    def __call__(self, feed: Feed) -> dict[str, np.ndarray]:
        if feed is not self._given:
            made = ragged(feed) if OFFSETS in self._names else feed
            self._given, self._taken = feed, {name: made[name] for name in self._names if name in made}
        return self._taken


def attempt(name: str, make: Callable[[str], Contender]) -> Contender:
    """A peer, or why there is none: tools that convert, fuse and load models fail in ways of their own."""
    try:
        return make(name)
    except BertfuseError as error:
        return Contender(name, absent=str(error))
    except Exception as error:
        return Contender(name, absent=" ".join(f"{type(error).__name__}: {error}".split()))


def fused_contenders(path: Path, provider: str, threads: int | None) -> list[Contender]:
    """The fused file through its op bodies and through the library."""
    made = []
    for name, library in (("fused, op bodies", "never"), ("fused, library", "always")):
        try:
            if library == "always":
                library_path("onnxruntime")
            notes = f"{path.name}, library {library}"
            made.append(session_contender(name, path, provider, threads, library, notes, ours=True))
        except BertfuseError as error:
            made.append(Contender(name, absent=str(error)))
    return made


def padding_contenders(
    original: Path, threads: int | None, scratch: Path, say: Callable[[str], None]
) -> list[Contender]:
    """The original fused with padding kept and with padding removed, each through op bodies and through the library."""
    made = []
    for padding, name in (("keep", PADDED), ("remove", REMOVED)):
        say(f"Fusing {original.name} with padding {padding}")
        path = scratch / f"padding-{padding}.onnx"
        report = next((r for r in fuse_file(original, path, padding=padding).passes if r.changes_padding), None)
        if report is not None and not report.done:
            made.append(Contender(name, absent="; ".join(report.left)))
            continue
        for way, library in (("op bodies", "never"), ("library", "always")):
            notes = f"{original.name} fused here, padding {padding}"

            def make(label: str, path: Path = path, library: str = library, notes: str = notes) -> Contender:
                return session_contender(label, path, "cpu", threads, library, notes, ours=True)

            made.append(attempt(f"{name}, {way}", make))
    return made


def encoder(folder: Path, metadata: Mapping[str, str], attention: str = "auto") -> Any:
    """The PyTorch model of the folder's config.json and task, float32, with random weights: enough to measure time.

    Raises BertfuseError where that would not be the whole model, and ExportError where torch is not installed.
    """
    from bertfuse.export.load import require_packages, with_attention
    from bertfuse.export.quiet import quiet
    from bertfuse.export.tasks import find_task

    require_packages("PyTorch's model", "torch", "transformers")
    import torch
    import transformers

    if not read_config(folder):
        raise BertfuseError(f"{folder}: has no config.json, so the PyTorch model is unknown")
    task = find_task(metadata.get("bertfuse.task", "feature-extraction"))
    if task.name == "sentence-similarity" and not (folder / "modules.json").is_file():
        raise BertfuseError(f"{folder}: has no modules.json, so the pooling after PyTorch's model is unknown")
    with quiet():
        torch.manual_seed(0)
        config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        kind = getattr(transformers, task.auto_class)
        model = with_attention(lambda name: kind.from_config(config, attn_implementation=name), attention)
        if task.name == "sentence-similarity":
            from bertfuse.export.sentence import sentence_encoder

            model = sentence_encoder(model, folder)
    return model.float().eval()


def pytorch_contender(folder: Path, metadata: Mapping[str, str], provider: str, threads: int | None) -> Contender:
    """PyTorch, eager mode with scaled_dot_product_attention."""
    try:
        model = encoder(folder, metadata)
        import torch
    except Exception as error:  # whatever transformers raises for a config that it does not know
        return Contender("PyTorch", absent=" ".join(str(error).split()))
    device = "cuda" if provider == "cuda" else "cpu"
    model.to(device)

    def run(feed: Feed) -> Any:
        if threads:
            torch.set_num_threads(threads)
        with torch.inference_mode():
            result = model(**{name: torch.from_numpy(array).to(device) for name, array in feed.items()})
            if device == "cuda":
                torch.cuda.synchronize()
        return result

    return Contender(
        "PyTorch", run, f"torch {torch.__version__}, sdpa", details={"dtype": "fp32"}, weights=RANDOM_WEIGHTS
    )


def optimizer_contender(
    folder: Path, metadata: Mapping[str, str], provider: str, threads: int | None, scratch: Path
) -> Contender:
    """The result of onnxruntime.transformers.optimizer, at its best."""
    name = "ORT optimizer"
    try:
        target, notes, weights, counts = optimized_model(folder, metadata, scratch)
        made = session_contender(name, target, provider, threads, "never", notes)
        made.weights = weights
    except BertfuseError as error:
        return Contender(name, absent=str(error))
    except Exception as error:  # the optimizer asserts and indexes its way through graphs that it does not know
        return Contender(name, absent=f"{type(error).__name__}: {' '.join(str(error).split())}")
    made.details["fused"] = counts
    return made


def optimized_model(
    folder: Path, metadata: Mapping[str, str], scratch: Path, use_gpu: bool = False
) -> tuple[Path, str, str, dict[str, int]]:
    """What onnxruntime.transformers.optimizer makes of the folder's model: the file, what it is of, with which weights,
    and its fusions.

    It fuses attention only in a torchscript export with eager attention at opset 17. Where it cannot fuse the folder's
    own original, it gets such an export of the same architecture, with random weights: enough to measure time.
    """
    config = read_config(folder)
    heads, hidden = int(config.get("num_attention_heads") or 0), int(config.get("hidden_size") or 0)
    target = scratch / "optimized.onnx"
    original = model_pair(folder)[0]
    counts = _optimize(original, target, heads, hidden, use_gpu)
    if _fused_attention(counts):
        return target, f"its result for {original.name}", OWN_WEIGHTS, counts
    from bertfuse.export import export_model

    model = encoder(folder, metadata, "eager")
    task = metadata.get("bertfuse.task", "feature-extraction")
    # In a folder of its own: an export takes away the fused file that it finds beside itself.
    path = export_model(model, scratch / "export", task=task, exporter="torchscript", attention="eager", opset=17)
    counts = _optimize(path, target, heads, hidden, use_gpu)
    notes = f"for a torchscript, eager-attention export: it fuses no attention in {original.name}"
    return target, notes, RANDOM_WEIGHTS, counts


def _fused_attention(counts: Mapping[str, int]) -> bool:
    return bool(counts.get("Attention") or counts.get("MultiHeadAttention"))


def _optimize(source: Path, target: Path, heads: int, hidden: int, use_gpu: bool) -> dict[str, int]:
    import logging

    from onnxruntime.transformers import optimizer

    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it could not infer
            model = optimizer.optimize_model(
                str(source), "bert", num_heads=heads, hidden_size=hidden, opt_level=0, use_gpu=use_gpu
            )
        counts = {name: int(count) for name, count in model.get_fused_operator_statistics().items() if count}
        model.save_model_to_file(str(target), use_external_data_format=is_large(model.model))
    finally:
        logging.disable(before)
    return counts


def float_type(path: Path) -> str:
    """The float type that most of an ONNX file's weights have, as `--dtype` names it; "" where none has any."""
    names = {number: name for name, number in DTYPES.items()} | {onnx.TensorProto.DOUBLE: "fp64"}
    sizes: Counter[str] = Counter()
    for tensor in open_model(path)[0].graph.initializer:
        if tensor.data_type in names:
            sizes[names[tensor.data_type]] += math.prod(tensor.dims)
    return sizes.most_common(1)[0][0] if sizes else ""


def weight_types(path: Path) -> str:
    """`float_type`, and that of the quantised weights of a model of ours, as in "fp32 with int8 weights"."""
    metadata = {entry.key: entry.value for entry in open_model(path)[0].metadata_props}
    quantized = metadata.get(QUANTIZED_KEY, "")
    return f"{float_type(path)} with {quantized} weights" if quantized else float_type(path)


def is_large(model: Any) -> bool:
    """Whether an onnx.ModelProto's weights need a file of their own."""
    return sum(tensor.ByteSize() for tensor in model.graph.initializer) > MAX_INLINE_BYTES


def contenders(folder: Path, provider: str, threads: int | None, say: Callable[[str], None]) -> list[Contender]:
    """All of them, in the order of the table; those that cannot be made say why. The first is the original ONNX."""
    path, fused = model_pair(folder)
    say("Loading the original model and the fused one")
    metadata = {entry.key: entry.value for entry in open_model(path)[0].metadata_props}

    def original(name: str) -> Contender:
        return session_contender(name, path, provider, threads, "never", path.name)

    made = [attempt("original ONNX", original)]
    ours = fused_contenders(fused, provider, threads)
    with tempfile.TemporaryDirectory(prefix="bertfuse-") as scratch:
        say("Running ONNX Runtime's own optimizer")
        made.append(optimizer_contender(folder, metadata, provider, threads, Path(scratch)))
    made += ours
    say("Building the PyTorch model")
    made.append(pytorch_contender(folder, metadata, provider, threads))
    return made
