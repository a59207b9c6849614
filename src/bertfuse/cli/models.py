"""Commands that write models: export, fuse, optimize."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .fusion import fusion_report, is_complete, print_fusion
from .options import Json, Overwrite, check_new, grid
from .output import Steps, command, print_json, stderr, stdout

if TYPE_CHECKING:
    from bertfuse.graph_rewrite import FusionResult
    from bertfuse.optimization import Optimized


Source = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, or local folder with config and safetensors.")]
Folder = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write to.")]
Task = Annotated[
    str,
    typer.Option(
        metavar="TASK",
        help="auto: as modules.json and config.json say. Or feature-extraction (the encoder alone), fill-mask, "
        "text-classification, token-classification, question-answering, sentence-similarity (with its pooling), "
        "image-classification, zero-shot-image-classification (both towers in one file).",
    ),
]
Opset = Annotated[int | None, typer.Option(help="ONNX opset. \\[default: 20 for dynamo, 17 for torchscript]")]
Exporter = Annotated[str, typer.Option(metavar="dynamo|torchscript", help="torch.export or tracing.")]
Attention = Annotated[
    str, typer.Option(metavar="auto|sdpa|eager", help="Attention to export. auto: sdpa where the model has it.")
]
StaticShape = Annotated[str | None, typer.Option(metavar="BxS", help="Fix batch x sequence. \\[default: any size]")]
Dtype = Annotated[str, typer.Option(metavar="fp32|fp16|bf16", help="Type of weights and float tensors.")]
KeptDtype = Annotated[
    str | None, typer.Option(metavar="fp32|fp16|bf16", help="Convert weights and float tensors. \\[default: as is]")
]
Pickle = Annotated[bool, typer.Option("--allow-pickle", help="Also read pickle checkpoints, which can run code.")]
Level = Annotated[
    str, typer.Option(metavar="basic|full", help="basic leaves attention in standard operators; full fuses it too.")
]
NoFunctions = Annotated[
    bool,
    typer.Option(
        "--no-functions", help="Leave out the ops' definitions in standard operators: the file then needs our library."
    ),
]
Page = Annotated[bool, typer.Option("--report", help="Also write the page of 'bertfuse report', beside the model.")]
Padding = Annotated[
    str,
    typer.Option(
        metavar="keep|remove|ragged",
        help="remove: compute real tokens only; inputs and outputs stay as they are. ragged: the model takes tokens "
        "without padding, one text after the other, and cu_seqlens.",
    ),
]
OutputRows = Annotated[
    bool,
    typer.Option(
        "--output-rows",
        help="Compute only those rows of the last layer that an output needs; always on unless padding is kept.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Exit 1 when something expected was not fused.")]


def export(
    model: Source,
    output: Folder,
    task: Task = "auto",
    opset: Opset = None,
    exporter: Exporter = "dynamo",
    attention: Attention = "auto",
    static_shape: StaticShape = None,
    dtype: Dtype = "fp32",
    allow_pickle: Pickle = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Export a Hugging Face model to DIR/onnx/model.onnx, and copy its other files (but weights) to DIR.

    [bold]Examples[/]

      bertfuse export bert-base-uncased -o bert

      bertfuse export ./my-classifier -o clf --dtype fp16
    """
    from bertfuse.export import export_model

    check_new(output, overwrite, model)
    with Steps(as_json) as steps:
        path = export_model(
            model,
            output,
            task=task,
            opset=opset,
            exporter=exporter,
            attention=attention,
            dtype=dtype,
            static_shape=_one_size(static_shape),
            allow_pickle=allow_pickle,
            progress=steps,
        )
    if as_json:
        about = metadata(path)
        said = {name: about.get(f"bertfuse.{name}", "") for name in ("task", "exporter", "attention")}
        print_json({"model": str(path), **said})
    else:
        stdout().print(f"Wrote {path}", markup=False)


def fuse(
    model: Annotated[Path, typer.Argument(metavar="IN", help="Model to fuse: an .onnx file, or a folder with one.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", help="File to write; a folder where IN is one.")
    ],
    level: Level = "full",
    no_functions: NoFunctions = False,
    dtype: KeptDtype = None,
    padding: Padding = "keep",
    output_rows: OutputRows = False,
    strict: Strict = False,
    page: Page = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Fuse an ONNX model into bertfuse's ops. Prints what was expected, what was fused, and what stopped the rest.

    [bold]Examples[/]

      bertfuse fuse exported -o fused

      bertfuse fuse model.onnx -o fused.onnx --level basic --dtype fp16 --strict

      bertfuse fuse minilm -o minilm-packed --padding remove
    """
    from bertfuse.export.folder import check_apart
    from bertfuse.files import check_target
    from bertfuse.graph_rewrite import FuseOptions, fuse_file
    from bertfuse.model_folder.files import find_model, folder_of

    options = FuseOptions(level, not no_functions, dtype, padding, output_rows)
    source, whole_folder = find_model(model, prefer_fused=False), model.is_dir() and output.suffix != ".onnx"
    beside = None
    if page:
        beside = output / "report.html" if whole_folder else output.with_suffix(".html") if output.name else None
    if whole_folder:
        _check_unfused(source)
        check_apart(folder_of(source), output)
    else:
        check_target(output, [source], onnx_file=True)
        if beside is not None:
            _check_page(source, output, beside)
    check_new(output, overwrite)
    with Steps(as_json) as steps:

        def fusion(source: Path, target: Path) -> FusionResult:
            return fuse_file(source, target, options, lambda step: steps(f"Fusing {source}: {step}"))

        if whole_folder:
            steps(f"Copying {model}")
            result, source, output = _fuse_folder(source, output, fusion)
        else:
            result = fusion(source, output)
        written = {"report": str(_write_page(source, output, beside, steps))} if page else {}
    if as_json:
        print_json(fusion_report(result) | {"model": str(output)} | written)
    else:
        print_fusion(result)
        stdout().print(f"Wrote {' and '.join([str(output), *written.values()])}", markup=False)
    if strict and not is_complete(result):
        raise typer.Exit(1)


def optimize(
    model: Source,
    output: Folder,
    task: Task = "auto",
    opset: Opset = None,
    exporter: Exporter = "dynamo",
    attention: Attention = "auto",
    static_shape: StaticShape = None,
    level: Level = "full",
    no_functions: NoFunctions = False,
    dtype: Dtype = "fp32",
    allow_pickle: Pickle = False,
    padding: Padding = "keep",
    output_rows: OutputRows = False,
    strict: Strict = False,
    page: Page = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Export, fuse and compare in one go: a folder for SentenceTransformer(DIR, backend="onnx"), optimum and bertfuse.

    DIR/onnx/model.onnx is the fused model; everything else of the source but its weights is copied. Exit 1 when the
    fused model and the export disagree, or cannot be compared on this machine. The export is float32, whatever the
    fused model's type.

    [bold]Examples[/]

      bertfuse optimize sentence-transformers/all-MiniLM-L6-v2 -o minilm

      bertfuse optimize ./my-tagger -o tagger --dtype fp16 --strict
    """
    from bertfuse.graph_rewrite import FuseOptions
    from bertfuse.optimization import optimize as make

    options = FuseOptions(level, not no_functions, None if dtype == "fp32" else dtype, padding, output_rows)
    check_new(output, overwrite, model)
    with Steps(as_json) as steps:
        made = make(
            model,
            output,
            options,
            task=task,
            opset=opset,
            exporter=exporter,
            attention=attention,
            static_shape=_one_size(static_shape),
            allow_pickle=allow_pickle,
            progress=steps,
        )
        every = list(made.routes.values()) or [made]
        pages = [_write_page(one.original, one.model, None, steps) if page else None for one in every]
    if as_json:
        reports = [_optimized_report(one, file) for one, file in zip(every, pages, strict=True)]
        routes = dict(zip(made.routes, reports, strict=False))
        print_json({"model": str(output), "routes": routes} if routes else reports[0])
    else:
        for one, file in zip(every, pages, strict=True):
            _print_optimized(one, file)
    if not all(one.passed and (is_complete(one.fusion) or not strict) for one in every):
        raise typer.Exit(1)


def _optimized_report(made: Optimized, page: Path | None) -> dict[str, Any]:
    data = {
        "model": str(made.model),
        "task": _task_of(made.model),
        "fusion": fusion_report(made.fusion),
        "comparison": made.comparison.to_dict() if made.comparison is not None else None,
    }
    data |= {"not_compared": made.not_compared} if made.not_compared else {}
    return data | ({"report": str(page)} if page is not None else {})


def _print_optimized(made: Optimized, page: Path | None) -> None:
    from .compare import print_comparison

    print_fusion(made.fusion)
    if made.comparison is not None:
        print_comparison(made.comparison)
    else:
        stderr().print(f"Not compared with the export: {made.not_compared}", markup=False, soft_wrap=True)
    folder, task = made.model.parents[1], _task_of(made.model)
    stdout().print(f"Wrote {folder} for {task}: {made.model}, and {made.original.name} beside it", markup=False)
    if page is not None:
        stdout().print(f"Wrote {page}", markup=False)


def _one_size(text: str | None) -> tuple[int, int] | None:
    from bertfuse.errors import BertfuseError

    if text is None:
        return None
    sizes = grid(text, "--static-shape")
    if len(sizes) > 1:
        raise BertfuseError(f"--static-shape {text!r}: give one batch x sequence, as in 8x128")
    return sizes[0]


def metadata(model: Path) -> dict[str, str]:
    """What export and fusion wrote into the model about itself."""
    from bertfuse.graph_rewrite.io import open_model

    return {entry.key: entry.value for entry in open_model(model)[0].metadata_props}


def _task_of(model: Path) -> str:
    """The task that the export wrote into the model; "" where it says none."""
    return metadata(model).get("bertfuse.task", "")


def _fuse_folder(
    model: Path, target: Path, fusion: Callable[[Path, Path], FusionResult]
) -> tuple[FusionResult, Path, Path]:
    """Writes `target`, all of it or nothing: the model's folder and its fused form. Also returns where the model before
    fusion and the fused one are then.
    """
    from bertfuse.export.folder import STALE_MODELS, STALE_SETTINGS, output_folder
    from bertfuse.export.source import copy_files
    from bertfuse.graph_rewrite.io import open_model, write
    from bertfuse.model_folder.files import MODEL_FILE, ONNX_FOLDER, ORIGINAL_FILE, folder_of

    source = folder_of(model)
    place = Path(ONNX_FOLDER, ORIGINAL_FILE)
    with output_folder(target, STALE_MODELS | STALE_SETTINGS) as scratch:
        copy_files(source, scratch, without=target)
        write(*open_model(model), scratch / place)
        result = fusion(model, scratch / ONNX_FOLDER / MODEL_FILE)
    return result, target / place, target / ONNX_FOLDER / MODEL_FILE


def _check_unfused(model: Path) -> None:
    from bertfuse.errors import BertfuseError
    from bertfuse.graph_rewrite.io import open_model
    from bertfuse.graph_rewrite.spec import DOMAIN

    if any(node.domain == DOMAIN for node in open_model(model)[0].graph.node):
        raise BertfuseError(f"{model}: is fused already; give the folder of the model before fusion")


def _check_page(original: Path, fused: Path, page: Path) -> None:
    """Raises BertfuseError where `_write_page` would, or would overwrite a model: before `fused` is written."""
    from bertfuse.errors import BertfuseError
    from bertfuse.files import check_target
    from bertfuse.graph_rewrite.io import open_model
    from bertfuse.graph_rewrite.spec import DOMAIN

    for path in (original, fused):
        if path.resolve() == page.resolve():
            raise BertfuseError(f"{path}: --report would write its page over this model; give it a name in .onnx")
    check_target(page)
    if any(node.domain == DOMAIN for node in open_model(original)[0].graph.node):
        raise BertfuseError(f"{original}: is fused already; --report needs the model before fusion")


def _write_page(original: Path, fused: Path, page: Path | None, steps: Steps) -> Path:
    from bertfuse.analysis.report import write_report

    return write_report(original, fused, page, progress=steps)


def add_to(app: typer.Typer) -> None:
    for function in (export, fuse, optimize):
        app.command()(command(function))
