"""`export_model`: checks, loads, exports, and puts the finished files in place."""

from __future__ import annotations

import copy
import gc
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfuse.errors import BertfuseError, ExportError, first_line
from bertfuse.model_folder.files import MODEL_FILE, ONNX_FOLDER, ORIGINAL_FILE, read_json
from bertfuse.model_folder.multi_vector import read_multi_vector
from bertfuse.model_folder.routes import ROUTES, Router, read_router
from bertfuse.model_folder.sentence_modules import (
    SPARSE_STATIC,
    STATIC,
    TABLES,
    first_module,
    module_list,
    read_modules,
)
from bertfuse.model_folder.sentence_settings import read_settings
from bertfuse.model_folder.sparse import read_sparse
from bertfuse.model_folder.tokenizer import open_tokenizer

from .exporters import OPSETS, check_opset, model_inputs, run_exporter, select_outputs
from .folder import STALE_MODELS, STALE_SETTINGS, check_apart, output_folder
from .load import load_model, load_tokenizer, require_packages, with_attention
from .quiet import beside_torch
from .routes import split_routes
from .saving import save
from .source import check_source, copy_files, local_folder
from .tasks import AUTO, LATE_TASK, SPARSE, Task, find_task, task_of_class, task_of_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTIONS = (AUTO, "sdpa", "eager")
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_ROOM = 1 << 28  # bytes of a model that may stay in memory beside what is made of it


def export_model(
    model: str | Path | PreTrainedModel,
    output_dir: str | Path,
    *,
    task: str = AUTO,
    opset: int | None = None,
    exporter: str = "dynamo",
    attention: str = AUTO,
    dtype: str = "fp32",
    allow_pickle: bool = False,
    static_shape: tuple[int, int] | None = None,
    original: bool = False,
    then: Callable[[Path], None] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Exports a Hugging Face encoder to `output_dir`/onnx/model.onnx, and copies the folder's other files.

    The folder is one that sentence-transformers (backend="onnx"), optimum's ORTModelFor… and pipelines take: every file
    of the source but its weights is copied byte for byte.

    Args:
        model: a local folder, a hub id, or a model in memory (left as it was); for task "sentence-similarity" a
            sentence-transformers folder or id, or a `bertfuse.export.sentence.SentenceEncoder`.
        output_dir: made where absent, not the model's own folder; files of the same names are replaced, once everything
            has been written. What an earlier model left there and would be taken for this one's goes: its ONNX files,
            and, unless this model is in memory, its tokenizer and modules.
        task: a key of `bertfuse.export.TASKS`, which decides the outputs; "auto" takes what modules.json and
            config.json (or the class of a model in memory) say, so that no head is left out.
        opset: ONNX opset; None takes the exporter's default (dynamo 20, torchscript 17).
        exporter: "dynamo" (torch.export) or "torchscript" (tracing).
        attention: "sdpa" or "eager", the attention implementation that is exported; "auto": sdpa where the model and
            the exporter have it.
        dtype: "fp32", "fp16" or "bf16" of weights and float outputs.
        static_shape: (batch, sequence) of a model that takes no other; None leaves both dynamic.
        allow_pickle: also read pytorch_model.bin, which can run code. Off: safetensors only.
        original: whether it is written as onnx/model.onnx.original, a name that leaves model.onnx to its fused form.
        then: called with the ONNX file before anything is at its place; what it writes beside it goes along, and where
            it raises nothing is left behind.
        progress: called with a line of text before each long step.

    Returns:
        The path of the ONNX file. Inputs are int64 [batch, sequence]: input_ids, attention_mask, and token_type_ids
        where the model tells segments apart; both axes are dynamic unless `static_shape` fixes them. Weights of 2 GB
        and more go to model.onnx.data beside it.

    Raises:
        ExportError: an option, a checkpoint or a folder that cannot be used, or a package of the extra "export" that is
            not installed; nothing is left behind.
    """
    if task != AUTO:
        find_task(task)
    _check_choice("exporter", exporter, OPSETS)
    require_packages("export", "torch", "transformers", "onnx_ir", *(["onnxscript"] if exporter == "dynamo" else []))
    _check_choice("attention", attention, ATTENTIONS)
    _check_choice("dtype", dtype, DTYPES)
    opset = check_opset(exporter, opset)
    if static_shape is not None and (len(static_shape) != 2 or min(static_shape) < 1):
        raise ExportError(f"static_shape {static_shape!r} is no (batch, sequence): give two numbers of 1 or more")
    # torch 2.13 casts the scores to float32 and not back (float16), or does not get that far (bfloat16).
    broken = exporter == "torchscript" and dtype != "fp32"
    if broken and attention == AUTO:
        attention = "eager"
    if broken and attention == "sdpa":
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
    folder = None
    if not in_memory:
        if Path(source).expanduser().exists():
            check_apart(Path(source).expanduser(), target)
        folder = local_folder(source, allow_pickle, say)
        router = read_router(folder, source) if task in (AUTO, "sentence-similarity", SPARSE.name) else None
        if router is not None:
            options = {"opset": opset, "exporter": exporter, "attention": attention, "dtype": dtype}
            options |= {"allow_pickle": allow_pickle, "static_shape": static_shape, "original": original}
            return _export_routes(router, folder, target, options | {"then": then, "progress": progress})
    if task == AUTO:
        spec = task_of_folder(folder, source) if folder is not None else task_of_class(type(model).__name__, source)
    else:
        spec = find_task(task)
    if folder is not None:
        _check_settings(folder, spec, source)
    stale = STALE_MODELS if in_memory else STALE_MODELS | STALE_SETTINGS
    name = Path(ONNX_FOLDER, ORIGINAL_FILE if original else MODEL_FILE)
    with output_folder(target, stale) as scratch:
        if folder is not None:
            say(f"Loading {source} for {spec.name}")
        with beside_torch():
            missing = []
            if folder is not None:
                encoder = spec.name == "feature-extraction" and task == AUTO
                if spec.name == "sentence-similarity" and first_module(folder).kind == STATIC:
                    from .sentence import static_encoder

                    model = static_encoder(folder, source)
                elif spec is SPARSE and first_module(folder).kind == SPARSE_STATIC:
                    from .sparse import sparse_static_encoder

                    model = sparse_static_encoder(read_sparse(folder, source))
                else:
                    model, missing = load_model(folder, spec, attention, allow_pickle, source, keep_heads=encoder)
            with _prepared(model, attention, dtype, own=not in_memory) as prepared:
                used = getattr(prepared.config, "_attn_implementation", None) or "none"
                inputs = model_inputs(prepared, static_shape)
                skip = {"pooler_output"} if any("pooler" in name for name in missing) else set()
                outputs = select_outputs(prepared, spec, inputs, skip)
                say(f"Exporting with {exporter}, opset {opset}, {used} attention, {dtype}")
                traced = scratch / "traced"
                traced.mkdir()
                exported = run_exporter(
                    prepared, spec, inputs, outputs, exporter, opset, traced, dynamic=static_shape is None
                )
                exported.metadata_props.update(_metadata(prepared, spec.name, exporter, used, dtype))
                say(f"Writing {name}")
                (scratch / name).parent.mkdir()
                save(exported, scratch / name)
                shutil.rmtree(traced)
                large = sum(weight.nbytes for weight in prepared.parameters()) > _ROOM
                if folder is None or not (folder / "config.json").is_file():
                    prepared.config.save_pretrained(scratch)
            if folder is not None:
                copy_files(folder, scratch, without=target)
                _add_tokenizer(folder, scratch)
            if then is not None and large:
                model = prepared = exported = None
                gc.collect()  # torch.export leaves the model in a cycle
        if then is not None:
            then(scratch / name)
    return target / name


def _export_routes(router: Router, folder: Path, target: Path, options: dict[str, Any]) -> Path:
    """Exports each route to a folder of its own below `target`/routes, and copies the rest of `folder` to `target`.

    The path of the default route's ONNX file, or the first one's.
    """
    parts: dict[str, Path] = {}
    with output_folder(target, STALE_MODELS | STALE_SETTINGS) as scratch, tempfile.TemporaryDirectory() as links:
        for route, part in split_routes(router, folder, Path(links)).items():
            made = export_model(part, scratch / ROUTES / route, **options)
            parts[route] = made.relative_to(scratch)
        copy_files(folder, scratch, without=target)
    return target / parts[router.route(None) or next(iter(parts))]


def _check_settings(folder: Path, task: Task, source: str) -> None:
    """Raises BertfuseError for settings of the folder that would make other results than its own library's."""
    read_settings(folder, source)
    if task is SPARSE:
        read_sparse(folder, source)
    if task is LATE_TASK:
        read_multi_vector(folder, source)
    if task.name == "sentence-similarity":
        if module_list(folder, source) is None:
            raise ExportError(
                f"{source}: has no modules.json, so it is not a sentence-transformers model; take --task"
                " feature-extraction"
            )
        try:
            read_modules(folder, source)
        except BertfuseError as error:
            raise ExportError(f"{str(error).rstrip('.')}; --task feature-extraction takes the encoder alone") from error
    if (first_module(folder).folder / "tokenizer.json").is_file():
        open_tokenizer(folder)


def _add_tokenizer(folder: Path, target: Path) -> None:
    """Writes tokenizer.json where the source has a tokenizer in older files only, or where its other files change what
    tokenizer.json says: `run` and others read no other.
    """
    if first_module(folder).kind in TABLES:
        return
    tokenizer = getattr(load_tokenizer(folder), "backend_tokenizer", None)
    if tokenizer is None:
        return
    there = read_json(folder / "tokenizer.json")
    if there and _tokenizes_alike(there, json.loads(tokenizer.to_str())):
        return
    try:
        tokenizer.save(str(target / "tokenizer.json"))
    except OSError:
        raise
    except Exception as error:  # the tokenizers library raises nothing narrower where it cannot write
        raise ExportError(f"{target.parent}: the tokenizer cannot be saved: {first_line(error)}") from error


def _tokenizes_alike(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two tokenizer.json say the same of texts without padding and truncation."""
    parts = ("normalizer", "pre_tokenizer", "post_processor", "added_tokens")
    if any(a.get(part) != b.get(part) for part in parts):
        return False
    first, second = (tokenizer.get("model") or {} for tokenizer in (a, b))
    return all(first.get(key) == second.get(key) for key in ("vocab", "unk_token", "unk_id"))


def _check_choice(what: str, value: str, choices: Any) -> None:
    if value not in choices:
        raise ExportError(f"{what} {value!r} is unknown: choose one of {', '.join(choices)}")


@contextmanager
def _prepared(model: Any, attention: str, dtype: str, own: bool) -> Iterator[PreTrainedModel]:
    """The model in inference mode with that attention and dtype; a model that is not our `own` is put back after."""
    import torch

    if not hasattr(model, "config") or not hasattr(model, "set_attn_implementation"):
        raise ExportError(
            f"{type(model).__name__} is not a transformers model: give a folder, a hub id or a PreTrainedModel"
        )
    target = getattr(torch, DTYPES[dtype])
    if not own and any(p.dtype != target for p in model.parameters()):
        model, own = copy.deepcopy(model), True
    training, before = model.training, getattr(model.config, "_attn_implementation", None)
    try:
        with_attention(model.set_attn_implementation, attention)
        used = getattr(model.config, "_attn_implementation", None)
        if attention != AUTO and used not in (attention, None):  # some models keep theirs, with a warning only
            raise ExportError(f"{type(model).__name__} has no {attention} attention: try --attention {used}")
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
    for name in (
        "model_type",
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "layer_norm_eps",
        "vocab_size",
    ):
        if getattr(model.config, name, None) is not None:
            values[name] = str(getattr(model.config, name))
    return {f"bertfuse.{name}": value for name, value in values.items()}
