"""bertfuse run: a model or an engine on text or arrays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Json, Library, ModelFolder, Provider
from .output import Steps, command, print_json, stdout, table

SHOWN = 20  # answers on the terminal; all of them go into --json and -o


def run(
    model: ModelFolder,
    text: Annotated[list[str] | None, typer.Option("--text", "-t", help="A text; give it again for more.")] = None,
    text_pair: Annotated[
        list[str] | None, typer.Option(help="Second text of a pair, such as a question's context; one for each --text.")
    ] = None,
    text_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with a text on each line; - reads standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--input", "-i", help="An .npz file with an array per input.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the outputs to this .npz file.")] = None,
    engine: Annotated[
        Path | None, typer.Option(metavar="FILE.plan", help="Run this TensorRT engine, built from the model, on a GPU.")
    ] = None,
    provider: Provider = "cpu",
    library: Library = "auto",
    as_json: Json = False,
) -> None:
    """Run a model on texts or arrays: the fused model of the folder, where there is one.

    What a text gives depends on the model's task: a vector, pooled as the model says; labels; entities; the score of a
    pair; words for a mask; or the part of the text that answers a question.

    [bold]Examples[/]

      bertfuse run minilm --text "A man is eating." --text "Someone has a meal."

      bertfuse run reranker --text "who eats?" --text-pair "A man is eating."

      bertfuse run minilm --text-file sentences.txt -o vectors.npz

      bertfuse run minilm --engine minilm/model.plan --text "A man is eating."
    """
    from bertfuse.errors import BertfuseError
    from bertfuse.files import check_target
    from bertfuse.model_folder.files import find_model

    if [bool(text), text_file is not None, file is not None].count(True) != 1:
        raise BertfuseError("give one of --text, --text-file and --input")
    if text_pair and not text:
        raise BertfuseError("--text-pair is the second segment of --text; leave it out with --input and --text-file")
    path = find_model(model)
    if path.suffix == ".plan":
        raise BertfuseError(f"{path}: is an engine, not a model; name the model here, and the engine with --engine")
    if output is not None:
        check_target(output, [path, file, engine, text_file])
    texts = text or (_lines(text_file) if text_file is not None else [])
    with Steps(as_json) as steps:
        if file is not None or engine is not None:
            task, answers, arrays = _run_arrays(path, texts, text_pair, file, engine, provider, library, steps)
        else:
            from bertfuse.inference.answers import answers as answer

            steps(f"Running {path} on {len(texts)} text{'s' if len(texts) > 1 else ''}")
            task, answers, arrays = answer(path, texts, text_pair, device=provider, library=library)
        if output is not None:
            if not arrays:
                raise BertfuseError(f"-o {output}: a model for {task} gives no arrays; take --json")
            _save_npz(output, arrays)
    if as_json:
        made = {name: {"shape": list(a.shape), "dtype": str(a.dtype)} for name, a in arrays.items()}
        print_json({"model": str(engine or path), "task": task, "outputs": made, "answers": answers})
        return
    _print(answers, arrays)
    if output is not None:
        stdout().print(f"Wrote {output}", markup=False)


def _lines(file: Path) -> list[str]:
    from bertfuse.errors import BertfuseError

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BertfuseError(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except FileNotFoundError as error:
        raise BertfuseError(f"{file}: no such file; check the path") from error
    lines = text.splitlines()
    if not lines:
        raise BertfuseError(f"{file}: holds no text")
    return lines


Ran = tuple[str, list[dict[str, Any]], dict[str, Any]]  # the task, what it says of each text, the outputs


def _run_arrays(
    path: Path,
    texts: list[str],
    pairs: list[str] | None,
    file: Path | None,
    engine: Path | None,
    provider: str,
    library: str,
    steps: Steps,
) -> Ran:
    """One run on the arrays of a file, or, in an engine, on the texts padded to the longest."""
    from bertfuse.inference.array_answers import answers
    from bertfuse.model_folder.files import folder_of
    from bertfuse.runtime.inputs import read_npz, text_inputs

    at_least = 1
    if engine is not None:
        from bertfuse.runtime.trt.run import shortest_sequence

        at_least = shortest_sequence(engine)
    arrays = read_npz(file) if file else text_inputs(folder_of(path), texts, pairs, at_least)
    where = str(file) if file else "the tokenised text"
    steps(f"Loading {engine or path}")
    if engine is None:
        feed, outputs, task = _run_session(path, arrays, where, provider, library, steps)
    else:
        feed, outputs, task = _run_engine(engine, arrays, where, steps)
    said = answers(task, folder_of(path), feed, outputs)
    if texts:
        said = [{"text": text} | answer for text, answer in zip(texts, said, strict=True)] if said else []
    return task, said, outputs


def _run_session(
    path: Path, arrays: dict[str, Any], where: str, provider: str, library: str, steps: Steps
) -> tuple[dict[str, Any], dict[str, Any], str]:
    from bertfuse.runtime.inputs import fit_inputs
    from bertfuse.runtime.session import InferenceSession, ort_errors, providers_of

    session = InferenceSession(path, providers_of(provider), library=library)
    feed = fit_inputs(session, arrays, where)
    steps("Running")
    with ort_errors(str(path)):
        results = session.run(None, feed)
    outputs = dict(zip((value.name for value in session.get_outputs()), results, strict=True))
    return feed, outputs, session.get_modelmeta().custom_metadata_map.get("bertfuse.task", "")


def _run_engine(
    plan: Path, arrays: dict[str, Any], where: str, steps: Steps
) -> tuple[dict[str, Any], dict[str, Any], str]:
    from bertfuse.runtime.inputs import fit_inputs
    from bertfuse.runtime.trt.run import EngineSession

    with EngineSession(plan) as session:
        feed = fit_inputs(session, arrays, where)
        steps("Running")
        return feed, session.run(feed), session.task


def _print(answers: list[dict[str, Any]], arrays: dict[str, Any]) -> None:
    import numpy as np

    console = stdout()
    rows = []
    for name, array in arrays.items():
        first = " ".join(f"{value:.4f}" for value in np.ravel(array)[:4].astype(float))
        rows.append([name, str(list(array.shape)), str(array.dtype), first + (" …" if array.size > 4 else "")])
    if rows:
        console.print(table("", ["output", "shape", "type", "first values"], rows))
    for index, answer in enumerate(answers[:SHOWN]):
        texts = " | ".join(_short(answer[key]) for key in ("text", "text_pair") if key in answer)
        said = {
            key: value
            for key, value in answer.items()
            if key not in ("text", "text_pair", "embedding", "indices", "values")
        }
        if said:
            console.print(f"{texts or f'row {index}'}: {_say(said)}", markup=False)
    if len(answers) > SHOWN:
        console.print(f"… and {len(answers) - SHOWN} more texts: --json prints, -o writes all of them")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:79]}…"


def _say(answer: dict[str, Any]) -> str:
    def plain(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.4f}"
        if isinstance(value, dict):
            return "(" + ", ".join(f"{key} {plain(entry)}" for key, entry in value.items()) + ")"
        if isinstance(value, tuple):
            return "/".join(map(plain, value))
        return " ".join(map(plain, value)) if isinstance(value, list) else str(value)

    return ", ".join(f"{key.replace('_', ' ')} {plain(value)}" for key, value in answer.items())


def _save_npz(path: Path, arrays: dict[str, Any]) -> None:
    import numpy as np

    from bertfuse.files import replacing

    with replacing(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, **arrays)


def add_to(app: typer.Typer) -> None:
    app.command()(command(run))
