"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Provider = Annotated[str, typer.Option(metavar="cpu|cuda", help="Where the model runs.")]
Library = Annotated[
    str,
    typer.Option(
        metavar="auto|always|never",
        help="Whether the custom-op library is loaded. auto: not on the CPU, where the op bodies are faster.",
    ),
]
