"""bertfuse run: a model or an engine on text or arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .models import Json
from .options import Library, Provider
from .output import Steps, command, print_json, stdout, table


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="Folder of export or optimize, or an .onnx file.")],
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="A text; give it again for more.")] = None,
    text_pair: Annotated[list[str] | None, typer.Option(help="Its second segment, as question's context.")] = None,
    file: Annotated[Path | None, typer.Option("--input", "-i", help="An .npz file with an array per input.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the outputs to this .npz file.")] = None,
    engine: Annotated[
        Path | None, typer.Option(metavar="FILE.plan", help="Run this engine of the model, on a GPU.")
    ] = None,
    provider: Provider = "cpu",
    library: Library = "auto",
    as_json: Json = False,
) -> None:
    """Run a model on text or arrays. A folder's fused model is taken where there is one.

    [bold]Examples[/]

      bertfuse run minilm --text "A man is eating." --text "Someone has a meal."

      bertfuse run clf/model.onnx --input batch.npz -o logits.npz

      bertfuse run minilm --engine minilm/model.plan --text "A man is eating."
    """
    import numpy as np

    from bertfuse.errors import BertfuseError
    from bertfuse.graph_rewrite.io import check_target
    from bertfuse.runtime.answers import answers
    from bertfuse.runtime.folder import find_model, folder_of
    from bertfuse.runtime.inputs import read_npz, text_inputs

    if bool(text) == (file is not None):
        raise BertfuseError("give either --text or --input")
    if text_pair and not text:
        raise BertfuseError("--text-pair is the second segment of --text; leave it out with --input")
    path = find_model(model)
    if path.suffix == ".plan":
        raise BertfuseError(f"{path}: is an engine, not a model; name the model here, and the engine with --engine")
    if output is not None:
        check_target(output, [path, file, engine])
    at_least = 1
    if engine is not None:
        from bertfuse.runtime.trt.run import shortest_sequence

        at_least = shortest_sequence(engine)
    arrays = read_npz(file) if file else text_inputs(folder_of(path), text or [], text_pair, at_least)
    where = str(file) if file else "the tokenised text"
    with Steps(as_json) as steps:
        steps(f"Loading {engine or path}")
        if engine is None:
            feed, outputs, task = _run_session(path, arrays, where, provider, library, steps)
        else:
            feed, outputs, task = _run_engine(engine, arrays, where, steps)
    if output is not None:
        _save_npz(output, outputs)
    said = answers(task, folder_of(path), feed, outputs)
    if as_json:
        data = {
            name: {"shape": list(a.shape), "dtype": str(a.dtype), "values": a.tolist()} for name, a in outputs.items()
        }
        print_json({"model": str(engine or path), "task": task, "outputs": data, "answers": said})
        return
    console = stdout()
    rows = []
    for name, array in outputs.items():
        first = " ".join(f"{value:.4f}" for value in np.ravel(array)[:4].astype(float))
        rows.append([name, str(list(array.shape)), str(array.dtype), first + (" …" if array.size > 4 else "")])
    console.print(table("", ["output", "shape", "type", "first values"], rows))
    for index, answer in enumerate(said):
        name = text[index] if text else f"row {index}"
        console.print(f"{name}: {_say(answer)}", markup=False)
    if output is not None:
        console.print(f"Wrote {output}", markup=False)


Ran = tuple[dict[str, Any], dict[str, Any], str]  # what it was fed, its outputs, the task


def _run_session(path: Path, arrays: dict[str, Any], where: str, provider: str, library: str, steps: Steps) -> Ran:
    from bertfuse.runtime.inputs import fit_inputs
    from bertfuse.runtime.session import InferenceSession, ort_errors, providers_of

    session = InferenceSession(path, providers_of(provider), library=library)
    feed = fit_inputs(session, arrays, where)
    steps("Running")
    with ort_errors(str(path)):
        results = session.run(None, feed)
    outputs = dict(zip((value.name for value in session.get_outputs()), results, strict=True))
    return feed, outputs, session.get_modelmeta().custom_metadata_map.get("bertfuse.task", "")


def _run_engine(plan: Path, arrays: dict[str, Any], where: str, steps: Steps) -> Ran:
    from bertfuse.runtime.inputs import fit_inputs
    from bertfuse.runtime.trt.run import EngineSession

    with EngineSession(plan) as session:
        feed = fit_inputs(session, arrays, where)
        steps("Running")
        return feed, session.run(feed), session.task


def _say(answer: dict[str, Any]) -> str:
    def plain(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.4f}"
        if isinstance(value, tuple):
            return "/".join(map(plain, value))
        return " ".join(map(plain, value)) if isinstance(value, list) else str(value)

    return ", ".join(f"{key.replace('_', ' ')} {plain(value)}" for key, value in answer.items())


def _save_npz(path: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    from bertfuse.graph_rewrite.io import replacing

    with replacing(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def add_to(app: typer.Typer) -> None:
    app.command()(command(run))
