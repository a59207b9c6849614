"""How fast right kernels are: Fast@p over random problems of encoders' sizes, against PyTorch eager and torch.compile.

Fast@p is the share of all problems that are right and at least p times as fast as the peer (KernelBench's measure).
All are timed as CUDA graphs of the same number of runs, on the same tensors. Needs PyTorch.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite.ops import MODEL_OPS, OPS
from bertfuse.measuring import cuda_graphs
from bertfuse.runtime import native

from . import values
from .peers import FUNCTIONS
from .problem import Problem
from .tolerances import TOLERANCES

THRESHOLDS = (1.0, 1.2, 1.5, 2.0)
EAGER, COMPILED = "PyTorch eager", "torch.compile"
HIDDEN = ((128, 2), (256, 4), (312, 12), (384, 12), (512, 8), (768, 12), (1024, 16), (1280, 16))
SIZES = ((1, 16), (1, 128), (4, 64), (8, 128), (16, 384), (32, 128), (64, 128), (16, 512))
_LAUNCHES, _REPLAYS = 20, 7


@dataclass
class Row:
    """One problem: microseconds of one run of ours and of each peer, and whether ours is right ("": it is)."""

    problem: str
    op: str
    dtype: str
    ours: float
    peers: dict[str, float] = field(default_factory=dict)
    wrong: str = ""


@dataclass
class SpeedReport:
    """The rows, peers that could not run, and for whole models the share of GPU time that our kernels take."""

    device: str
    seed: int
    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    profile: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def findings(self) -> list[Row]:
        return [row for row in self.rows if row.wrong]

    def fast(self, peer: str, threshold: float, op: str | None = None) -> float:
        """Fast@threshold against the peer: over the problems that the peer runs."""
        rows = [row for row in self.rows if peer in row.peers and op in (None, row.op)]
        good = [row for row in rows if not row.wrong and row.peers[peer] >= threshold * row.ours]
        return len(good) / len(rows) if rows else math.nan

    def table(self) -> list[list[str]]:
        """A row for each peer and op: problems, the geometric mean of the speed-up, and Fast@p."""
        found = []
        peers = dict.fromkeys(peer for row in self.rows for peer in row.peers)
        for peer in peers:
            for op in [None, *dict.fromkeys(row.op for row in self.rows)]:
                gains = [row.peers[peer] / row.ours for row in self.rows if peer in row.peers and op in (None, row.op)]
                if gains:
                    shares = [f"{self.fast(peer, threshold, op):.0%}" for threshold in THRESHOLDS]
                    mean = f"{statistics.geometric_mean(gains):.2f}"
                    found.append([peer, op or "all", str(len(gains)), mean, *shares])
        return found

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {
            "fast": {
                peer: {str(threshold): self.fast(peer, threshold) for threshold in THRESHOLDS}
                for peer in dict.fromkeys(peer for row in self.rows for peer in row.peers)
            }
        }


def draw(rng: np.random.Generator, ops: Sequence[str], dtypes: Sequence[str]) -> Problem:
    """A problem of an encoder's size: one of its ops at one of its layers."""
    hidden, heads = HIDDEN[rng.integers(len(HIDDEN))]
    batch, sequence = SIZES[rng.integers(len(SIZES))]
    op = str(rng.choice(ops))
    problem = Problem(op, str(rng.choice(dtypes)), seed=int(rng.integers(1 << 31)))
    if op == "RotaryTables":
        return replace(problem, leading=(batch,), sizes={"C": sequence, "R": hidden // heads // 2})
    if op == "FusedRMSNorm":
        return replace(problem, leading=(batch, sequence), sizes={"N": hidden})
    if op == "EmbedLayerNorm":
        words_alone = ("position_table", "position_ids", "token_type_ids", "token_type_table")
        sizes = {"B": batch, "S": sequence, "V": 3001, "H": hidden, "P": 512, "T": 2}
        return replace(problem, sizes=sizes, without=words_alone if rng.integers(2) else ())
    if "K" not in {axis.symbol for tensor in OPS[op].inputs for axis in tensor.trailing}:
        attributes: dict[str, Any] = {"num_heads": heads}
        if op == "FusedAttentionVariant":  # ModernBERT's
            head = hidden // heads
            attributes |= {"kv_num_heads": heads, "scale": float(np.float32(1 / math.sqrt(head)))}
            attributes |= {"window_left": 64, "window_right": 64}
            sizes = {"B": batch, "S": sequence, "C": sequence, "D": head, "R": head // 2}
            without = ("bias", "q_gamma", "k_gamma", "distance_bias", "positions")
            mask = str(rng.choice(["ones", "right"]))
            return replace(problem, sizes=sizes, attributes=attributes, mask=mask, without=without)
        if op == "FusedAttention":
            attributes["scale"] = float(np.float32(1 / math.sqrt(hidden // heads)))
        sizes = {"B": batch, "S": sequence, "H": hidden}
        return replace(problem, sizes=sizes, attributes=attributes, mask=str(rng.choice(["ones", "right"])))
    wide = bool(rng.integers(2))
    wider = {"FusedGemm": 3, "FusedGemmGelu": 4, "FusedGatedGemm": 2}.get(op, 1)
    ends = op in ("FusedGemmLayerNorm", "FusedGemmResidualNorm")
    k, n = 4 * hidden if wide and ends else hidden, wider * hidden
    left_out = {"FusedGemmGeluLayerNorm": ("residual",), "FusedGemmResidualNorm": ("product_gamma",)}
    without = ("bias",) if op == "FusedGemm" and wide else left_out.get(op, ())
    if op == "FusedGemmRotary":
        sizes = {"B": batch, "S": sequence, "K": hidden, "N": 3 * hidden, "C": sequence, "R": hidden // heads // 2}
        attributes = {"num_heads": heads, "kv_num_heads": heads}
        return replace(problem, sizes=sizes, attributes=attributes, without=("bias",))
    return replace(problem, leading=(batch, sequence), sizes={"K": k, "N": n}, without=without)


def speed(
    *,
    library: Path,
    device: int = 0,
    minutes: float = 5.0,
    seed: int | None = None,
    ops: Sequence[str] = MODEL_OPS,
    dtypes: Sequence[str] = ("float16", "bfloat16"),
    count: int | None = None,
    compiled: bool = True,
    progress: Callable[[str], None] | None = None,
) -> SpeedReport:
    """Measures random problems for that many minutes, or `count`. Raises BertfuseError without PyTorch or a GPU."""
    say = progress or (lambda line: None)
    torch = _torch()
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    seed = secrets.randbits(31) if seed is None else seed
    rng = np.random.default_rng(seed)
    report = SpeedReport(torch.cuda.get_device_name(device), seed)
    begin = time.monotonic()
    with torch.inference_mode():
        while time.monotonic() < begin + 60 * minutes and (count is None or len(report.rows) < count):
            problem = draw(rng, ops, dtypes)
            say(f"{len(report.rows) + 1}: {problem}")
            report.rows.append(measure(torch, problem, library, device, compiled, report.absent))
    report.seconds = time.monotonic() - begin
    return report


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise BertfuseError("the peers are PyTorch's, which is not installed; leave --speed out") from error
    if not torch.cuda.is_available():
        raise BertfuseError("this PyTorch sees no GPU, and speed is measured on one; leave --speed out")
    return torch


def measure(torch: Any, problem: Problem, library: Path, device: int, compiled: bool, absent: dict[str, str]) -> Row:
    """One problem's row."""
    arrays = values.inputs(problem)
    tensors = {name: None if array is None else _tensor(torch, array) for name, array in arrays.items()}
    run, outputs = _ours(torch, problem, tensors, library, device)
    run()
    torch.cuda.synchronize()
    attributes = {attr.name: problem.attribute(attr.name) for attr in problem.spec.attributes}
    arguments = [tensors[tensor.name] for tensor in problem.spec.inputs if not tensor.by_pass]
    function = FUNCTIONS[problem.op]
    wrong = _wrong(torch, problem, outputs, function, arguments, attributes)
    row = Row(str(problem), problem.op, problem.dtype, microseconds(run), wrong=wrong)

    def eager() -> Any:
        return function(torch, *arguments, **attributes)

    row.peers[EAGER] = microseconds(eager)
    if compiled:
        try:
            torch._dynamo.reset()
            faster = torch.compile(eager, dynamic=False)
            faster()
            row.peers[COMPILED] = microseconds(faster)
        except Exception as error:  # what a compiler cannot do is its own affair
            absent[COMPILED] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return row


def _wrong(
    torch: Any, problem: Problem, outputs: list[Any], function: Any, arguments: list[Any], attributes: dict[str, Any]
) -> str:
    """What is wrong with the outputs, by the peer's function in float64: these sizes are too large for NumPy."""
    wide = [t.double() if t is not None and t.is_floating_point() else t for t in arguments]
    found = function(torch, *wide, **attributes)
    tolerance = TOLERANCES[problem.op, problem.dtype]
    for tensor, got, want in zip(problem.spec.outputs, outputs, found if len(outputs) > 1 else [found], strict=True):
        # The largest of N errors grows as the root of ln N; the table is right for a million.
        many = max(1.0, math.sqrt(math.log(max(2, got.numel())) / math.log(1e6)))
        ratio = (got.double() - want).abs() / (many * (tolerance.atol + tolerance.rtol * want.abs()))
        worst = ratio.nan_to_num(nan=math.inf).max().item()
        if worst > 1:
            return f"{tensor.name} is {worst:.3g} times further from float64 than is allowed"
    return ""


def _tensor(torch: Any, array: np.ndarray) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype(np.float32)).to("cuda", torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array)).to("cuda")


def _ours(torch: Any, problem: Problem, tensors: dict[str, Any], library: Path, device: int) -> tuple[Any, list[Any]]:
    """A function that launches our kernel on PyTorch's current stream, and its outputs, poisoned."""
    kernel = native.find_kernel(problem.op, native.CUDA, library)
    if kernel is None:
        raise BertfuseError(f"{library}: has no CUDA kernel of {problem.op}")
    numbers = {torch.float32: 1, torch.int32: 6, torch.int64: 7, torch.float16: 10, torch.bfloat16: 16}
    dtype = getattr(torch, problem.dtype)
    outputs = [
        torch.full(problem.shape(tensor), math.nan, device="cuda", dtype=dtype) for tensor in problem.spec.outputs
    ]

    def described(tensor: Any) -> native.Tensor:
        if tensor is None:
            return native.Tensor()
        return native.Tensor.of(numbers[tensor.dtype], tensor.shape, tensor.data_ptr())

    weights = [i for i, tensor in enumerate(problem.spec.inputs) if tensor.constant and problem.has(tensor)]
    call = native.Call.of(
        [described(tensor) for tensor in tensors.values()],
        [described(tensor) for tensor in outputs],
        [problem.attribute(attr.name) for attr in problem.spec.attributes],
        device_id=device,
        constant_inputs=sum(1 << i for i in weights),
    )
    size = native.workspace_size(kernel, call)
    workspace = torch.empty(max(1, size), dtype=torch.uint8, device="cuda")
    call.workspace, call.workspace_size = workspace.data_ptr() if size else None, size

    def run(keep: Any = (tensors, outputs, workspace)) -> None:
        call.stream = torch.cuda.current_stream().cuda_stream
        error = native.Error()
        native.check(kernel.run(ctypes.byref(call), ctypes.byref(error)), error)

    return run, outputs


def microseconds(run: Callable[[], Any]) -> float:
    """Of one run: the median over replays of a CUDA graph of _LAUNCHES runs."""
    graph = cuda_graphs.capture([run] * _LAUNCHES)
    graph.replay()
    return statistics.median(cuda_graphs.microseconds(graph) / _LAUNCHES for _ in range(_REPLAYS))
