"""compute-sanitizer over every kernel, tactic and dtype at small odd sizes: memcheck, racecheck, initcheck, synccheck.

    python -m tests.gpu.sanitize [--tools memcheck,racecheck] [--ops FusedGemm] [--dtypes float32] [--tactics 64x48]
    python -m tests.gpu.sanitize --narrow
    python -m tests.gpu.sanitize --packed
    python -m tests.gpu.sanitize --quantized [--tactics "128x192.*block per row"] [--parts 8 --jobs 8]
    python -m tests.gpu.sanitize --plugins

The second form runs LayerNorm's ops at hidden sizes 32 to 256 alone, where one block may hold a row. The third runs
packed rows and sequences alone, the fourth products of 8-bit operands alone, whose rows are rounded by the op or come
and leave in 8 bits, and attention whose context leaves so; by those tactics alone in whose names the regular
expression is found, as any form but the last can, and with --parts shared out to more processes: racecheck needs
minutes for a thousand launches. The last does the same with the tests of the TensorRT plugins. All in several
processes: the tools keep books of every launch, and when these fill their memory (synccheck's and racecheck's did in
one process for all) they do not follow the next one, which counts as an error here. For the same reason give it the GPU
for itself.
Needs compute-sanitizer on the path (it comes with the CUDA toolkit), PyTorch and the library, as the GPU tests do.
Prints a line for each process and tool and exits with 1 where one found something, and where nothing was launched. A
tool that cannot run here fails, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import ROOT
from tests.gpu.sanitized_launches import ATTENTION_OPS, DTYPES, GEMMS, OPS, PACKED_OPS, ROTARY, TWO_PART_OPS, launch_all

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PLUGIN_TESTS = "small or graph or contexts or workspace"  # the others are large, or fail on purpose
# With two host threads racecheck has often not come to an end, whatever the op. It looks at one launch at a time.
ONE_THREAD = ("racecheck",)
TESTS_AT_A_TIME = 8
BARRIERS = 20000
FOUND = 9


def plugin_tests(tool):
    """The ids of those that are for the tool."""
    file = str(Path(__file__).with_name("test_tensorrt_plugins.py"))
    chosen = f"({PLUGIN_TESTS}) and not at_once" if tool in ONE_THREAD else PLUGIN_TESTS
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", file, "-k", chosen]
    listed = subprocess.run(words, capture_output=True, text=True)
    ids = [line for line in listed.stdout.splitlines() if "::" in line]
    if listed.returncode != 0 or not ids:
        sys.exit(f"no tests of the plugins: {listed.stdout}{listed.stderr}")
    return [file + line[line.index("::") :] for line in ids]


def portions(tool, options):
    """What a process each is started for."""
    if options.plugins:
        tests = plugin_tests(tool)
        count = -(-len(tests) // TESTS_AT_A_TIME)
        return [["-m", "pytest", "-v", "-p", "no:cacheprovider", *tests[i::count]] for i in range(count)]
    return [
        [
            *["-m", "tests.gpu.sanitize", "--inside", "--ops", op, "--dtypes", dtype],
            *["--narrow"] * options.narrow,
            *["--packed"] * options.packed,
            *["--quantized"] * options.quantized,
            *["--tactics", options.tactics, "--parts", str(options.parts), "--part", str(part)],
        ]
        for op in options.ops.split(",")
        for dtype in options.dtypes.split(",")
        if ("LayerNorm" in op and op in GEMMS) or not options.narrow
        if op in ("FusedAttention", ROTARY, *TWO_PART_OPS, *PACKED_OPS) or not options.packed
        if op in (*GEMMS, *TWO_PART_OPS, *ATTENTION_OPS, ROTARY) or not options.quantized
        for part in range(options.parts)
    ]


def command(tool, portion):
    words = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    # Of the host it would show Python's frames, at length.
    words += ["--kernel-name", "kernel_substring=bertfuse", "--show-backtrace", "device"]
    if tool == "synccheck":  # by default it follows fewer barriers than a grid of ours has
        words += ["--num-cuda-barriers", str(BARRIERS)]
    if tool == "initcheck":  # or it reports what PyTorch copies to the host: it does not follow who wrote that
        words += ["--check-api-memory-access", "no"]
    return [*words, sys.executable, *portion]


def environment(tool):
    # Without its cache PyTorch gives every tensor an allocation of its own, whose end memcheck knows. Inputs are copied
    # from the host: initcheck knows then that they are written.
    own = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "BERTFUSE_TEST_ROUNDS": "1", "BERTFUSE_TEST_INPUTS": "host"}
    if tool != "memcheck":  # the others see no write by kernels that are not followed, as cuBLASLt's
        own["BERTFUSE_CUBLASLT"] = "0"
    return {**os.environ, **own, "PYTHONUNBUFFERED": "1"}


def output_of(tool, words, seconds):
    """Exit status (None where it did not end in time) and what was printed."""
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        # A session of its own, so that the program under the tool ends with the tool.
        process = subprocess.Popen(
            words, cwd=ROOT, env=environment(tool), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        file.seek(0)
        return status, file.read()


def sanitize(tool, portion, seconds):
    """One tool over one portion; prints what it says in the end, and its output where that is not clean.

    Returns how much was run, and whether nothing was found.
    """
    status, output = output_of(tool, command(tool, portion), seconds)
    summary = re.findall(r"^========= (?:ERROR|RACECHECK) SUMMARY: (.*)$", output, re.MULTILINE)
    done = re.findall(r"^launches: (\d+)$" if "--inside" in portion else r"(\d+) passed", output, re.MULTILINE)
    clean = status == 0 and bool(summary) and bool(done) and "Internal Sanitizer Error" not in output
    said = f"not done after {seconds:.0f} s" if status is None else summary[0] if summary else "no summary"
    lines = [f"    {tool}: {said}"]
    if not clean:
        printed = output.splitlines()
        lines += [" ".join(portion), *(printed if len(printed) <= 50 else [*printed[:40], "...", *printed[-10:]])]
    print("\n".join(lines), flush=True)
    return int(done[0]) if done else 0, clean


def sanitize_all(tool, parts, options):
    """Prints a line for each portion and one for all. Returns whether nothing was found."""
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda part: sanitize(tool, part, options.timeout), parts))
    bad = sum(not clean for _, clean in results)
    ran = sum(count for count, _ in results)
    print(f"{tool:10s} ran {ran} in {len(parts)} processes, {bad or 'none'} of them not clean", flush=True)
    return not bad and ran > 0


def regular_expression(text):
    try:
        return re.compile(text).pattern
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--narrow", action="store_true", help="LayerNorm's ops at hidden sizes 32 to 256 alone")
    parser.add_argument("--packed", action="store_true", help="packed rows and sequences alone")
    parser.add_argument("--quantized", action="store_true", help="products of 8-bit operands alone")
    tactics = "only those in whose names this regular expression is found, as 64x48"
    parser.add_argument("--tactics", default="", type=regular_expression, help=tactics)
    parser.add_argument("--plugins", action="store_true", help="the TensorRT plugins' tests in place of the ops")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time (4 went well on 141 GB)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each process")
    parser.add_argument("--parts", type=int, default=1, help="processes for each op and dtype")
    parser.add_argument("--part", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        names = options.ops.split(","), options.dtypes.split(",")
        forms = options.narrow, options.packed, options.quantized
        return launch_all(*names, *forms, options.tactics, options.part, options.parts)
    if shutil.which("compute-sanitizer") is None:
        sys.exit("compute-sanitizer is not on the path; it comes with the CUDA toolkit")
    results = [sanitize_all(tool, portions(tool, options), options) for tool in options.tools.split(",")]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
