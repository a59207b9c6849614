"""Scenarios in which there is no cuBLASLt, one that cannot be used, or one that refuses."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from bertfuse.runtime import native
from tests.cublaslt.host import Host
from tests.cublaslt.products import MEGABYTE, OPS, check_product, draw, left_to_cublaslt
from tests.launches import Setting

INTERNAL_ERROR, NOT_SUPPORTED = 14, 15


def without(host: Host, chance: random.Random) -> None:
    """No library in the process: our own kernels, and nothing is said. One that comes later is found then."""
    own(host, chance)
    assert not any("cublaslt" in backends for backends in host.backends)
    host.load(host.library.with_name("libfake_cublaslt.so"))
    problem = left_to_cublaslt(draw(chance, dtype="float32", packed=False))
    assert host.run(problem, Setting(host.devices[0])).tactic.startswith("cublaslt")
    assert all("cublaslt" in gpu.backends.decode().split() for gpu in native.gpus(host.library))


def own(host: Host, chance: random.Random) -> None:
    """Whatever is wrong with the library, calls run in our kernels."""
    for _ in range(30):
        problem, device = draw(chance), chance.choice(host.devices)
        ran = host.run(problem, Setting(device))
        assert "cublaslt" not in ran.tactic and not ran.error and not ran.of("matmul"), (ran.tactic, ran.error)
        assert ran.launches and all(launch["error"] == 0 for launch in ran.launches)
        assert not any(name.startswith("cublaslt") for name in host.tactics(problem, Setting(device)))


def undecided(host: Host, chance: random.Random) -> None:
    """Heuristics that fail, that find nothing, or whose results are no algorithms: the next backend, in silence."""
    cases = ({"heuristic": INTERNAL_ERROR}, {"heuristic": NOT_SUPPORTED}, {"algorithms": 0}, {"states": (15, 15, 15)})
    for case in (*cases, {"workspace": (64 * MEGABYTE,) * 3}):
        host.behave(**case)
        own(host, chance)
    host.behave(states=(NOT_SUPPORTED, 0, 0))
    problem = left_to_cublaslt(draw(chance, dtype="float32", packed=False))
    ran = host.run(problem, Setting(host.devices[0]))
    assert ran.of("matmul")[0]["algorithm"] == 1  # the first that is one


def without_biased(host: Host, chance: random.Random) -> None:
    """No algorithm adds a bias: the kernel behind the product does."""
    host.behave(biased=0)
    for _ in range(40):
        problem = draw(chance, op=chance.choice(OPS[:2]))
        ran = host.run(problem, Setting(host.devices[-1], expected=problem.packed and problem.capacity))
        if "cublaslt" in ran.tactic:
            check_product(ran, host.devices[-1], adds_bias=False)


def failing(host: Host, chance: random.Random) -> None:
    """A product that fails runs in our kernels, at once and from then on; asked for by its number, it is an error."""
    failed = 0
    while failed < 10:
        problem, device = draw(chance, dtype="float32", packed=False), chance.choice(host.devices)
        problem = replace(problem, tf32=False)
        host.behave()
        names = host.tactics(problem, Setting(device))
        numbers = [i for i, name in enumerate(names) if name.startswith("cublaslt")]
        chosen = host.run(problem, Setting(device))
        if "mma" in chosen.tactic:  # split along k, or on a device whose tensor cores do exact float32 faster
            continue
        assert chosen.tactic.startswith("cublaslt")
        failed += 1
        host.behave(matmul=INTERNAL_ERROR)
        ran = host.run(problem.with_tactic(numbers[0]), Setting(device))
        assert ran.error == f"{problem.op}: cuBLASLt 13.0.2 failed: CUBLAS_STATUS_INTERNAL_ERROR (14)", ran.error
        after = host.run(problem, Setting(device))
        assert not after.error and not after.of("matmul") and "cublaslt" not in after.tactic and after.launches
        assert host.tactics(problem, Setting(device)) == names  # numbers stay
    told: set[tuple[object, ...]] = set()  # what a message names: products that differ in more are told of, too
    while len(told) < 20:
        problem, device = draw(chance, op=chance.choice(OPS[:2]), dtype="float32", packed=False), host.devices[0]
        named = (problem.op, problem.leading, *problem.sizes.items())
        if named in told:
            continue
        told.add(named)
        host.behave(matmul=NOT_SUPPORTED)
        ran = host.run(problem, Setting(device))
        assert not ran.error and ran.tactic.startswith("cublaslt") and len(ran.of("matmul")) == 1 and ran.launches
        again = host.run(problem, Setting(device))
        assert not again.error and not again.of("matmul") and "cublaslt" not in again.tactic


def beside_the_runtime(host: Host, chance: random.Random) -> None:
    """In the places of pip's packages, seen from the CUDA runtime that the process has loaded."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("skipped: no C compiler")
        return
    with tempfile.TemporaryDirectory() as folder:
        new = chance.random() < 0.5  # CUDA 13's packages share a folder
        runtime = Path(folder, "nvidia", "cu13" if new else "cuda_runtime", "lib")
        cublas = runtime if new else Path(folder, "nvidia", "cublas", "lib")
        for path in {runtime, cublas}:
            path.mkdir(parents=True)
        shutil.copy(host.library.with_name("libfake_cublaslt.so"), cublas / "libcublasLt.so.13")
        made = runtime / "libcudart.so.13"
        subprocess.run(
            [compiler, "-shared", "-x", "c", os.devnull, "-o", str(made), "-Wl,-soname,libcudart.so.13"], check=True
        )
        problem = left_to_cublaslt(draw(chance, dtype="float32", packed=False))
        assert "cublaslt" not in host.run(problem, Setting(host.devices[0])).tactic
        ctypes.CDLL(str(made))
        assert host.run(problem, Setting(host.devices[0])).tactic.startswith("cublaslt")
