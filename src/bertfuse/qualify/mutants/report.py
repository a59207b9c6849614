"""What a hunt found, in words and as data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Finding:
    """Something wrong. `files` are the model and its inputs, `command` repeats it, `same` more have its cause."""

    kind: str
    number: int
    changes: list[str]
    text: str
    inputs: str = ""
    nodes: int = 0
    files: list[str] = field(default_factory=list)
    command: str = ""
    same: int = 0


@dataclass
class Report:
    """Counts by outcome, and findings.

    outcomes  "equal": fused as far as the model itself is, and equal; "partly": fused in part, the rest refused, and
              equal; "refused": nothing fused; "invalid": a mutant that does not load or run, which counts for nothing
    excused   inputs on which a difference is a documented one, by reason
    exempt    kinds of inputs that mutants are not given, because the model itself is fused differently on these
    """

    model: str
    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    exempt: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    runs: int = 0

    @property
    def tried(self) -> int:
        """Mutants that ONNX Runtime runs, or that fuse() fails on."""
        return sum(n for outcome, n in self.outcomes.items() if outcome != "invalid")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        data = asdict(self) | {"outcomes": dict(self.outcomes), "excused": dict(self.excused), "tried": self.tried}
        return data | {"found": len(self.findings)}

    def summary(self) -> str:
        """One line."""
        n = self.outcomes
        wrong = sum(1 + f.same for f in self.findings)
        return (
            f"{self.tried} mutants ({n['invalid']} more that do not run) in {self.seconds:.0f} s, seed {self.seed}: "
            f"{n['equal']} fused and equal, {n['partly']} fused in part and equal, {n['refused']} refused, "
            f"{wrong} wrong"
        )

    def show(self) -> None:
        """Prints the summary, what was left out, and every finding."""
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True)
        console.print(f"{self.model}: {self.summary()}", markup=False)
        for reason, count in self.excused.items():
            console.print(f"not counted: {count} inputs with {reason}", markup=False)
        for kind, text in self.exempt.items():
            console.print(f"not fed: masks of {kind}, on which the model itself differs: {text}", markup=False)
        for finding in self.findings:
            more = f" (and {finding.same} like it)" if finding.same else ""
            console.print(f"{finding.kind}, mutant {finding.number}{more}: {finding.text}", markup=False)
            for change in finding.changes:
                console.print(f"    {change}", markup=False)
            if finding.command:
                console.print(f"    repeat: {finding.command}", markup=False)
