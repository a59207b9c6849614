"""Tries many models of each kind, and tells those that are wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.graph_rewrite.adversarial import KINDS, tried


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.graph_rewrite.adversarial", description=__doc__)
    parser.add_argument("--each", type=int, default=100, help="models of each kind")
    parser.add_argument("--only", action="append", choices=KINDS, help="this kind alone; give it again for more")
    parser.add_argument("--seed", type=int, default=0, help="where numbering starts: model N is always the same")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    for kind in options.only or KINDS:
        start, counts, worst = time.perf_counter(), Counter(), {}
        for seed in range(options.seed, options.seed + options.each):
            name, _, verdict = tried(kind, seed)
            counts[verdict.outcome] += 1
            if verdict.bad:
                worst.setdefault(name, []).append((seed, verdict))
        total += counts
        said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
        print(f"{kind}: {options.each} tried: {said} ({time.perf_counter() - start:.0f} s)", flush=True)
        for name, found in worst.items():
            seed, verdict = found[0]
            print(f"  {name}: {len(found)}; seed {seed}: {verdict.text[:230]} [{verdict.feed}]", flush=True)
    print(f"all: {', '.join(f'{n} {outcome}' for outcome, n in sorted(total.items()))}")
    return int(total["wrong"] + total["crashed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
