"""Results that are written in 8 bits, on the GPU: right bit for bit, and what that takes.

    python3 -m tests.gpu.bench_quantized_results --seconds 20 --hidden 768 --rows 1024,4096,16384 [--best]

Right: what an op writes in 8 bits is y by the rule (of GELU's integers, and of LayerNorm's in one launch, those all but
in the middle between two may be either); a product of rows in 8 bits has the bits of the product that rounds x itself.
Before LayerNorm it has them nearly: split-K's partial sums are added in another order, and in one launch the product is
not rounded. Random problems, every tactic. Then microseconds of a layer's four products (LayerNorm and GELU included)
as two ops' forms: in fp8 rounding x and writing y in 16 bits, and in fp8 and int8 reading and writing 8, with smoothing
factors and int8's zero point as calibrated models have them, of int8 also with the residual in 8 bits; cuBLASLt's fp8
product of that shape beside them. fp8's attention (sequences of 128) in both forms, too. --best adds the fastest of all
tactics where another one is chosen.
Exit code 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import sys
import time
from collections.abc import Iterable

import torch

from tests.gpu.bench_quantized import SETS, cublaslt, inputs_of, us
from tests.gpu.kernels import Bound, _described, constants, library_file, native
from tests.gpu.quantized import EPSILON, FLOAT8, Case, quantized_rows, rounded
from tests.gpu.quantized_attention import Case as AttentionCase

# op, n and k of a layer in hidden sizes, and whether it writes for another product.
LAYER = (
    ("FusedGemm", 3, 1, False),
    ("FusedGemmLayerNorm", 1, 1, True),
    ("FusedGemmGelu", 4, 1, True),
    ("FusedGemmLayerNorm", 1, 4, True),
)


def named_inputs(op: str, inputs: list) -> dict[str, torch.Tensor | None]:
    spec = _described(op)
    return dict(zip([tensor.name for tensor in spec.inputs], [*inputs, *[None] * len(spec.inputs)], strict=False))


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def _same(found: torch.Tensor, wanted: torch.Tensor, rows: torch.Tensor | None = None) -> bool:
    """All bits, but those of NaN, in the rows for which `rows` holds."""
    nan = found.float().isnan() & wanted.float().isnan()
    same = nan | (_bits(found) == _bits(wanted))
    return bool((same if rows is None else same[rows]).all())


def _either(found: torch.Tensor, wanted: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Where one of two neighbouring integers is found, and the number lies all but in the middle between them."""
    middle = (exact - exact.floor() - 0.5).abs() < 1e-4
    return middle & ((found.float() - wanted.float()).abs() == 1)


def _close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    unit = 8 * torch.finfo(found.dtype).eps
    return torch.allclose(found.float(), wanted.float(), rtol=unit, atol=max(unit, 1e-4), equal_nan=True)


def _without_stages(tactic: str) -> str:
    """Tiles that differ in their stages alone add up in the same order."""
    return re.sub(r" stages \d+", "", tactic)


def _beside(name: str, plain: Iterable[str]) -> str | None:
    """The tactic that leaves y in 16 bits with which this one is compared: of that name, else of a tile of that size.

    Tiles that are compiled for 8 bits alone are compared with any of that backend: it adds up k in one order.
    """
    alike = [other for other in plain if _without_stages(other) == _without_stages(name)]
    if alike:
        return name if name in alike else alike[0]
    others = (other for other in plain if other.startswith("sm90") and not re.search("split-K|promoting", other))
    return next(others, None) if name.startswith("sm90") else None


def _outputs(case: Case, to: torch.dtype | None) -> list[torch.Tensor]:
    made = [torch.full((case.m, case.n), math.nan, dtype=case.dtype, device="cuda")]
    if to is not None:
        made += [torch.zeros(case.m, case.n, dtype=torch.uint8, device="cuda").view(to)]
        made += [torch.full((case.m,), math.nan, device="cuda")]
    return made


def _of_many_rows(seed: int) -> Case:
    """What gives a block of the weight-stationary kernels several tiles."""
    chance = random.Random(seed)
    op, dtype = chance.choice(("FusedGemmGelu", "FusedGemmLayerNorm")), chance.choice((torch.float16, torch.bfloat16))
    n, k = chance.choice((384, 512, 768, 1024)), 16 * chance.randint(1, 64)
    return Case(seed, op=op, dtype=dtype, size=(chance.randint(5000, 16384), n, k))


def _problem(seed: int) -> tuple[int, str]:
    """The tactics that were run, and what is wrong. One problem of ten has many rows, for some tactics."""
    many = seed % 10 == 0
    case = _of_many_rows(seed) if many else Case(seed)
    given, to = case.in_8_bits()
    # Rows of one scale each: what a product does itself with x, the other one is given.
    named = {**case.named(), "x_scale": None}
    inputs, plain = list(given.values()), list(named.values())
    outputs = _outputs(case, to)
    first = Bound(case.op, inputs, outputs, case.attributes)
    names = {}
    for tactic in range(Bound(case.op, plain, _outputs(case, None), case.attributes).tactics()):
        one = Bound(case.op, plain, _outputs(case, None), case.attributes, tactic, constants(plain))
        names[native.tactic_name(case.op, one.call, tactic, library_file())] = tactic
    count = 0
    for tactic in range(first.tactics()):
        outputs, (y,) = _outputs(case, to), _outputs(case, None)
        one = Bound(case.op, inputs, outputs, case.attributes, tactic, constants(inputs))
        name = native.tactic_name(case.op, one.call, tactic, library_file())
        beside = _beside(name, names)
        if beside is None or (many and not re.match("sm90 64x(128|192) ", name)):
            continue
        one.run()
        Bound(case.op, plain, [y], case.attributes, names[beside], constants(plain)).run()
        torch.cuda.synchronize()
        count += 1
        unwritten = case.op == "FusedGemmGelu" and name.startswith("sm90") and bool(outputs[0].isnan().all())
        if not unwritten:
            # What is taken off the first of several partial sums changes how these are rounded, and so does the norm
            # that writes 8 bits: it adds all but one of them behind the bias. In one launch nothing is rounded before.
            changes = given["x_compensation"] is not None or (to is not None and "LayerNorm" in name)
            in_one_launch = "then LayerNorm" in beside and "then LayerNorm" not in name
            rounds = in_one_launch or (changes and "split-K" in name)
            if not (_close(outputs[0], y) if rounds else _same(outputs[0], y)):
                return count, f"seed {seed}, {case}, {name}: y"
            y = outputs[0]
        if to is None:
            continue
        if given["y_tensor_scale"] is not None:
            inverse = 1 / given["y_tensor_scale"]
            factor = inverse if given["y_smooth"] is None else given["y_smooth"] * inverse
            exact = y.float() * factor
            wanted = rounded(exact, to, given["y_zero_point"])
            if to == torch.int8 and case.op == "FusedGemmGelu":
                wanted = torch.where(_either(outputs[1], wanted, exact), outputs[1], wanted)
            wanted_scales = given["y_tensor_scale"].expand(case.m)
        else:
            wanted, wanted_scales = quantized_rows(y, to, given["y_smooth"])
            if to == torch.int8 and in_one_launch:  # the product with the inverse scale and its rounding are one step
                smoothed = y.float() if given["y_smooth"] is None else y.float() * given["y_smooth"]
                exact = smoothed * (127 / smoothed.abs().amax(1, keepdim=True).clamp(min=1e-30))
                wanted = torch.where(_either(outputs[1], wanted, exact), outputs[1], wanted)
            wanted_scales = wanted_scales[:, 0]
        there = ~wanted_scales.isnan() & ~y.isnan().any(1)
        if not _same(outputs[2], wanted_scales.contiguous()):
            return count, f"seed {seed}, {case}, {name}: scales"
        if not _same(outputs[1], wanted, there):
            return count, f"seed {seed}, {case}, {name}: numbers"
    return count, ""


def checked(seconds: float, seed: int) -> bool:
    start, tactics, wrong = time.monotonic(), 0, []
    for index in itertools.count():
        if time.monotonic() - start > seconds or len(wrong) > 5:
            break
        count, fault = _problem(seed + index)
        tactics += count
        if fault:
            wrong.append(fault)
            print(f"WRONG {fault}", flush=True)
    print(f"{index} problems, {tactics} tactics, {len(wrong)} wrong", flush=True)
    return not wrong


def _times(
    op: str,
    m: int,
    n: int,
    k: int,
    writes: bool,
    new: bool,
    to: torch.dtype = FLOAT8,
    restores: bool = False,
    best: bool = False,
) -> tuple[float, str]:
    """Microseconds, and the tactic; with `best` those of the fastest tactic, too, where another is chosen."""
    # A model whose norms restore residuals reads y nowhere.
    values = {"epsilon": EPSILON, "approximate": "none", "y_use": "unread" if restores else "read"}
    attributes = [values.get(attr.name, attr.default) for attr in _described(op).attributes]
    sets = []
    for _ in range(SETS):
        named = named_inputs(op, inputs_of(op, m, n, k, to))
        outputs = [torch.empty(m, n, dtype=torch.float16, device="cuda")]
        if new:
            rows, scales = quantized_rows(named["x"], to)
            named |= {"x_quantized": rows, "x_row_scale": scales[:, 0].contiguous()}
            if to == torch.int8 and k > n:  # x is GELU's result
                named["x_compensation"] = -100 * named["weight"].sum(1, dtype=torch.int32)
        if restores and named.get("residual") is not None:
            rows, scales = quantized_rows(named["residual"], torch.int8)
            named |= {"residual_quantized": rows, "residual_row_scale": scales[:, 0].contiguous()}
            named["residual_factor"] = torch.exp(torch.rand(1, n, device="cuda") - 0.5)
        if new and writes:
            named["y_smooth"] = torch.exp(torch.rand(1, n, device="cuda") - 0.5)
            named["y_zero_point"] = torch.zeros((), dtype=torch.uint8, device="cuda").view(to)
            if op == "FusedGemmGelu":
                named["y_tensor_scale"] = torch.tensor(0.02, device="cuda")
                if to == torch.int8:
                    named["y_zero_point"] = torch.tensor(-100, dtype=to, device="cuda")
            outputs += [torch.empty(m, n, dtype=torch.uint8, device="cuda").view(to)]
            outputs += [torch.empty(m, device="cuda")]
        sets.append((list(named.values()), outputs))

    def timed(tactic: int) -> tuple[float, str]:
        calls = [Bound(op, inputs, outputs, attributes, tactic, constants(inputs)) for inputs, outputs in sets]
        return us([one.run for one in calls]), native.tactic_name(op, calls[0].call, tactic, library_file())

    taken, name = timed(-1)
    if best:
        inputs, outputs = sets[0]
        fastest, other = min(timed(tactic) for tactic in range(Bound(op, inputs, outputs, attributes).tactics()))
        if other != name:
            name += f" ({fastest:.1f} by {other})"
    return taken, name


def _attention_times(m: int, hidden: int, writes: bool) -> tuple[float, str]:
    """Microseconds for m tokens in sequences of 128, heads of 64, and the tactic."""
    op, calls, half = "FusedAttention", [], {"dtype": torch.float16, "device": "cuda"}
    for _ in range(SETS):
        named = named_inputs(
            op, [torch.randn(max(m // 128, 1), 128, 3 * hidden, **half), torch.randn(3 * hidden, **half)]
        )
        shape = (max(m // 128, 1), 128, hidden)
        outputs = [torch.empty(shape, **half)]
        if writes:
            named["y_zero_point"] = torch.zeros((), dtype=torch.uint8, device="cuda").view(FLOAT8)
            named["y_tensor_scale"] = torch.tensor(0.02, device="cuda")
            outputs += [torch.empty(shape, dtype=torch.uint8, device="cuda").view(FLOAT8)]
            outputs += [torch.empty(shape[:2], device="cuda")]
        inputs = list(named.values())
        calls.append(Bound(op, inputs, outputs, [hidden // 64, 0.125], -1, constants(inputs)))
    return us([one.run for one in calls]), native.tactic_name(op, calls[0].call, -1, library_file())


def _attention_is_right(seconds: float, seed: int) -> bool:
    start, tactics, right = time.monotonic(), 0, True
    for index in itertools.count():
        if time.monotonic() - start > seconds:
            break
        count, wrong = AttentionCase(seed + index).wrong()
        tactics, right = tactics + count, right and not wrong
        if wrong:
            print(f"WRONG {wrong}", flush=True)
    print(f"attention: {index} problems, {tactics} tactics", flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--hidden", default="768", help="hidden sizes: 768 is bert-base's, 1024 bert-large's")
    parser.add_argument("--rows", default="1024,4096,16384")
    parser.add_argument("--best", action="store_true", help="time all tactics")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "seed", options.seed, flush=True)
    right = checked(options.seconds, options.seed) & _attention_is_right(options.seconds, options.seed)
    print("  rows     n     k fp8 in 16     fp8    int8 residual  cublaslt")
    for hidden, m in itertools.product(map(int, options.hidden.split(",")), map(int, options.rows.split(","))):
        sums = [0.0] * 5
        for op, n, k, writes in ((op, n * hidden, k * hidden, writes) for op, n, k, writes in LAYER):
            forms = ((False, FLOAT8), (True, FLOAT8), (True, torch.int8), (True, torch.int8, True))
            measured = [_times(op, m, n, k, writes, *form, best=options.best and form[0]) for form in forms]
            times, names = zip(*measured, strict=True)
            row = [*times, cublaslt(m, n, k)[0]]
            sums = [a + b for a, b in zip(sums, row, strict=True)]
            cells = "".join(f"{value:8.1f}" for value in row)
            print(f"{m:6d} {n:5d} {k:5d} {cells}  {' | '.join(names)}", flush=True)
        (before, old), (after, new) = (_attention_times(m, hidden, writes) for writes in (False, True))
        print(f"{m:6d} attention   {before:8.1f}{after:8.1f}                  {old} | {new}", flush=True)
        cells = "".join(f"{value:8.1f}" for value in sums)
        print(f"{m:6d} products    {cells}", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
