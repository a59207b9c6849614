"""The command line: options and their help. The work is in the other packages, imported inside the commands."""

from __future__ import annotations

import gc
import inspect
import signal
import sys
from typing import Annotated

import typer

from bertfuse import __version__

from . import compare, corpus, engine, explain, models, qualify, quantize, report, run, serve, sessions, triton, tune

app = typer.Typer(
    name="bertfuse",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bertfuse {__version__}")
        raise typer.Exit


def _joined(text: str) -> str:
    """The lines of each paragraph as one, to be wrapped for the terminal at hand; rich keeps those of the source."""
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in inspect.cleandoc(text).split("\n\n"))


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Fused ONNX models from Hugging Face BERT-family encoders.

    [bold]Examples[/]

      bertfuse optimize sentence-transformers/all-MiniLM-L6-v2 -o minilm

      bertfuse run minilm --text "A sentence."

      bertfuse bench minilm
    """


for module in (models, quantize, explain, run, corpus, compare, engine, sessions, tune, qualify, report, serve, triton):
    module.add_to(app)
for command in app.registered_commands:
    command.help = _joined(command.callback.__doc__)


def main() -> None:
    """Entry point of the `bertfuse` command."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # or temporary files would stay
    try:
        app()
    finally:
        gc.freeze()  # or Python looks through all that torch is made of as it ends: half a second
