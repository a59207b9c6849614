"""What `bertfuse tune` measured on a GPU, as a table that the library has built in for such GPUs.

python -m bertfuse.analysis.measured_table tuning.tsv … -o plugins/ops/measured/NAME.tsv

A tuning file has a row for each number of rows that was measured. Here a product's tactic serves fewer rows, too, down
to the next number that was measured; beyond the largest the library's cost model chooses. Attention has no such table.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bertfuse.errors import BertfuseError
from bertfuse.files import replacing

from .tuning import HEADER, read_rows

# Op, dtype, m or m1-m2, x n x k, and the words behind.
_PRODUCT = re.compile(r"(\w*Gemm\w*) (\w+) (?:(\d+)-)?(\d+)(x\d+x\d+)((?: \w+)*)")
_HALF = {"bfloat16": "float16"}  # one kernel: what was measured of one holds for the other
_Group = tuple[str, str, str, str]  # device; op and dtype; n and k; words


def measured_table(files: Sequence[Path]) -> str:
    """The table's text, by device, op, sizes and rows. Of equal problems the last file's counts, and float16's.

    Raises BertfuseError for what is no tuning file of this release, and where none has a product.
    """
    groups: dict[_Group, dict[int, tuple[int | None, str]]] = defaultdict(dict)
    for file in files:
        rows = read_rows(file)
        if not rows:
            raise BertfuseError(f"{file}: has no rows of this release; measure with 'bertfuse tune'")
        halves = sorted(rows.items(), key=lambda item: " float16 " in item[0][1])
        for (device, problem), line in halves:
            match = _PRODUCT.fullmatch(problem)
            if match is None or match[2] == "tf32":
                continue
            op, dtype, first, last, sizes, words = match.groups()
            group = device, f"{op} {_HALF.get(dtype, dtype)}", sizes, words
            groups[group][int(last)] = int(first) if first else None, line.split("\t")[2]
    if not groups:
        raise BertfuseError("no file has a row of a product")
    lines = [
        f"{device}\t{op} {rows}{sizes}{words}\t{tactic}"
        for (device, op, sizes, words), measured in sorted(groups.items())
        for rows, tactic in _ranges(measured)
    ]
    return "\n".join([HEADER, "# device\tproblem\ttactic", *lines]) + "\n"


def _ranges(measured: dict[int, tuple[int | None, str]]) -> Iterator[tuple[str, str]]:
    """(rows, tactic), neighbours with one tactic joined."""
    joined: list[list[int | str]] = []
    before = 0
    for last, (first, tactic) in sorted(measured.items()):
        start = before + 1 if first is None else max(first, before + 1)
        if joined and joined[-1][2] == tactic and joined[-1][1] == start - 1:
            joined[-1][1] = last
        else:
            joined.append([start, last, tactic])
        before = last
    for start, last, tactic in joined:
        yield (str(last) if start == last else f"{start}-{last}"), str(tactic)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="what 'bertfuse tune' wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the table")
    options = parser.parse_args(None if arguments is None else list(arguments))
    try:
        text = measured_table(options.files)
        with replacing(options.output) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (BertfuseError, OSError) as error:
        print(f"measured_table: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
