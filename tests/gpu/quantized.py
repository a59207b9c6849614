"""Quantised products on the GPU: random calls, the rule of graph_rewrite/dialect/quantized.py in PyTorch, and the check
of every tactic against it. Nothing but PyTorch stands between, so that it runs where only measuring is possible.
"""

from __future__ import annotations

import math
import random

import torch

from tests.gpu.kernels import Bound, _described, constants, library_file, load, native

OPS = ("FusedGemm", "FusedGemmGelu", "FusedGemmLayerNorm", "FusedGemmGeluLayerNorm")
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
FLOAT8 = torch.float8_e4m3fn
EPSILON = 1e-5
sums = load("qualify", "sums")
# Of what a result's rounding to its type costs, and float32 sums.
_UNITS = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}


def rounded(x: torch.Tensor, to: torch.dtype, zero: torch.Tensor | None = None) -> torch.Tensor:
    """float32 numbers in the type, saturated; of integers 0 becomes `zero`."""
    if to == torch.int8:
        shift = 0.0 if zero is None else zero.float()
        return (x.round().nan_to_num(0.0, torch.inf, -torch.inf) + shift).clamp(-128, 127).to(to)
    return x.clamp(-448, 448).to(to)


def quantized_rows(
    x: torch.Tensor, to: torch.dtype, smooth: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [M, K] in the type, and float32 scales [M, 1]."""
    x = x.float() if smooth is None else x.float() * smooth
    if scale is not None:
        return rounded(x / scale, to), scale.expand(len(x), 1)
    bounded = x.abs().amax(1, keepdim=True).clamp(min=1e-30)
    total = x.abs().sum(1, keepdim=True)
    largest = torch.tensor(LARGEST[to], device=x.device)
    return rounded(x * (largest / bounded), to), bounded / largest + (total - total)


class Case:
    """A random call of an op: `inputs` in the op's order; expected values and allowed errors in float64.

    What is given of op, dtype of x and y, and size (m, n, k) is not drawn; `most`: the most rows, and columns.
    """

    def __init__(
        self,
        seed: int,
        most: int = 700,
        op: str = "",
        dtype: torch.dtype | None = None,
        size: tuple[int, int, int] | None = None,
    ) -> None:
        chance, self.seed = random.Random(seed), seed
        torch.manual_seed(seed)
        self.op, self.to = chance.choice(OPS), chance.choice([torch.int8, FLOAT8])
        self.dtype = chance.choice([torch.float16, torch.float16, torch.bfloat16, torch.float32])
        self.op, self.dtype = op or self.op, dtype or self.dtype
        step = chance.choice([1, 8, 32, 32, 64])
        self.m, self.n = chance.randint(1, most), step * chance.randint(1, max(1, most // step))
        self.k = chance.choice([1, 16, 16, 128]) * chance.randint(1, chance.choice([4, 32]))
        self.n = max(self.n, 8) if "LayerNorm" in self.op else self.n
        self.m, self.n, self.k = size or (self.m, self.n, self.k)
        cuda = {"device": "cuda"}
        x = torch.randn(self.m, self.k, **cuda) * torch.exp(torch.rand(self.k, **cuda) * 4 - 2)
        self.odd(x, chance)
        weight = rounded(torch.randn(self.n, self.k, **cuda) * (50 if self.to == torch.int8 else 100), self.to)
        scales = (torch.rand(self.n, **cuda) + 0.1) / 64 / math.sqrt(self.k)
        scales[chance.randrange(self.n)] = chance.choice([0.0, 1e-41, 1e-3])
        given = {"x": x.to(self.dtype), "weight": weight, "weight_scale": scales}
        for name in ("bias", "gamma", "beta"):
            if name != "bias" or self.op != "FusedGemm" or chance.random() < 0.5:
                given[name] = torch.randn(self.n, **cuda).to(self.dtype)
        if self.op == "FusedGemmLayerNorm" or chance.random() < 0.5:
            given["residual"] = torch.randn(self.m, self.n, **cuda).to(self.dtype)
        if chance.random() < 0.4:
            given["x_smooth"] = torch.exp(torch.rand(1, self.k, **cuda) * 2 - 1)
        if chance.random() < 0.4:  # some numbers lie beyond the ends
            scale = float(given["x"].float().nan_to_num(0.0, 1.0, 1.0).abs().max()) / LARGEST[self.to]
            given["x_scale"] = torch.tensor(max(scale, 1e-12) * chance.uniform(0.3, 1.2), **cuda)
        self.given = given
        spec = _described(self.op)
        self.inputs = [given.get(tensor.name) for tensor in spec.inputs]
        self.tanh = "Gelu" in self.op and chance.random() < 0.5
        values = {"epsilon": EPSILON, "approximate": "tanh" if self.tanh else "none"}
        self.attributes = [values.get(attr.name, attr.default) for attr in spec.attributes]

    @staticmethod
    def odd(x: torch.Tensor, chance: random.Random) -> None:
        """Rows of zeros, of one number, tiny, denormal or large ones, and with what is not finite."""
        for kind in chance.choices(["zero", "constant", "tiny", "denormal", "large", "nan", "inf"], k=4):
            row = x[chance.randrange(len(x))]
            if kind == "constant":
                row.fill_(float(row[0]))
            elif kind in ("nan", "inf"):
                row[chance.randrange(len(row))] = math.nan if kind == "nan" else -math.inf
            else:
                row *= {"zero": 0.0, "tiny": 1e-6, "denormal": 1e-40, "large": 50.0}[kind]

    def expected(self, short: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The result, and the error that is allowed; `short`: of float8 products whose sums keep 14 bits."""
        g = self.given
        x, scale = quantized_rows(g["x"], self.to, g.get("x_smooth"), g.get("x_scale"))
        x, weight, scales = x.double(), g["weight"].double(), scale.double() * g["weight_scale"].double()
        y = x @ weight.T * scales
        error = x.abs() @ weight.abs().T * scales.abs() * sums.IN_FLOAT32
        if self.to == FLOAT8:
            starts = range(0, self.k, sums.PART)
            parts = torch.stack([x[:, i : i + sums.PART] @ weight[:, i : i + sums.PART].T for i in starts])
            largest = 1.5 * (parts.cumsum(0) if short else parts).abs().amax(0)
            largest += x.abs().amax(1, keepdim=True) * weight.abs().amax(1)
            error += sums.cut_off(self.k, short) * largest * scales.abs()
        y = y + g["bias"].double() if "bias" in g else y
        if "Gelu" in self.op:
            y = torch.nn.functional.gelu(y, approximate="tanh" if self.tanh else "none")
            error = error * 1.2
        unit = _UNITS[self.dtype]
        if "LayerNorm" in self.op:
            error = error + unit * y.abs()  # where the product is rounded before
            y = y + g["residual"].double() if "residual" in g else y
            spread = y.var(1, unbiased=False, keepdim=True).add(EPSILON).sqrt()
            y = (y - y.mean(1, keepdim=True)) / spread * g["gamma"].double() + g["beta"].double()
            error = (error + 2 * error.mean(1, keepdim=True) * (1 + y.abs())) / spread * (1 + g["gamma"].abs())
        return y, error + unit * (y.abs() + 0.2)

    def named(self) -> dict[str, torch.Tensor | None]:
        """All inputs of the op, by name; None where the call has none."""
        return {tensor.name: self.given.get(tensor.name) for tensor in _described(self.op).inputs}

    def in_8_bits(self) -> tuple[dict[str, torch.Tensor | None], torch.dtype | None]:
        """The inputs of this call with rows in 8 bits, and the type of results in 8 bits; FusedGemm has none."""
        chance, named = random.Random(self.seed), self.named()
        rows, scales = quantized_rows(named["x"], self.to, named["x_smooth"])
        replaced = {"x_scale": None, "x_smooth": None, "x_quantized": rows, "x_row_scale": scales[:, 0].contiguous()}
        named, to = {**named, **replaced}, None
        if self.to == torch.int8 and chance.random() < 0.5:
            # Of -1, with which rows from -127 to 127 are integers of 8 bits: the sums are the same.
            named["x_quantized"] = rows - 1
            named["x_compensation"] = -named["weight"].sum(1, dtype=torch.int32)
        if self.op != "FusedGemm":
            to = chance.choice([self.to, self.to, torch.int8, FLOAT8])
            named["y_zero_point"] = torch.zeros((), dtype=torch.uint8, device="cuda").view(to)
            if chance.random() < 0.5:
                named["y_smooth"] = torch.exp(torch.rand(1, self.n, device="cuda") * 2 - 1)
            if self.op == "FusedGemmGelu" or chance.random() < 0.2:
                named["y_tensor_scale"] = torch.tensor(chance.uniform(1e-3, 0.05), device="cuda")
                if to == torch.int8:
                    named["y_zero_point"] += chance.randint(-128, 127)
        return named, to

    def with_restored_residual(self, named: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
        """The same call, whose residual comes as integers."""
        rows, scales = quantized_rows(named["residual"], torch.int8)
        factor = torch.exp(torch.rand(1, self.n, device="cuda") * 2 - 1)
        restored = {"residual_quantized": rows, "residual_row_scale": scales[:, 0].contiguous()}
        return {**named, **restored, "residual_factor": factor}

    def check(self) -> tuple[int, float, str]:
        """Runs every tactic: their number, the largest error in parts of what is allowed, and whose it is."""
        bound = Bound(
            self.op, self.inputs, [torch.empty(self.m, self.n, dtype=self.dtype, device="cuda")], self.attributes
        )
        wanted = {short: self.expected(short) for short in (False, True)}
        worst, whose, count = 0.0, "", bound.tactics()
        for tactic in [-1, *range(count)]:
            y = torch.full((self.m, self.n), math.nan, dtype=self.dtype, device="cuda")
            one = Bound(self.op, self.inputs, [y], self.attributes, tactic, constants(self.inputs))
            name = native.tactic_name(self.op, one.call, tactic, library_file())
            try:
                one.run()
                torch.cuda.synchronize()
            except Exception as error:
                raise AssertionError(f"{self}: {name}: {error}") from error
            y_wanted, allowed = wanted[name.startswith("sm90") and "promoting" not in name]
            limit = torch.finfo(self.dtype).max
            found = y.double()
            if not torch.equal(found.isnan(), y_wanted.isnan()):
                # What is beyond float16 in between is not finite behind LayerNorm.
                differing = (found.isnan() != y_wanted.isnan()).any(1)
                beyond = self.beyond(limit)
                if (differing & ~beyond).any():
                    return count, math.inf, f"{name}: NaN elsewhere"
            inside = (y_wanted.abs() < limit * 0.99) & ~self.beyond(limit)[:, None] & ~y_wanted.isnan()
            share = ((found - y_wanted).abs() / allowed)[inside]
            share = float(share.nan_to_num(math.inf).max()) if share.numel() else 0.0
            if share > worst:
                worst, whose = share, name
        return count, worst, whose

    def beyond(self, limit: float) -> torch.Tensor:
        """[M]: rows whose product the result's type may not hold."""
        g = self.given
        x, scale = quantized_rows(g["x"], self.to, g.get("x_smooth"), g.get("x_scale"))
        y = x.double() @ g["weight"].double().T * scale.double() * g["weight_scale"].double()
        return y.abs().amax(1) > limit / 4

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.op} {self.dtype} of {self.to}, {self.m}x{self.n}x{self.k}"
