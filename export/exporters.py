"""The two exporters of PyTorch behind one call."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertfuse.errors import ExportError, first_line
from bertfuse.model_folder.files import longest_sequence

from .shortcuts import shortcuts
from .tasks import INPUTS, PIXELS, Task
from .tracing import masks_by_broadcasting

if TYPE_CHECKING:
    import onnx_ir
    import torch
    from transformers import PreTrainedModel

# exporter: (default opset, oldest, newest). LayerNormalization exists from 17 on, and Gelu from 20 on.
OPSETS = {"dynamo": (20, 18, 23), "torchscript": (17, 14, 20)}

# Neither size may be 1 (it would be taken for a constant), and no size may be equal to another one.
_BATCH, _SEQUENCE, _IMAGES = 2, 7, 3


def check_opset(exporter: str, opset: int | None) -> int:
    """The opset to export at; ExportError where the exporter cannot write it."""
    default, oldest, newest = OPSETS[exporter]
    if opset is None:
        return default
    if not oldest <= opset <= newest:
        raise ExportError(
            f"opset {opset}: the {exporter} exporter writes opsets {oldest} to {newest} (default {default})"
        )
    return opset


def model_inputs(model: PreTrainedModel, shape: tuple[int, int] | None = None) -> dict[str, torch.Tensor]:
    """Example inputs for those of INPUTS that the model takes: int64 of `shape` (by default of no special one), and
    images as many as its first number.
    """
    import torch

    parameters = inspect.signature(model.forward).parameters
    names = [name for name in INPUTS if name in parameters]
    config = getattr(model.config, "text_config", model.config)
    if "token_type_ids" in names and getattr(config, "type_vocab_size", 0) < 2:
        names.remove("token_type_ids")
    pixels = {PIXELS: _images(model, shape[0] if shape else _IMAGES)} if PIXELS in names else {}
    if "input_ids" not in names:
        if not pixels:
            raise ExportError(
                f"{type(model).__name__} takes neither input_ids nor {PIXELS}: no encoder of texts or images"
            )
        return pixels
    longest = longest_sequence(config.to_dict()) or max(_SEQUENCE, *(shape or (0,)))
    shape = shape or (_BATCH, min(_SEQUENCE, longest))
    if shape[1] > longest:
        raise ExportError(f"a sequence of {shape[1]} is longer than {type(model).__name__}'s positions ({longest})")
    low = (getattr(config, "pad_token_id", None) or 0) + 1
    ids = torch.arange(shape[0] * shape[1]).reshape(shape) + low
    tensors = pixels | {
        "input_ids": ids % config.vocab_size,
        "attention_mask": torch.ones(shape, dtype=torch.int64),
        "token_type_ids": torch.zeros(shape, dtype=torch.int64),
    }
    tensors["attention_mask"][-1, 1:][-2:] = 0
    return {name: tensors[name] for name in names}


def _images(model: PreTrainedModel, count: int) -> torch.Tensor:
    """float32 [count, channels, height, width] of the size that the model is made for."""
    import torch

    config = getattr(model.config, "vision_config", model.config)
    size, channels = getattr(config, "image_size", None), getattr(config, "num_channels", 3)
    sizes = [size, size] if isinstance(size, int) else list(size or ())
    if len(sizes) != 2:
        raise ExportError(f"{type(model).__name__}: its configuration has no image_size: images of which size it takes")
    return torch.linspace(-1, 1, count * channels * sizes[0] * sizes[1]).reshape(count, channels, *sizes)


def select_outputs(model: PreTrainedModel, task: Task, inputs: dict[str, torch.Tensor], skip: set[str]) -> list[str]:
    """The task's outputs that the model has, in the task's order; ExportError where one that it must have is absent."""
    import torch

    try:
        with torch.no_grad():
            present = model(**inputs)
    except Exception as error:
        what = "images" if list(inputs) == [PIXELS] else "text inputs"
        raise ExportError(f"{type(model).__name__}: does not run on {what}: {first_line(error)}") from error
    names = []
    for name in task.outputs:
        if name not in skip and present.get(name) is not None:
            names.append(name)
        elif name not in task.optional:
            raise ExportError(
                f"{type(model).__name__} has outputs {', '.join(present.keys())}, not {name}, which task {task.name}"
                " needs; choose the task that fits the model (--task)"
            )
    return names


def _wrapper(model: PreTrainedModel, names: list[str], outputs: list[str]) -> torch.nn.Module:
    import torch

    # A signature of exactly the inputs: both exporters take positional arguments by it.
    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            result = self.model(**dict(zip(names, tensors, strict=True)))
            return tuple(result[name] for name in outputs)

    return Encoder().eval()


def run_exporter(
    model: PreTrainedModel,
    task: Task,
    inputs: dict[str, torch.Tensor],
    outputs: list[str],
    exporter: str,
    opset: int,
    scratch: Path,
    dynamic: bool = True,
) -> onnx_ir.Model:
    """Exports `model`, with dynamic batch and sequence or those of `inputs`; `scratch` is an empty folder for files."""
    import onnx_ir
    import torch

    names = list(inputs)
    axes = [_axes(name, list(inputs)) for name in names]
    common: dict[str, Any] = {"input_names": names, "output_names": outputs, "opset_version": opset, "verbose": False}
    module = _wrapper(model, names, outputs)
    try:
        with torch.no_grad():
            if exporter == "dynamo":
                options = {"dynamic_shapes": {"tensors": tuple(axes)}} if dynamic else {}
                exported = _by_dynamo(module, tuple(inputs.values()), options | common)
            else:
                file = scratch / "traced.onnx"
                named = dict(zip(names, axes, strict=True)) | {name: task.outputs[name] for name in outputs}
                if names == [PIXELS]:  # as many rows as there are patches
                    named = {name: {0: given[0]} for name, given in named.items()}
                with masks_by_broadcasting() as compared:
                    if compared and PIXELS not in names:
                        module(*inputs.values())
                    torch.onnx.export(
                        module,
                        tuple(inputs.values()),
                        str(file),
                        dynamic_axes=named if dynamic else None,
                        dynamo=False,
                        **common,
                    )
                exported = onnx_ir.load(file)
    except OSError:
        raise
    except Exception as error:
        other, reason = "torchscript" if exporter == "dynamo" else "dynamo", first_line(_root(error))
        raise ExportError(
            f"{type(model).__name__}: the {exporter} exporter failed: {reason}; try --exporter {other}"
        ) from error
    if names == [PIXELS]:
        _shape_outputs(exported, module, inputs)
    _check_exported(exported, exporter, opset, dynamic)
    _clean(exported)
    return exported


def _shape_outputs(exported: onnx_ir.Model, module: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Gives outputs their sizes, which tracing leaves open: of images of one size all but the first are constants."""
    import onnx_ir
    import torch

    with torch.no_grad():
        found = module(*inputs.values())
    for value, tensor in zip(exported.graph.outputs, found, strict=True):
        if value.shape is not None:
            value.shape = onnx_ir.Shape([value.shape[0], *tensor.shape[1:]])


def _axes(name: str, names: list[str]) -> dict[int, str]:
    """The dynamic axes of an input: where a model takes texts and images, as many of each as there are."""
    images, texts = ("image_batch", "text_batch") if PIXELS in names and len(names) > 1 else ("batch", "batch")
    return {0: images} if name == PIXELS else {0: texts, 1: "sequence"}


def _by_dynamo(module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], options: dict[str, Any]) -> onnx_ir.Model:
    import torch

    with shortcuts() as shortcut:
        try:
            return torch.onnx.export(module, tensors, dynamo=True, **options).model
        except Exception:
            if not (shortcut.taken or shortcut.others):
                raise
    return torch.onnx.export(module, tensors, dynamo=True, **options).model


def _root(error: BaseException) -> BaseException:
    """What torch.export wraps in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _check_exported(exported: onnx_ir.Model, exporter: str, opset: int, dynamic: bool) -> None:
    for value in exported.graph.inputs if dynamic else ():
        dynamic_axes = (value.shape or ())[: 1 if value.name == PIXELS else 2]
        fixed = [int(size) for size in dynamic_axes if isinstance(size, int)]
        if fixed:
            raise ExportError(f"input {value.name}: the {exporter} exporter made the size {fixed[0]} a constant")
    # The dynamo exporter keeps its own opset, with a warning only, where it cannot convert.
    written = exported.opset_imports.get("")
    if written != opset:
        raise ExportError(f"opset {opset}: the {exporter} exporter wrote opset {written} instead; leave --opset out")


def _clean(exported: onnx_ir.Model) -> None:
    """Gives initialisers the names that parameters have in PyTorch, and drops stack traces of this machine."""
    values = exported.graph.initializers
    for name in list(values):
        if name.startswith("model.") and name.removeprefix("model.") not in values:
            values[name].name = name.removeprefix("model.")
    for node in exported.graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    exported.graph.metadata_props.clear()
