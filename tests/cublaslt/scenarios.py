"""What the library does with cuBLASLt, or with what is wrong with one, on a machine without a GPU.

Each scenario in a process of its own, because the library is looked for once in a process. Our kernels do not run on
the fakes, so what they would be given is looked at: python -m tests.cublaslt.scenarios LIBRARY SCENARIO --seed 1
"""

from __future__ import annotations

import argparse
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.qualify import values
from bertfuse.qualify.bounds import expected
from bertfuse.qualify.check import compare
from bertfuse.qualify.layout import Layout
from bertfuse.qualify.problem import Problem
from bertfuse.runtime import native
from tests.cublaslt.bad_libraries import beside_the_runtime, failing, own, undecided, without, without_biased
from tests.cublaslt.host import Host
from tests.cublaslt.products import (
    FEW_ROWS,
    MEGABYTE,
    check_heuristic,
    check_product,
    draw,
    has_more_than_a_product,
    is_hopper,
    left_to_cublaslt,
    takes_others,
)
from tests.launches import Setting


def products(host: Host, chance: random.Random) -> None:
    """Random products of every op, dtype and device: those that our rule leaves to cuBLASLt are computed there."""
    host.behave(workspace=(chance.choice((0, 4096, MEGABYTE)), 0, 4096))
    seen = 0
    for _ in range(250):
        problem, device = draw(chance), chance.choice(host.devices)
        setting = Setting(device, expected=problem.packed and problem.capacity)
        ran = host.run(problem, setting)
        if is_hopper(host, problem, setting):
            assert "cublaslt" not in ran.tactic and not ran.events and not ran.error
            continue
        if ran.tactic.startswith("mma"):
            assert left_to_cublaslt(problem) != problem, (str(problem), ran.tactic)
            continue
        assert ran.tactic.startswith("cublaslt"), (str(problem), ran.tactic, ran.error)
        assert not ran.error, (str(problem), ran.error)
        for event in ran.of("heuristic"):
            check_heuristic(ran, event)
        check_product(ran, device)
        seen += 1
    assert seen > 100, seen


def tactics(host: Host, chance: random.Random) -> None:
    """Each algorithm is a tactic of its own, by name, and runs with its own workspace; a tuning file names one."""
    host.behave(algorithms=8, workspace=(4096, 256, 512, MEGABYTE, 64 * MEGABYTE, 8192, 0))
    for _ in range(40):
        problem, device = draw(chance, packed=False), chance.choice(host.devices)
        setting = Setting(device)
        names = host.tactics(problem, setting)
        ours = [i for i, name in enumerate(names) if name.startswith("cublaslt")]
        products_named = list(dict.fromkeys(names[i].split(" then")[0] for i in ours))
        assert products_named == ["cublaslt", *(f"cublaslt algorithm {i}" for i in (2, 3, 4))], names
        assert len(set(names)) == len(names)
        host.take()
        for i in ours:
            ran = host.run(problem.with_tactic(i), setting)
            assert not ran.error and ran.tactic == names[i]
            check_product(ran, device)
            algorithm = products_named.index(names[i].split(" then")[0])
            (matmul,) = ran.of("matmul")
            # The last of the four is the one that takes no workspace, which came seventh.
            assert (matmul["algorithm"], matmul["bytes"]) == ((0, 4096), (1, 256), (2, 512), (5, 0))[algorithm]
        if problem.offset == 0:
            ran = host.run(problem, replace(setting, tuned=names[ours[-1]]))
            assert ran.tactic == names[ours[-1]] and not ran.error
        off = host.tactics(problem, replace(setting, flags=native.NO_CUBLASLT))
        assert off == [name for name in names if not name.startswith("cublaslt")]
        ran = host.run(problem, replace(setting, flags=native.NO_CUBLASLT, tuned=names[ours[0]] * (not problem.offset)))
        assert "cublaslt" not in ran.tactic and not ran.events and not ran.error


def short_workspaces(host: Host, chance: random.Random) -> None:
    """Where a call gets less than it asked for, the first algorithm that fits is taken, or another backend."""
    host.behave(workspace=(MEGABYTE, 4096, 0))
    seen = 0
    for _ in range(40):
        problem, device = draw(chance, packed=False), chance.choice(host.devices)
        full = host.run(problem, Setting(device))
        if "cublaslt" not in full.tactic:
            continue
        assert full.of("matmul")[0]["bytes"] == MEGABYTE
        size = full.layout.regions["workspace"].size
        left = chance.choice((0, 4096, 5000)) + (size - MEGABYTE)
        ran = host.run(problem, Setting(device, workspace=(left + 0.5) / size))
        if not ran.error:
            check_product(ran, device)
            assert ran.of("matmul")[0]["bytes"] == (4096 if left >= size - MEGABYTE + 4096 else 0)
            seen += 1
    assert seen > 3, seen


def packed_rows(host: Host, chance: random.Random) -> None:
    """Of packed rows cuBLASLt gets those that are expected, and mma.sync the others.

    Where that cannot, cuBLASLt gets all there is room for, and only where they are at most twice the expected ones.
    """
    host.behave()
    for _ in range(90):
        problem, device = left_to_cublaslt(draw(chance, packed=True)), chance.choice(host.devices)
        capacity = problem.capacity
        expect = chance.randint(FEW_ROWS + 1 if has_more_than_a_product(problem) else 1, capacity)
        setting = Setting(device, expected=expect)
        if is_hopper(host, problem, setting):
            continue
        ran = host.run(replace(problem, hints=True), setting)
        chosen = takes_others(ran) or capacity <= 2 * expect
        assert ran.tactic.startswith("cublaslt") == chosen, (capacity, expect, ran.tactic)
        if "cublaslt" in ran.tactic:
            check_product(ran, device, expected_rows=expect)
        assert host.run(problem, setting).tactic.startswith("cublaslt")  # without hints all are expected


def deterministic(host: Host, chance: random.Random) -> None:
    """Where a row's bits are not to depend on the batch, cuBLASLt, which chooses by m, is left out."""
    for _ in range(30):
        problem, device = draw(chance), chance.choice(host.devices)
        ran = host.run(problem, Setting(device, flags=native.DETERMINISTIC_ROWS))
        assert "cublaslt" not in ran.tactic and not ran.error and not ran.of("matmul")


def shapes_alone(host: Host, chance: random.Random) -> None:
    """An engine is built from shapes: it provides for whatever algorithm is chosen when it runs, and asks for none."""
    for _ in range(30):
        problem, device = left_to_cublaslt(draw(chance, dtype="float32", packed=False)), chance.choice(host.devices)
        call = host.recorder.call(problem, Layout(problem), Setting(device))
        spec = problem.spec
        for tensors, count in ((call.inputs, len(spec.inputs)), (call.outputs, len(spec.outputs))):
            for i in range(count):
                tensors[i].data = None
        size = native.workspace_size(host.recorder.kernel(problem), call)
        hopper_or_later = host.recorder.devices[device] >= 90
        sums = problem.leading[0] * problem.sizes["N"] * 4 if "LayerNorm" in problem.op else 0
        least = (32 if hopper_or_later else 4) * MEGABYTE + sums
        assert least <= size < least + 256, (size, least)
    assert not [event for event in host.take() if "heuristic" in event]


def threads(host: Host, chance: random.Random) -> None:
    """Several threads at once, with the same products and others: right answers, one heuristic for each product."""
    host.behave(workspace=(4096, 0, 0))
    device = host.devices[0]
    problems = [draw(chance, op="FusedGemm", dtype="float32", packed=False) for _ in range(40)]
    problems = [replace(problem, attributes={}, offset=0, tf32=False) for problem in problems]
    faults: list[str] = []

    def work(order: list[Problem]) -> None:
        try:
            for problem in order:
                ran = host.run(problem, Setting(device), take=False)
                rows, n = problem.leading[0], problem.sizes["N"]
                (want,) = expected(problem, values.inputs(problem))
                _, wrong = compare(ran.array("y", np.dtype(np.float32), (rows, n)), want)
                if wrong or ran.error:
                    faults.append(f"{problem}: {wrong} {ran.error}")
        except BaseException as error:
            faults.append(repr(error))

    orders = [chance.sample(problems, len(problems)) for _ in range(6)]
    workers = [threading.Thread(target=work, args=(order,)) for order in orders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    events = host.take()
    assert not faults, faults[:3]
    assert not [event for event in events if "fault" in event]
    assert len([event for event in events if "create" in event]) == 1
    keys = {(p.leading, tuple(p.sizes.items()), "bias" in p.without) for p in problems}
    asked = len([event for event in events if "heuristic" in event])
    assert asked == len(keys), (asked, len(keys))


def bounded(host: Host, chance: random.Random) -> None:
    """Any number of sizes: what is kept of them does not grow without end."""
    host.behave(computes=0)
    assert host.fake is not None
    problem = Problem("FusedGemm", sizes={"K": 3, "N": 2}, leading=(1,), without=("bias",), seed=chance.getrandbits(31))
    kernel, most = host.recorder.kernel(problem), 0
    for rows in range(1, 10_000):
        more = replace(problem, leading=(rows,))
        call = host.recorder.call(more, Layout(more), Setting(host.devices[0]))
        native.workspace_size(kernel, call)
        most = max(most, host.fake.fake_cublaslt_live())
    assert 4 * 1000 < most <= 4 * 4096, most


# name: (what it does, the library that is loaded first, its behaviour, what every line on stderr has)
FAILS = r"x\d+: cuBLASLt 13\.0\.2 failed: CUBLAS_STATUS_NOT_SUPPORTED \(15\); (mma|simt)\b.* takes its place"
LACKS = r"libcublasLt\.so\.13 has no function cublasLtMatmulAlgoGetHeuristic; products run in bertfuse's own kernels"
SCENARIOS: dict[str, tuple[Callable[[Host, random.Random], None], str | None, dict[str, Any], str]] = {
    "products": (products, "libfake_cublaslt.so", {}, ""),
    "tactics": (tactics, "libfake_cublaslt.so", {}, ""),
    "short workspaces": (short_workspaces, "libfake_cublaslt.so", {}, ""),
    "without": (without, None, {}, ""),
    "lacks a function": (own, "libfake_cublaslt_lacking.so", {}, LACKS),
    "too new": (own, "libfake_cublaslt.so", {"version": 140000}, r"is of version 140000, which is not 13\.x"),
    "too old": (own, "libfake_cublaslt.so", {"version": 120903}, r"is of version 120903, which is not 13\.x"),
    "no handle": (own, "libfake_cublaslt.so", {"create": 1}, r"no handle for CUDA device \d: CUBLAS_STATUS_NOT_INIT"),
    "undecided": (undecided, "libfake_cublaslt.so", {}, ""),
    "without biased": (without_biased, "libfake_cublaslt.so", {}, ""),
    "failing": (failing, "libfake_cublaslt.so", {}, FAILS),
    "packed rows": (packed_rows, "libfake_cublaslt.so", {}, ""),
    "deterministic": (deterministic, "libfake_cublaslt.so", {}, ""),
    "shapes alone": (shapes_alone, "libfake_cublaslt.so", {}, ""),
    "threads": (threads, "libfake_cublaslt.so", {}, ""),
    "bounded": (bounded, "libfake_cublaslt.so", {}, ""),
    "beside the runtime": (beside_the_runtime, None, {}, ""),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="libbertfuse_ort_on_fake_cudart.so")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    scenario, fake, behaviour, _ = SCENARIOS[options.scenario]
    library = options.library.resolve()
    host = Host(library, fake, **behaviour)
    scenario(host, random.Random(options.seed))
    print("done")


if __name__ == "__main__":
    main()
