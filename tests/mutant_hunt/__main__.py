"""Hunts in mutants of every export, and prints what came of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bertfuse.qualify.mutants import hunt
from tests.mutant_hunt.exports import BEYOND_BERT, EXPORTS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutant_hunt", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="mutants that run, of all exports together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="exports whose name holds this")
    parser.add_argument("--models", type=Path, help="folder of exports, made there where absent")
    parser.add_argument("-o", "--out", type=Path, default=Path(".cache/mutants-found"), help="folder for findings")
    parser.add_argument("--families", action="store_true", help="families beyond BERT")
    options = parser.parse_args()
    chosen = [e for e in (BEYOND_BERT if options.families else EXPORTS) if options.only in str(e)]
    outcomes: Counter[str] = Counter()
    wrong, runs, start = 0, 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bertfuse-mutants-") as temporary:
        for number, export in enumerate(chosen):
            path = export.make(options.models or Path(temporary))
            share = options.count * (number + 1) // len(chosen) - options.count * number // len(chosen)
            out = options.out / path.parent.name
            # A seed of its own for each, or the same numbers would draw the same changes of them all.
            report = hunt(path, count=share, seed=options.seed * 1000 + number, out=out)
            print(f"{export}: {report.summary()}", flush=True)
            for finding in report.findings:
                print(f"  {finding.kind}, mutant {finding.number} (and {finding.same} like it): {finding.text}")
                print(
                    *(f"      {change}" for change in finding.changes), f"      {finding.command}", sep="\n", flush=True
                )
            outcomes += report.outcomes
            runs += report.runs
            wrong += sum(1 + finding.same for finding in report.findings)
    tried = sum(n for outcome, n in outcomes.items() if outcome != "invalid")
    print(
        f"{tried} mutants of {len(chosen)} exports (and {outcomes['invalid']} that do not run) in "
        f"{(time.monotonic() - start) / 60:.0f} minutes, seed {options.seed}, {runs} inputs: "
        f"{outcomes['equal']} fused and equal, {outcomes['partly']} fused in part and equal, "
        f"{outcomes['refused']} refused, {wrong} wrong"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
