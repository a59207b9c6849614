"""`export_model`: checks, loads, exports, and puts the finished files in place."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfuse.errors import ExportError
from bertfuse.graph_rewrite.io import MAX_INLINE_BYTES
from bertfuse.runtime.inputs import FUSED_FILE, MODEL_FILE

from .exporters import OPSETS, check_opset, model_inputs, run_exporter, select_outputs
from .load import TOKENIZER_FILES, check_source, first_line, load_model, load_tokenizer, require_packages
from .quiet import quiet
from .tasks import find_task

if TYPE_CHECKING:
    import onnx_ir
    from transformers import PreTrainedModel

ATTENTIONS = ("sdpa", "eager")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def export_model(
    model: str | Path | PreTrainedModel,
    output_dir: str | Path,
    *,
    task: str = "feature-extraction",
    opset: int | None = None,
    exporter: str = "dynamo",
    attention: str = "sdpa",
    dtype: str = "fp32",
    allow_pickle: bool = False,
    static_shape: tuple[int, int] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Exports a Hugging Face encoder to `output_dir`/model.onnx, with config and tokenizer beside it.

    Args:
        model: a local folder, a hub id, or a model in memory (left as it was); for task "sentence-similarity" a
            sentence-transformers folder or id, or a `bertfuse.export.sentence.SentenceEncoder`.
        output_dir: made where absent; files of the same names are replaced, once everything has been written. What an
            earlier model left there and `run` would take for this one's goes: model.fused.onnx, external data, and the
            tokenizer, unless this model is in memory or comes from that folder.
        task: a key of `bertfuse.export.TASKS`; it decides the outputs.
        opset: ONNX opset; None takes the exporter's default (dynamo 20, torchscript 17).
        exporter: "dynamo" (torch.export) or "torchscript" (tracing).
        attention: "sdpa" or "eager", the attention implementation that is exported.
        dtype: "fp32", "fp16" or "bf16" of weights and float outputs.
        static_shape: (batch, sequence) of a model that takes no other; None leaves both dynamic.
        allow_pickle: also read pytorch_model.bin, which can run code. Off: safetensors only.
        progress: called with a line of text before each long step.

    Returns:
        The path of model.onnx. Inputs are int64 [batch, sequence]: input_ids, attention_mask, and token_type_ids where
        the model tells segments apart; both axes are dynamic unless `static_shape` fixes them. Weights of 2 GB and more
        go to model.onnx.data.

    Raises:
        ExportError: an option, a checkpoint or a folder that does not do, or a package of the extra "export" that is
            not installed; nothing is left behind.
    """
    spec = find_task(task)
    _check_choice("exporter", exporter, OPSETS)
    require_packages("export", "torch", "transformers", "onnx_ir", *(["onnxscript"] if exporter == "dynamo" else []))
    _check_choice("attention", attention, ATTENTIONS)
    _check_choice("dtype", dtype, DTYPES)
    opset = check_opset(exporter, opset)
    if static_shape is not None and (len(static_shape) != 2 or min(static_shape) < 1):
        raise ExportError(f"static_shape {static_shape!r} is no (batch, sequence): give two numbers of 1 or more")
    if exporter == "torchscript" and attention == "sdpa" and dtype != "fp32":
        # torch 2.13 casts the scores to float32 and not back (float16), or does not get that far (bfloat16).
        raise ExportError(
            f"dtype {dtype}: the torchscript exporter writes sdpa attention in fp32 only;"
            " take --attention eager or --exporter dynamo"
        )
    say = progress or (lambda line: None)
    in_memory = not isinstance(model, str | os.PathLike)
    source = type(model).__name__ if in_memory else str(model)
    if not in_memory:
        check_source(source, allow_pickle)
    target = Path(output_dir).expanduser()
    stale = {FUSED_FILE, f"{FUSED_FILE}.data", f"{MODEL_FILE}.data"}
    if not in_memory and Path(source).expanduser().resolve() != target.resolve():
        stale |= {*TOKENIZER_FILES, "tokenizer_config.json"}
    with _output_folder(target, stale) as folder, quiet():
        if in_memory:
            tokenizer, missing = None, []
        else:
            say(f"Loading {source}")
            model, missing = load_model(source, spec, attention, allow_pickle)
            tokenizer = load_tokenizer(source)
        with _prepared(model, attention, dtype, own=not in_memory) as prepared:
            inputs = model_inputs(prepared, static_shape)
            skip = {"pooler_output"} if any("pooler" in name for name in missing) else set()
            outputs = select_outputs(prepared, spec, inputs, skip)
            say(f"Exporting with {exporter}, opset {opset}, {attention} attention, {dtype}")
            scratch = folder / "scratch"
            scratch.mkdir()
            exported = run_exporter(
                prepared, spec, inputs, outputs, exporter, opset, scratch, dynamic=static_shape is None
            )
            exported.metadata_props.update(_metadata(prepared, task, exporter, attention, dtype))
            say(f"Writing {MODEL_FILE}")
            _save(exported, folder / MODEL_FILE)
            shutil.rmtree(scratch)
            prepared.config.save_pretrained(folder)
        if tokenizer is not None:
            _save_tokenizer(tokenizer, folder)
    return target / MODEL_FILE


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # the tokenizers library raises nothing narrower where it cannot write
        raise ExportError(f"{folder.parent}: the tokenizer cannot be saved: {first_line(error)}") from error


def _check_choice(what: str, value: str, choices: Any) -> None:
    if value not in choices:
        raise ExportError(f"{what} {value!r} is unknown: choose one of {', '.join(choices)}")


@contextmanager
def _output_folder(target: Path, stale: set[str]) -> Iterator[Path]:
    """A scratch folder inside `target` whose files move to `target` at the end, and vanish on any failure.

    Files of `target` named in `stale` go as the new ones come.
    """
    made: list[Path] = []
    scratch: Path | None = None
    try:
        if target.exists() and not target.is_dir():
            raise ExportError(f"{target}: is a file; give a folder to write to")
        made = [path for path in (target, *target.parents) if not path.exists()]
        target.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".bertfuse-", dir=target))
        yield scratch
        new = sorted(scratch.iterdir(), key=lambda file: file.name == MODEL_FILE)
        for name in stale.difference(file.name for file in new):
            if (target / name).is_file():
                (target / name).unlink()
        # The model goes last: whoever finds it finds the rest, too.
        for file in new:
            os.replace(file, target / file.name)
        made = []
    except OSError as error:
        raise ExportError(f"{target}: cannot write the model: {error.strerror or error}; nothing was kept") from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


@contextmanager
def _prepared(model: Any, attention: str, dtype: str, own: bool) -> Iterator[PreTrainedModel]:
    """The model in inference mode with that attention and dtype; a model that is not our `own` is put back after."""
    import torch

    if not hasattr(model, "config") or not hasattr(model, "set_attn_implementation"):
        raise ExportError(
            f"{type(model).__name__} is no transformers model: give a folder, a hub id or a PreTrainedModel"
        )
    target = getattr(torch, DTYPES[dtype])
    if not own and any(p.dtype != target for p in model.parameters()):
        model, own = copy.deepcopy(model), True
    training, before = model.training, model.config._attn_implementation
    try:
        model.set_attn_implementation(attention)
        yield model.eval().to(target)
    except ValueError as error:
        if attention in str(error) and "attention" in str(error).lower():
            raise ExportError(f"{type(model).__name__} has no {attention} attention: try --attention eager") from error
        raise
    finally:
        if not own:
            model.set_attn_implementation(before)
            model.train(training)


def _metadata(model: PreTrainedModel, task: str, exporter: str, attention: str, dtype: str) -> dict[str, str]:
    import torch
    import transformers

    from bertfuse import __version__

    values = {
        "task": task,
        "exporter": exporter,
        "attention": attention,
        "dtype": dtype,
        "architecture": type(model).__name__,
        "bertfuse_version": __version__,
        "torch_version": torch.__version__,
        "transformers_version": transformers.__version__,
    }
    for name in ("model_type", "num_hidden_layers", "num_attention_heads", "hidden_size", "layer_norm_eps"):
        if getattr(model.config, name, None) is not None:
            values[name] = str(getattr(model.config, name))
    return {f"bertfuse.{name}": value for name, value in values.items()}


def _save(exported: onnx_ir.Model, path: Path) -> None:
    import onnx
    import onnx_ir

    size = sum(
        value.const_value.nbytes for value in exported.graph.initializers.values() if value.const_value is not None
    )
    onnx_ir.save(exported, path, external_data=f"{path.name}.data" if size > MAX_INLINE_BYTES else None)
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # ValidationError or InferenceError, which share no base
        raise ExportError(f"the exporter wrote an invalid model: {first_line(error)}; try another exporter") from error
