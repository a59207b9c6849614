"""The launch paths of every CUDA op without a GPU: on a CUDA runtime that records launches (fake_cudart/).

What a device would refuse is an error there: grids, blocks, clusters, shared memory, registers, tensor maps.
"""

import json
import re
import secrets
import subprocess
import sys

import pytest

import bertfuse
from bertfuse.graph_rewrite import fuse_file
from bertfuse.qualify.problem import parse
from tests import ROOT
from tests.launches import BASE, Recorded, Setting, faults
from tests.plugins.recording_library import BUILT, LIBRARY
from tests.tiny_models import exported


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, which is given the library's path and the arguments."""
    command = [sys.executable, "-c", script, LIBRARY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)


@BUILT
def test_random_calls_launch_what_devices_take():
    seed = secrets.randbits(31)
    run = subprocess.run(
        [sys.executable, "-m", "tests.launches", LIBRARY, f"--seed={seed}", "--count=4000", "--tactics=0.2"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
    )
    assert run.returncode == 0, f"seed {seed}: {run.stdout[-4000:]}{run.stderr[-4000:]}"
    calls, launches = map(int, re.search(r"(\d+) calls, (\d+) launches, 0 wrong", run.stdout).groups())
    assert launches > calls / 2, run.stdout


@BUILT
def test_kernels_by_mma_sync_have_all_they_keep_in_registers():
    """None for 8.0 and later spills, and none indexes an array, which would be in memory, too.

    9.0 is left out: products by wgmma stand in front there, and of 8-bit floats those by mma.sync spill 8 bytes.
    """
    script = r"""
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.fake_cudart_kernels.restype = ctypes.c_char_p
print(library.fake_cudart_kernels().decode())
"""
    run = _run(script)
    assert run.returncode == 0, run.stderr
    kernels = [json.loads(line) for line in run.stdout.splitlines() if line]
    kernels = [kernel for kernel in kernels if kernel["architecture"] not in (75, 90)]
    if not kernels:
        pytest.skip("was compiled for 7.5 and 9.0 alone")
    kernels = [kernel for kernel in kernels if re.search("attention_mma|gemm_mma", kernel["name"])]
    assert len(kernels) > 100 and all(kernel["registers"] > 0 for kernel in kernels)
    assert not [kernel for kernel in kernels if kernel["frame_bytes"] > 0]


_ROWS, _REAL = 65536, 4096
_PACKED = f"tactic=-1 packed=32x{_REAL // 32} hints seed=1"
_ATTENTION = f"B=512 S=128 {{}} without=mask{{}} {_PACKED}"
_VARIANT = (
    "C=128 D={} R={} J=1 G=1 L=3 P=2 M=3 num_heads={} kv_num_heads={} scale=0.125 pairs=halves window_left={} "
    "window_right={} bias_left=1 positions_left=1 hidden_queries=as_others"
)
_ROTARY = "B=512 S=128 K=768 N=2304 C=128 R=32 num_heads=12 kv_num_heads=12 pairs={} " + _PACKED
_PRODUCT = "rows=65536 K={} N={} " + _PACKED


@BUILT
@pytest.mark.parametrize(
    "op, sizes",
    [
        ("FusedGemm", _PRODUCT.format(768, 2304)),
        ("FusedGemmGelu", _PRODUCT.format(768, 3072)),
        ("FusedGatedGemm", _PRODUCT.format(768, 6144)),
        ("FusedGatedGemm", _PRODUCT.format(768, 2304)),
        ("FusedGemmLayerNorm", _PRODUCT.format(3072, 768)),
        ("FusedGemmGeluLayerNorm", _PRODUCT.format(768, 768)),
        ("FusedGemmResidualNorm", "norm=rms " + _PRODUCT.format(1152, 768)),
        ("FusedGemmResidualNorm", "norm=rms without=product_gamma " + _PRODUCT.format(1152, 768)),
        ("FusedGemmResidualNorm", "norm=layer without=product_gamma " + _PRODUCT.format(768, 768)),
        ("FusedRMSNorm", f"rows=65536 N=768 {_PACKED}"),
        ("FusedRMSNorm", f"rows=65536 N=770 {_PACKED}"),
        ("FusedGemmRotary", _ROTARY.format("halves")),
        ("FusedGemmRotary", _ROTARY.format("neighbours")),
        ("FusedAttention", _ATTENTION.format("H=768 num_heads=12 scale=0.125", "")),
        *(  # Nomic's, ModernBERT's, Qwen3's, and heads that no vectors fit
            ("FusedAttentionVariant", _ATTENTION.format(_VARIANT.format(*sizes), f",distance_bias,positions{without}"))
            for *sizes, without in [
                (64, 32, 12, 12, -1, -1, ",q_gamma,k_gamma"),
                (64, 32, 12, 12, 64, 64, ",q_gamma,k_gamma"),
                (128, 64, 16, 8, -1, 0, ",bias"),
                (18, 9, 12, 12, -1, -1, ",q_gamma,k_gamma"),
            ]
        ),
        ("EmbedLayerNorm", f"B=512 S=128 V=100 H=768 P=128 T=2 {_PACKED}"),
    ],
)
def test_packed_rows_that_are_not_there_get_no_blocks(op, sizes):
    """Grids are sized for the rows that are expected, or for the device, on every GPU and in every type."""
    script = r"""
import json, sys
from pathlib import Path
from tests.launches import Recorder, Setting
from bertfuse.qualify.problem import parse
recorder = Recorder(Path(sys.argv[1]))
found = []
for device in range(len(recorder.devices)):
    for dtype in ("float16", "bfloat16", "float32", "float32 tf32"):
        op, sizes = sys.argv[2:4]
        dtype, _, tf32 = dtype.partition(" ")
        problem = parse(f"{op} {dtype} {sizes} {tf32}".strip())
        for expected in (None, int(sys.argv[4])):
            made = recorder.run(problem, Setting(device, expected=expected))
            if made.error:
                assert made.code == 2 or "CUDA error 209" in made.error, made.error
                continue
            for place, event in enumerate(e for e in made.events if "launch" in e):
                x, y, z = event["grid"]
                found.append([f"{dtype} {tf32} on {recorder.devices[device]}", made.tactic, expected, x * y * z])
print(json.dumps(found))
"""
    arguments = [sys.executable, "-c", script, LIBRARY, op, sizes, str(_REAL)]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    most = {}
    for call, _, expected, blocks in found:
        most[call, expected] = max(blocks, most.get((call, expected), 0))
    assert most
    for call, tactic, expected, blocks in found:
        if expected is not None:
            # A grid of fewer blocks than rows are real may be the device's, whose blocks take one tile after the other.
            assert blocks <= max(_REAL, most[call, None] // 3), (call, tactic, blocks)


@BUILT
@pytest.mark.parametrize(
    "problem",
    [
        "FusedGemmResidualNorm {} rows=133 K=120 N=64 norm=rms tactic=-1 offset=3@product_gamma without=beta seed=1",
        "FusedAttentionVariant {} B=2 S=128 "
        + _VARIANT.format(64, 32, 4, 2, -1, 0)
        + " tactic=-1 offset=1@qkv without=bias,distance_bias,positions seed=1",
    ],
)
def test_one_tensor_that_is_not_aligned(problem):
    """Another kernel takes it, on every GPU that has one for the type."""
    script = r"""
import sys
from pathlib import Path
from tests.launches import Recorder, Setting, faults
from bertfuse.qualify.problem import parse
recorder = Recorder(Path(sys.argv[1]))
for device in range(len(recorder.devices)):
    for dtype in ("float16", "bfloat16", "float32"):
        made = recorder.run(parse(sys.argv[2].format(dtype)), Setting(device))
        print(recorder.devices[device], dtype, made.tactic, made.error, *faults(made), sep="|")
"""
    run = _run(script, problem)
    assert run.returncode == 0, run.stderr
    lines = [line.split("|") for line in run.stdout.splitlines()]
    assert len(lines) > 6
    for _, _, _, error, *found in lines:
        assert not found and (not error or "compute capability" in error), run.stdout


@BUILT
def test_tactics_and_what_chose_them():
    """The library has an H200's table; other sizes and GPUs go by the model; a tuning file goes before both."""
    script = r"""
import sys
import bertfuse
from bertfuse.runtime import native
from tests.launches import Recorder, Setting
from bertfuse.qualify.layout import Layout
from bertfuse.qualify.problem import parse
from pathlib import Path
recorder = Recorder(Path(sys.argv[1]))
def chosen(problem, device=0, tuning=None):
    problem = parse(problem)
    call = recorder.call(problem, Layout(problem), Setting(device))
    call.tuning = tuning
    by = native.chosen_by(problem.op, call, sys.argv[1])
    return native.tactic_name(problem.op, call, path=sys.argv[1]), by
usual = "FusedGemm float16 rows=4096 K=768 N=2304 tactic=-1 without=bias seed=1"
print(*chosen(usual), sep="; ")
print(*chosen(usual.replace("K=768", "K=776")), sep="; ")
print(*chosen(usual, 1), sep="; ")
row = "FusedGemm float16 4000-5000x2304x768\tsm90 64x64 cluster 1x1"
text = f"bertfuse tuning 1, library {bertfuse.__version__}\n" + recorder._gpus[0] + "\t" + row + "\n"
tuning, remark = native.tuning_of(text, "file", sys.argv[1])
print(*chosen(usual, 0, tuning), remark, sep="; ")
print(*chosen(usual.replace("rows=4096", "rows=5001"), 0, tuning), sep="; ")
"""
    run = _run(script)
    usual, other_size, other_gpu, tuned, beyond = run.stdout.splitlines()
    assert usual.startswith("sm90 ") and usual.endswith("; measured"), run.stderr
    assert other_size.endswith("; model") and other_gpu.startswith("mma ") and other_gpu.endswith("; model")
    assert tuned == "sm90 64x64 cluster 1x1; tuning file; "
    assert beyond.endswith("; measured")


@BUILT
def test_tuned_tactics_of_results_in_8_bits():
    """A row does not say whether y is wanted in 8 bits: calls that want it take its tactic, others leave it."""
    script = r"""
import sys
from pathlib import Path
from tests.launches import Recorder, Setting, faults
from bertfuse.qualify.problem import parse
recorder = Recorder(Path(sys.argv[1]))
device = recorder.devices.index(90)
for to in ("float8e4m3fn", "int8"):
    for op, n, tactic, epsilon in (
        ("FusedGemmGelu", 3072, "sm90 64x192 cluster 1x1", ""),
        ("FusedGemmGelu", 3072, "sm90 128x96 stages 3 cluster 2x1", ""),
        ("FusedGemmLayerNorm", 768, "sm90 64x192 cluster 1x4", " epsilon=1e-05 without=y_tensor_scale"),
    ):
        for writes in (f" writes={to}", ""):
            text = f"{op} float16 rows=1024 K=768 N={n}{epsilon} weights={to}{writes} tactic=-1 seed=1"
            made = recorder.run(parse(text), Setting(device, tuned=tactic))
            print(writes != "", made.tactic == tactic, made.error, *faults(made), sep="|")
"""
    run = _run(script)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 12
    for line in lines:
        wanted, taken, error, *found = line.split("|")
        assert wanted == taken and not error and not found, run.stdout


@BUILT
def test_all_blocks_of_few_rows_find_room_at_once():
    """On an H200 narrow tiles of 8-bit operands run two to a multiprocessor where there are too many for one each."""
    script = r"""
import json, sys
from pathlib import Path
from tests.launches import Recorder, Setting
from bertfuse.qualify.problem import parse
recorder = Recorder(Path(sys.argv[1]))
device = recorder.devices.index(90)
for text, expected in json.loads(sys.argv[2]):
    made = recorder.run(parse(text), Setting(device, expected=expected))
    launch, = [event for event in made.events if "OneTile" in event.get("launch", "")]
    print(made.tactic, launch["grid"][0], launch["shared"], sep="|")
"""
    gemm = "{} float16 rows={} K={} N={} weights=float8e4m3fn {} tactic=-1 seed=1"
    writes = "writes=float8e4m3fn"
    calls = [
        (gemm.format("FusedGemm", 16, 768, 2304, ""), None),  # 72 tiles
        (gemm.format("FusedGemm", 128, 768, 2304, ""), None),  # 144
        (gemm.format("FusedGemmGelu", 128, 768, 3072, writes), None),  # 192
        (gemm.format("FusedGemmGelu", 128, 1024, 4096, writes), None),  # 256
        # 192 of the 128 rows that are expected, launched for an eighth more.
        (gemm.format("FusedGemm", 256, 1024, 3072, "packed=2x64 hints"), 128),
    ]
    run = _run(script, json.dumps(calls))
    assert run.returncode == 0, run.stderr
    found = [line.split("|") for line in run.stdout.splitlines()]
    assert [tactic for tactic, *_ in found] == ["sm90 64x32 cluster 1x1"] * len(calls), run.stdout
    one, *two = [(int(blocks), (int(shared) + 1024) / (228 << 10)) for _, blocks, shared in found]
    assert one[0] <= 132 and one[1] > 1 / 2
    assert all(blocks > 132 and 1 / 3 < share <= 1 / 2 for blocks, share in two), run.stdout


@BUILT
def test_measured_attention_is_found_by_its_name():
    """Every tactic of a call, in float32 and TF32 too, whose tiles float16 does not have."""
    seed = secrets.randbits(31)
    script = r"""
import random, sys
from pathlib import Path
from tests.launches import Recorder, Setting
from bertfuse.qualify.problem import parse
recorder, chance = Recorder(Path(sys.argv[1])), random.Random(int(sys.argv[2]))
for _ in range(40):
    size, dtype = chance.choice((32, 64, 96, 128, 256)), chance.choice(("float32", "float32 tf32", "float16"))
    device = chance.choice([i for i, capability in enumerate(recorder.devices) if capability >= 80])
    problem = parse(f"FusedAttention {dtype} B=2 S={chance.randint(1, 600)} H={size * 2} num_heads=2 scale=0.1 seed=1")
    for tactic in recorder.tactics(problem, Setting(device))[1:]:
        name = recorder.run(problem.with_tactic(tactic), Setting(device)).tactic
        made = recorder.run(problem, Setting(device, tuned=name))
        assert made.tactic == name, (str(problem), device, made.tactic, name)
print("done")
"""
    run = _run(script, str(seed))
    assert run.stdout == "done\n", f"seed {seed}: {run.stderr[-2000:]}"


@BUILT
def test_rotated_inside_of_attention_there_is_one_launch():
    """On Hopper, of every such tactic, which is found by its name; others turn heads in a launch before."""
    script = r"""
import sys
from pathlib import Path
from tests.launches import Recorder, Setting
from bertfuse.qualify.problem import parse
recorder, seen = Recorder(Path(sys.argv[1])), 0
for device in [i for i, capability in enumerate(recorder.devices) if capability == 90]:
    for problem in sys.argv[2:]:
        problem = parse(problem)
        for tactic in recorder.tactics(problem, Setting(device))[1:]:
            made = recorder.run(problem.with_tactic(tactic), Setting(device))
            assert not made.error, made.error
            rotates, launches = ", rotates" in made.tactic, sum("launch" in event for event in made.events)
            assert launches == (1 if rotates else 2), (made.tactic, launches)
            assert recorder.run(problem, Setting(device, tuned=made.tactic)).tactic == made.tactic
            seen += rotates
print(seen > 5)
"""
    sizes = _VARIANT.format(64, 32, 12, 12, 64, 64)
    packed = "FusedAttentionVariant float16 " + _ATTENTION.format(sizes, ",distance_bias,positions,q_gamma,k_gamma")
    problems = [packed, packed.replace(_PACKED, "tactic=-1 seed=1")]
    run = _run(script, *problems)
    assert run.stdout == "True\n", run.stderr[-2000:]


@BUILT
def test_rotated_in_the_epilogue_of_a_product_there_is_one_launch():
    """On Hopper, of tiles of whole heads of 64 in halves; else heads are turned in a launch behind the product."""
    script = r"""
import sys
from pathlib import Path
from tests.launches import Recorder, Setting
from bertfuse.qualify.problem import parse
recorder, seen = Recorder(Path(sys.argv[1])), 0
for device in [i for i, capability in enumerate(recorder.devices) if capability == 90]:
    for text in sys.argv[2:]:
        problem = parse(text)
        for tactic in recorder.tactics(problem, Setting(device))[1:]:
            made = recorder.run(problem.with_tactic(tactic), Setting(device))
            assert not made.error, made.error
            launches = [event["launch"] for event in made.events if "launch" in event]
            rotates = "halves" in text and made.tactic.startswith(("sm90 128x192", "sm90 128x128", "sm90 64x64"))
            assert len(launches) == (1 if rotates else 2), (made.tactic, launches)
            assert rotates or "ChangeHeads" in launches[1], (made.tactic, launches)
            seen += rotates
        chosen = recorder.run(problem, Setting(device))
        launches = [event["launch"] for event in chosen.events if "launch" in event]
        assert len(launches) == (1 if "halves" in text else 2), chosen.tactic
print(seen > 20)
"""
    problems = ["FusedGemmRotary float16 " + _ROTARY.format(pairs) for pairs in ("halves", "neighbours")]
    problems += [text.replace(_PACKED, "tactic=-1 seed=1") for text in problems]
    run = _run(script, *problems)
    assert run.stdout == "True\n", run.stderr[-2000:]


@BUILT
def test_a_gpu_whose_tensor_cores_multiply_float16_alone():
    script = r"""
import sys
from pathlib import Path
from tests.launches import Recorder, Setting
from bertfuse.qualify.problem import parse
recorder = Recorder(Path(sys.argv[1]))
t4 = recorder.devices.index(75)
for dtype in ("float16", "float32", "bfloat16"):
    for problem in ("FusedGemm {} rows=512 K=768 N=2304 tactic=-1 seed=1",
                    "FusedAttention {} B=2 S=128 H=768 num_heads=12 scale=0.125 tactic=-1 without=mask seed=1"):
        made = recorder.run(parse(problem.format(dtype)), Setting(t4))
        print(made.error or made.tactic)
"""
    run = _run(script)
    lines = run.stdout.splitlines()
    assert len(lines) == 6, run.stderr
    assert lines[0].startswith("mma ") and lines[1].startswith("mma ") and lines[2].startswith("simt"), lines
    assert lines[3].startswith("simt") and all("bfloat16" in line and "7.5" in line for line in lines[4:]), lines


@BUILT
def test_tactics_of_a_model(tmp_path):
    """Of each problem that has a choice: by the H200's table where it has the sizes, which are no model's here."""
    fuse_file(exported("fill-mask"), tmp_path / "m.onnx", dtype="fp16")
    script = r"""
import json, sys
from pathlib import Path
from bertfuse.analysis.tactics import chosen_tactics
found = chosen_tactics(sys.argv[2], [(2, 7), (1, 14)], library=Path(sys.argv[1]))
print(json.dumps([one.to_dict() for one in found]))
"""
    arguments = [sys.executable, "-c", script, LIBRARY, tmp_path / "m.onnx"]
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert {one["problem"].split()[0] for one in found} >= {"FusedGemm", "FusedGemmLayerNorm", "FusedAttention"}
    bertfuse.quantize(tmp_path / "m.onnx", tmp_path / "int8.onnx")
    run = subprocess.run(
        [*arguments[:-1], tmp_path / "int8.onnx"], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    quantized = [one for one in json.loads(run.stdout) if " float16-int8 " in one["problem"]]
    assert {one["problem"].split()[0] for one in quantized} >= {"FusedGemm", "FusedGemmLayerNorm", "FusedGemmGelu"}
    for one in quantized:
        assert one["tactic"].startswith(("sm90 ", "mma ", "simt")) and one["chosen_by"] == "model", one
    for one in found:
        assert one["tactic"] and one["launches"] > 0
        assert one["chosen_by"] == ("" if one["problem"].startswith("FusedAttention") else "model"), one


@BUILT
def test_quantised_calls():
    """x gets 8 bits in a launch of its own, before the product; without room for them nothing is launched."""
    seed = secrets.randbits(31)
    command = [sys.executable, "-m", "tests.plugins.quantized_launches", LIBRARY, str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert run.returncode == 0, f"seed {seed}: {run.stdout[-4000:]}{run.stderr[-4000:]}"
    found = json.loads(run.stdout)
    backends = set()
    for one in found:
        names = [name for name, _ in one["launches"]]
        assert not any(error for _, error in one["launches"]) and not one["beyond"], (seed, one)
        if one.get("short"):
            assert "the workspace has" in one["error"] and not names, (seed, one)
        elif "error" in one:
            assert "too many for its LayerNorm" in one["error"], (seed, one)
        elif one["op"] == "EmbedLayerNorm":
            assert len(names) == 1 and "EmbedLayerNormKernel" in names[0], (seed, one)
        else:
            backends.add(one["tactic"].split()[0])
            rows, n, k = one["sizes"]
            assert f" {one['dtype']} {rows}x{n}x{k}" in one["problem"], (seed, one)
            assert one["workspace"] >= rows * (k + 4), (seed, one)
            assert "QuantizeRowsKernel" in names[0] and "gemm" in names[1].lower(), (seed, one)
            assert len(names) == (3 if "then LayerNorm" in one["tactic"] else 2), (seed, one)
            multiplies = k % 16 == 0 and not (one["dtype"].endswith("fp8") and one["capability"] < 89)
            backend = one["tactic"].split()[0]
            assert backend == "simt" or multiplies, (seed, one)
            assert backend != "sm90" or (one["capability"] == 90 and "float32" not in one["dtype"]), (seed, one)
    assert backends == {"sm90", "mma", "simt"}, (seed, backends)


def _record(problem: str, *, address: int, error: int = 0) -> Recorded:
    launch = {"launch": "Kernel", "error": error, "parameters": [address.to_bytes(8, "little").hex()]}
    return Recorded(parse(problem), Setting(), regions=[("x", BASE, 64), ("y", BASE + 256, 64)], events=[launch])


@pytest.mark.parametrize(
    "address, error, said",
    [
        (BASE + 256, 0, None),
        (BASE + 320, 0, "in no tensor"),  # right behind y
        (BASE, 0, "nothing that knows its output y"),
        (BASE + 256, 1, "refuses"),
    ],
)
def test_faults_are_seen(address, error, said):
    problem = "FusedGemm float32 rows=4 K=4 N=4 tactic=-1 seed=1"
    found = list(faults(_record(problem, address=address, error=error)))
    assert (not found) if said is None else any(said in fault for fault in found), found
