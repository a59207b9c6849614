"""Measure every cell and write the table, or some and print them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from . import cells, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model_coverage", description=__doc__)
    parser.add_argument("--only", help="measure the cells whose name holds this, and write nothing")
    parser.add_argument("--quick", action="store_true", help="those that every test run measures, and write nothing")
    parser.add_argument(
        "--update", action="store_true", help="write what was measured over the table's cells all the same"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes, of up to 2 GB each")
    options = parser.parse_args()
    every = cells.cells()
    chosen = [c for c in every if (not options.only or options.only in str(c)) and (not options.quick or c.quick)]
    known = table.load() if table.FILE.exists() else {}
    start, bad, measured = time.monotonic(), 0, {}
    with (
        tempfile.TemporaryDirectory(prefix="bertfuse-coverage-") as folder,
        ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool,
    ):
        tasks = {cell: pool.submit(cells.measure, cell, Path(folder)) for cell in chosen}
        for cell, task in tasks.items():
            measured[str(cell)] = task.result()
            problems = table.worse(cell, measured[str(cell)], known.get(str(cell)))
            bad += bool(problems)
            print(f"{cell}: {table._shown(measured[str(cell)])}", *problems, sep="; ", flush=True)
    minutes = max(1, round((time.monotonic() - start) / 60))
    print(f"{len(chosen)} cells in {minutes} minutes, {bad} of them worse than in the table or new")
    if (options.only or options.quick) and not options.update:
        return int(bad > 0)
    measured = {name: value for name, value in known.items() if options.update} | measured
    ordered = {str(cell): measured[str(cell)] for cell in every}
    table.save(ordered)
    table.PAGE.write_text(table.page(every, ordered), encoding="utf-8")
    print(f"wrote {table.FILE} and {table.PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
