"""Which tactic each fused op of a model takes on a GPU, and what chose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.files import find_model
from bertfuse.runtime import native

from .model_calls import model_calls


@dataclass(frozen=True)
class ChosenTactic:
    """A problem's tactic. `chosen_by`: "tuning file"; "measured" on such a GPU, by a table in the library; "model", of
    costs; "" where the op does not tell. `launches`: nodes of the model with the problem."""

    problem: str
    tactic: str
    chosen_by: str
    launches: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def chosen_tactics(
    model: str | Path,
    sizes: Sequence[tuple[int, int]],
    *,
    device: int = 0,
    tuning: str | Path | None = None,
    library: Path | None = None,
) -> list[ChosenTactic]:
    """The tactics of a fused model's ops at (batch, sequence) sizes, on the CUDA device of that number.

    Nothing is run. `tuning` is a file of `tune`; `library` another library than the installed one. Raises
    BertfuseError where the model has no fused op, or there is no such GPU or no GPU code.
    """
    path = find_model(model)
    try:
        count = sum(1 for _ in native.gpus(library))
        if device >= count:
            raise BertfuseError(f"there is no GPU {device} to choose for: the library sees {count}")
        measured = None
        if tuning is not None:
            text = Path(tuning).read_text(encoding="utf-8", errors="replace")
            measured = native.tuning_of(text, str(tuning), library)[0]
        found: dict[str, ChosenTactic] = {}
        for batch, sequence in sizes:
            for op, call, launches in model_calls(path, batch, sequence):
                call.flags = native.NO_ROW_HINTS | native.environment_flags()
                call.device_id, call.tuning = device, measured
                problem = native.problem(op, call, library)
                if problem is not None:
                    names = native.tactic_name(op, call, path=library), native.chosen_by(op, call, library)
                    before = found[problem].launches if problem in found else 0
                    found[problem] = ChosenTactic(problem, *names, before + launches)
    except (native.NativeError, OSError) as error:
        raise BertfuseError(str(error)) from error
    return list(found.values())
