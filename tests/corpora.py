"""Corpora in files, tiny models for them, and what was written, read back."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.export import export_model
from tests import made_once
from tests.checkpoints import save, texts
from tests.tiny_models import sentence_files


@cache
def model_folder(name: str, initializer_range: float = 0.5) -> Path:
    """The exported model of a tiny checkpoint; do not write into it."""

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as base:
            source = save(name, Path(base) / name, initializer_range)
            if name == "encoder":
                sentence_files(source, "Normalize")
            export_model(source, folder, exporter="torchscript")

    return made_once(f"checkpoints-{initializer_range}/{name}", make)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Rows as the format that the path's name says; parquet in several row groups."""
    kind = path.suffix[1:]
    if kind == "txt":
        path.write_text("".join(f"{row['text']}\n" for row in rows), encoding="utf-8")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif kind == "csv":
        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        parquet.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=max(1, len(rows) // 3))
    return path


def written(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """Ids and columns of everything in a folder of results, in order."""
    ids: list[Any] = []
    columns: dict[str, list[Any]] = {}
    for path in sorted(folder.glob("part-*")):
        if path.name.endswith(".ids.npy"):
            ids += np.load(path).tolist()
        elif path.suffix == ".npy":
            columns.setdefault("embedding", []).extend(np.load(path))
        else:
            if path.suffix == ".jsonl":
                rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            else:
                import pyarrow.parquet as parquet

                rows = parquet.read_table(path).to_pylist()
            for row in rows:
                ids.append(row.pop("id"))
                for name, value in row.items():
                    columns.setdefault(name, []).append(value)
    return ids, {name: np.array(values) for name, values in columns.items()}


_PAGE = Path(__file__).parents[1] / "docs" / "corpus.md"


def page_commands() -> list[str]:
    """The commands of docs/corpus.md."""
    lines = _PAGE.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.startswith(("    bertfuse ", "    cat "))]


def page_folder(base: Path) -> Path:
    """The models and files that the commands of docs/corpus.md name, of 40 rows each."""
    for kind, name in (("encoder", "minilm"), ("reranker", "reranker"), ("classifier", "classifier")):
        shutil.copytree(model_folder(kind), base / name)
    rows = [
        {"text": text, "review": text, "question": text, "answer": text, "key": f"k{row}"}
        for row, text in enumerate(texts(40, seed=61))
    ]
    (base / "more").mkdir()
    for name in ("corpus.parquet", "corpus.csv", "corpus.jsonl", "sentences.txt", "pairs.jsonl", "more/b.parquet"):
        write_rows(base / name, rows)
    return base
