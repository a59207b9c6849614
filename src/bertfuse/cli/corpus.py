"""Commands that take a corpus: embed, rerank, classify."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Json, Library
from .output import INTERRUPTED, command, print_json, stderr, stdout

if TYPE_CHECKING:
    from bertfuse.inference.corpus.job import Job, Tally

Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT…", help="Files (.parquet, .jsonl, .csv, .txt), folders of them, or - for stdin."),
]
Model = Annotated[
    str, typer.Option("--model", "-m", metavar="DIR", envvar="BERTFUSE_MODEL", help="Folder of the model.")
]
Output = Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the results.")]
Column = Annotated[str, typer.Option(help="Column with the texts. A .txt file has one text per line.")]
IdColumn = Annotated[str | None, typer.Option(help="Column with the rows' ids. \\[default: rows are numbered from 0]")]
InputFormat = Annotated[
    str | None,
    typer.Option(metavar="parquet|jsonl|csv|txt", help="Format of the input. \\[default: by file name; stdin is txt]"),
]
Format = Annotated[str, typer.Option("--format", metavar="parquet|npy|jsonl", help="Format of the output files.")]
BatchTokens = Annotated[
    int | None,
    typer.Option("--max-batch-tokens", min=1, help="Maximum tokens in one batch. \\[default: 512, on a GPU 16384]"),
]
MaxLength = Annotated[
    int | None,
    typer.Option("--max-seq-length", min=1, help="Cut texts after this many tokens. \\[default: the model's]"),
]
MaxCharacters = Annotated[int, typer.Option(min=1, help="Leave out, and report, rows with a longer text.")]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="all|0,1|cpu",
        help="GPUs to use, a process for each; all: every GPU. \\[default: the first GPU, or the CPU]",
    ),
]
Ray = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Run on this Ray cluster; local starts one here.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="With --ray: number of workers. \\[default: one per GPU, else per machine]"),
]
ShardRows = Annotated[int, typer.Option(min=1, help="Input rows for each output file, at most.")]
ShardSeconds = Annotated[
    float, typer.Option(min=0, help="Write a file after about this long even where it has fewer rows; not of stdin.")
]


def embed(
    inputs: Inputs,
    model: Model,
    output: Output,
    column: Column = "text",
    id_column: IdColumn = None,
    input_format: InputFormat = None,
    output_format: Format = "parquet",
    prompt_name: Annotated[
        str | None, typer.Option(help="Name of the model's prompt to put in front of each text.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="Text to put in front of each text.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale vectors to length 1.")] = False,
    truncate_dim: Annotated[
        int | None, typer.Option(min=1, help="Keep only this many leading numbers of each vector.")
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            metavar="float32|int8|uint8|binary|ubinary",
            help="8 bits or 1 for each number. Of 8 bits ranges.npy, beside the vectors, says what they stand for.",
        ),
    ] = "float32",
    ranges: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npy", help="Ranges of an earlier run. \\[default: those of the first 10,000 rows]"),
    ] = None,
    route: Annotated[str | None, typer.Option(help="Of a model with routes: which one.")] = None,
    max_batch_tokens: BatchTokens = None,
    max_seq_length: MaxLength = None,
    max_characters: MaxCharacters = 1_000_000,
    shard_rows: ShardRows = 32768,
    shard_seconds: ShardSeconds = 60.0,
    devices: Devices = None,
    ray: Ray = None,
    workers: Workers = None,
    library: Library = "auto",
    as_json: Json = False,
) -> None:
    """Embed a corpus into files of ids and vectors, in the order of its rows. Run it again to resume.

    Rows without a usable text (null, empty, too long, not a string) are left out and listed in bad_rows.jsonl.

    [bold]Examples[/]

      bertfuse embed corpus.parquet --column text -o vectors/ --model minilm

      cat sentences.txt | bertfuse embed - -o vectors/ --model minilm --format npy
    """
    from bertfuse.inference.corpus.calibrate import calibrated
    from bertfuse.inference.corpus.job import Job
    from bertfuse.inference.corpus.processes import devices_of
    from bertfuse.inference.corpus.tasks import Wanted

    options = _options(max_batch_tokens, max_seq_length, library) | ({"route": route} if route is not None else {})
    wanted = Wanted(
        "embed",
        model,
        options,
        prompt=prompt,
        prompt_name=prompt_name,
        normalize=normalize,
        truncate_dim=truncate_dim,
        precision=precision,
    )
    source = _source(inputs, (column,), id_column, input_format, shard_rows, max_characters)
    wanted = calibrated(wanted, source, output, devices_of(devices)[0], ranges)
    _work(Job(source, wanted, output, output_format, shard_seconds), Place(devices, ray, workers), as_json)


def rerank(
    inputs: Inputs,
    model: Model,
    output: Output,
    query: Annotated[str | None, typer.Option(help="Query that every text is scored against.")] = None,
    query_column: Annotated[str | None, typer.Option(help="Column with a query for each row.")] = None,
    column: Column = "text",
    id_column: IdColumn = None,
    input_format: InputFormat = None,
    output_format: Format = "parquet",
    max_batch_tokens: BatchTokens = None,
    max_seq_length: MaxLength = None,
    max_characters: MaxCharacters = 1_000_000,
    shard_rows: ShardRows = 32768,
    shard_seconds: ShardSeconds = 60.0,
    devices: Devices = None,
    ray: Ray = None,
    workers: Workers = None,
    library: Library = "auto",
    as_json: Json = False,
) -> None:
    """Score every row against a query, or every pair of query and text, in the order of the rows.

    [bold]Examples[/]

      bertfuse rerank corpus.parquet --query "who eats?" -o scores/ --model reranker

      bertfuse rerank pairs.jsonl --query-column question --column answer -o scores/ --model reranker
    """
    from bertfuse.errors import BertfuseError
    from bertfuse.inference.corpus.job import Job
    from bertfuse.inference.corpus.tasks import Wanted

    if (query is None) == (query_column is None):
        raise BertfuseError("give one of --query, for all texts, and --query-column, for pairs")
    wanted = Wanted("rerank", model, _options(max_batch_tokens, max_seq_length, library), query=query)
    columns = (column,) if query_column is None else (query_column, column)
    source = _source(inputs, columns, id_column, input_format, shard_rows, max_characters)
    _work(Job(source, wanted, output, output_format, shard_seconds), Place(devices, ray, workers), as_json)


def classify(
    inputs: Inputs,
    model: Model,
    output: Output,
    column: Column = "text",
    pair_column: Annotated[str | None, typer.Option(help="Column with the second text of each row.")] = None,
    id_column: IdColumn = None,
    input_format: InputFormat = None,
    output_format: Format = "parquet",
    max_batch_tokens: BatchTokens = None,
    max_seq_length: MaxLength = None,
    max_characters: MaxCharacters = 1_000_000,
    shard_rows: ShardRows = 32768,
    shard_seconds: ShardSeconds = 60.0,
    devices: Devices = None,
    ray: Ray = None,
    workers: Workers = None,
    library: Library = "auto",
    as_json: Json = False,
) -> None:
    """Label a corpus: for each row the best label, its score, and the scores of all labels.

    [bold]Examples[/]

      bertfuse classify corpus.csv --column review -o labels/ --model classifier --format jsonl
    """
    from bertfuse.inference.corpus.job import Job
    from bertfuse.inference.corpus.tasks import Wanted

    wanted = Wanted("classify", model, _options(max_batch_tokens, max_seq_length, library))
    columns = (column,) if pair_column is None else (column, pair_column)
    source = _source(inputs, columns, id_column, input_format, shard_rows, max_characters)
    _work(Job(source, wanted, output, output_format, shard_seconds), Place(devices, ray, workers), as_json)


def _options(max_batch_tokens: int | None, max_seq_length: int | None, library: str) -> dict[str, Any]:
    return {"max_batch_tokens": max_batch_tokens, "max_seq_length": max_seq_length, "library": library}


def _source(inputs: list[str], columns: tuple[str, ...], id_column: str | None, kind: str | None, *sizes: int) -> Any:
    from bertfuse.inference.corpus.read import Source

    return Source(inputs, columns, id_column, kind, *sizes)


@dataclass(frozen=True)
class Place:
    """Where it runs: options of the same names."""

    devices: str | None
    ray: str | None
    workers: int | None


def _work(job: Job, place: Place, as_json: bool) -> None:
    from bertfuse.errors import BertfuseError
    from bertfuse.inference.corpus.processes import devices_of, run_on

    if place.ray is not None and place.devices is not None:
        raise BertfuseError("--devices is for this machine, --ray for a cluster: give one of them")
    if place.workers is not None and place.ray is None:
        raise BertfuseError("--workers goes with --ray; on this machine --devices says how many processes there are")
    devices = devices_of(place.devices)
    with job.opened():
        try:
            with Rate(as_json) as rate:
                if place.ray is not None:
                    from bertfuse.inference.corpus.on_ray import run_on_ray

                    tally = run_on_ray(job, place.ray, place.workers, rate)
                else:
                    tally = run_on(job, devices, rate)
        except KeyboardInterrupt:
            _say_kept(job)
            raise typer.Exit(INTERRUPTED) from None
        summary = job.summary()
        if summary["rows"] == 0:
            job.discard()
            raise BertfuseError(_why_nothing(job, summary))
    _say(summary, tally, as_json)


def _why_nothing(job: Job, summary: dict[str, Any]) -> str:
    inputs = ", ".join(name if name != "-" else "standard input" for name, _ in job.source.files[:3])
    if not summary["bad_rows"]:
        return f"{inputs}: no rows in it; nothing was written"
    first = summary["first_bad_rows"][0]
    return (
        f"{inputs}: none of {summary['bad_rows']:,} rows can be used, the first (row {first['row']}) because:"
        f" {first['reason']}; --column names the column with the texts; nothing was written"
    )


def _say_kept(job: Job) -> None:
    """What a run that was interrupted leaves, on stderr."""
    records = [record for record in job.records() if record["file"]]
    kept = f"{sum(record['rows'] for record in records):,} rows in {len(records)} files are kept in {job.folder}"
    stderr().print(
        f"Interrupted: {kept if records else 'nothing was finished yet'}; the same command goes on from there",
        markup=False,
    )


class Rate:
    """Texts and tokens a second, how much is done and the time left, on stderr: on a terminal on one line."""

    EVERY = 30.0  # seconds between lines where there is no terminal

    def __init__(self, silent: bool) -> None:
        self._console = None if silent else stderr()
        self._said = time.monotonic()
        self._status: Any = None

    def __enter__(self) -> Rate:
        if self._console is not None and self._console.is_terminal:
            self._status = self._console.status("Reading")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, tally: Tally) -> None:
        now = time.monotonic()
        if self._status is not None:
            self._status.update(self._line(tally))
        elif self._console is not None and now - self._said >= self.EVERY:
            self._said = now
            self._console.print(self._line(tally))

    def _line(self, tally: Tally) -> str:
        seconds = max(tally.seconds, 1e-9)
        texts = tally.running or tally.rows
        line = f"{texts:,} texts, {texts / seconds:,.0f} a second, {tally.tokens / seconds:,.0f} tokens a second"
        if tally.done > tally.begun:
            left = seconds * (1 - tally.done) / (tally.done - tally.begun)
            line += f", {tally.done:.0%}, {int(left // 3600)}:{int(left % 3600 // 60):02d}:{int(left % 60):02d} left"
        return line + (f", {tally.bad} bad rows" if tally.bad else "")


def _say(summary: dict[str, Any], tally: Tally, as_json: bool) -> None:
    seconds = max(tally.seconds, 1e-9)
    speed = {
        "new_rows": tally.rows,
        "seconds": seconds,
        "texts_per_second": tally.rows / seconds,
        "tokens_per_second": tally.tokens / seconds,
    }
    if as_json:
        print_json(summary | speed)
        return
    console = stdout()
    rows = f"{summary['rows']:,} rows in {summary['shards']} files in {summary['folder']}"
    if tally.rows:
        rows += (
            f"; {tally.rows:,} of them now, {speed['texts_per_second']:,.0f} texts"
            f" and {speed['tokens_per_second']:,.0f} tokens a second"
        )
    console.print(rows, markup=False, soft_wrap=True)
    bad = summary["first_bad_rows"]
    if bad:
        shown = ", ".join(f"{row['row']} ({row['reason']})" for row in bad)
        more = summary["bad_rows"] - len(bad)
        console.print(
            f"{summary['bad_rows']:,} bad rows left out: {shown}{f' and {more:,} more' if more else ''};"
            f" all are in {Path(summary['folder']) / 'bad_rows.jsonl'}",
            markup=False,
            soft_wrap=True,
        )
    sys.stdout.flush()


def add_to(app: typer.Typer) -> None:
    for function in (embed, rerank, classify):
        app.command()(command(function))
