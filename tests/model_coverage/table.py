"""The last measurement: kept as JSON, shown as docs/coverage.md, and held against a new one."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .cells import Cell, Measured

FILE = Path(__file__).with_name("coverage.json")
PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"

# Two layers of sums in another order, on values of order 1 to 5; float16 keeps 11 bits of each.
_TOLERANCE = {"fp32": 2e-4, "fp16": 3e-2}

_HEAD = """# Coverage

What bertfuse fuses of each model, head, exporter and kind of file: ops fused of those expected, and the largest
difference of any output from the file before fusing. Models are small (2 layers, hidden size 32) with random weights,
unless a row says otherwise. Outputs are compared in ONNX Runtime on the CPU at batch x sequence 1x1, 2x7 and 3x33, with
a padded row (of ModernBERT and Gemma 3 only real tokens: padding may see no key in its window). *Expected* is what the
architecture promises (each layer's attention; in a BERT-like layer also two LayerNorms and the GELU; RMSNorms that no
op with more takes) or what the graph shows, whichever is more. Files with the same counts share a row, with the largest
of their differences (each is in `tests/model_coverage/coverage.json`). "–": the exporter cannot write such a file;
"failed": it fails to.

`python -m tests.model_coverage` measures everything again and writes this page (ten minutes on two cores).
`make test` measures a part of it, and fails where a cell has got worse.
"""


def load() -> dict[str, Measured]:
    """The committed measurement, by the cell's name."""
    return {name: Measured(**values) for name, values in json.loads(FILE.read_text(encoding="utf-8")).items()}


def save(measured: dict[str, Measured]) -> None:
    rows = (f"{json.dumps(name)}: {json.dumps(value.as_json())}" for name, value in measured.items())
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def worse(cell: Cell, now: Measured, before: Measured | None) -> list[str]:
    """What of a cell is worse than it was, and what is wrong in any case."""
    found = []
    tolerance = _TOLERANCE[cell.recipe.dtype]
    if not now.error <= tolerance:
        found.append(f"differs by {now.error:g}, allowed is {tolerance:g}")
    if now.failed:
        return found if before is not None and before.failed else [*found, now.failed]
    short = sum(now.expected.values()) - sum(now.fused.values())
    if short and not now.misses:
        found.append(f"{short} ops are missing without a reason")
    if before is None:
        return [*found, "is not in the table: run python -m tests.model_coverage"]
    for op, count in before.fused.items():
        if now.fused.get(op, 0) < count:
            found.append(f"{op}: {now.fused.get(op, 0)} fused, {count} before")
    return found


def page(cells: list[Cell], measured: dict[str, Measured]) -> str:
    """docs/coverage.md."""
    parts = [_HEAD]
    tables: dict[str, dict[str, dict[str, Measured]]] = {}
    for cell in cells:
        tables.setdefault(cell.table, {}).setdefault(cell.row, {})[cell.column] = measured[str(cell)]
    columns = list(dict.fromkeys(cell.column for cell in cells))
    for title, rows in tables.items():
        parts.append(f"## {title}\n")
        parts.append("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
        for row, shown in shared(rows, columns):
            parts.append(f"| {row} | " + " | ".join(shown) + " |")
        parts.append("")
    parts += ["## What is left, and why\n", *_reasons(tables), ""]
    return "\n".join(parts)


def shared(rows: dict[str, dict[str, Measured]], columns: list[str]) -> list[tuple[str, list[str]]]:
    """The lines of a table. Rows with the same counts are one: those of a name, then names that have the same ones."""
    of_names: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        counts = (_shown(rows[row].get(column)).partition(", ")[0] for column in columns)
        of_names.setdefault((_split(row)[0], *counts), []).append(row)
    lines: dict[tuple, list[str]] = {}
    for (name, *counts), members in of_names.items():
        rests = tuple(_split(row)[1] for row in members)
        lines.setdefault((rests, *counts, "fp16" in name), []).extend(members)  # whose errors are of another size
    merged = []
    for (rests, *_), members in lines.items():
        names = dict.fromkeys(_split(row)[0] for row in members)
        found = ([rows[row][column] for row in members if column in rows[row]] for column in columns)
        shown = [_shown(max(cells, key=lambda cell: cell.error, default=None)) for cells in found]
        merged.append((f"{'; '.join(names)}: {'; '.join(rests)}", shown))
    return merged


def _split(row: str) -> tuple[str, str]:
    """What a row is of, and which one of these it is."""
    if opset := re.fullmatch(r"(opset \d+), (.+)", row):
        return opset[2], opset[1]
    name, _, rest = row.rpartition(": ")
    return name, rest


def _shown(measured: Measured | None) -> str:
    if measured is None:
        return "–"
    if measured.failed:
        return "failed"
    done, wanted = sum(measured.fused.values()), sum(measured.expected.values())
    text = f"{done}/{wanted}"
    return f"{text if done == wanted else f'**{text}**'}, {measured.error:.0e}"


def _reasons(tables: dict[str, dict[str, dict[str, Measured]]]) -> list[str]:
    """Each row's misses, as the first of its files has them; rows that say the same are one entry."""
    entries: dict[tuple[str, ...], list[str]] = {}
    for rows in tables.values():
        for row, found in rows.items():
            causes: dict[str, list[str]] = {}
            for column in sorted(found):
                causes.setdefault(found[column].failed, []).append(column)
            failed = [f"{'; '.join(columns)}: {cause}" for cause, columns in causes.items() if cause]
            misses = next((m.misses for m in found.values() if m.misses), [])
            if failed or misses:
                entries.setdefault((*misses, *failed), []).append(row)
    return [
        f"- **{'; '.join(rows)}**\n" + "\n".join(f"  - {_escaped(reason)}" for reason in reasons)
        for reasons, rows in entries.items()
    ]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("_", "\\_")
