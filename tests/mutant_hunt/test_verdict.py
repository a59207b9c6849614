"""What the hunt takes for a wrong fusion, and which differences it excuses."""

from __future__ import annotations

import secrets

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from bertfuse.graph_rewrite import FusionResult
from bertfuse.qualify.mutants import judge
from bertfuse.qualify.mutants.doubles import in_doubles
from bertfuse.qualify.mutants.excuses import differs_from_declared_sizes, fails_optimised
from bertfuse.qualify.mutants.sessions import inner
from tests.mutant_hunt.small import parsed


def test_a_fused_model_that_fails_is_excused_only_where_the_original_fails_too() -> None:
    model = parsed("g (float[N, 4] x, int64[M] at) => (float[M, 4] y) { y = Gather (x, at) }")
    x = np.zeros((3, 4), np.float32)
    assert not fails_optimised(model, {"x": x, "at": np.array([2])})
    assert fails_optimised(model, {"x": x, "at": np.array([3])})  # out of range


@pytest.mark.parametrize(("noise", "outcome"), [(True, "equal"), (False, "wrong")])
def test_nan_is_right_only_where_the_original_has_nothing_but_roundings(
    noise: bool, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of length 1 of what rounding leaves of h + 1000 - 1000 - h, which is 0 in the fused model."""

    def model(fused: bool) -> onnx.ModelProto:
        rounded = "" if fused else "up = Add (h, big)  down = Sub (up, big)"
        row = "h, h" if fused else f"down, {'h' if noise else 'big'}"
        return parsed(
            f"""g (float[B, 16] x) => (float[B, 16] y) {{
                h = MatMul (x, w)  {rounded}
                row = Sub ({row})  length = ReduceL2 <axes = [-1]> (row)  y = Div (row, length)
            }}""",
            w=np.random.default_rng(7).standard_normal((16, 16)), big=1000.0,
        )  # fmt: skip

    result = FusionResult(model(fused=True), {"FusedGemm": 1}, {"FusedGemm": 1}, [], (5, 4))
    monkeypatch.setattr("bertfuse.qualify.mutants.verdict.fuse", lambda model, **options: result)
    x = np.random.default_rng(8).standard_normal((3, 16)).astype(np.float32)
    verdict = judge(model(fused=False), {"a": {"x": x}})
    assert verdict.outcome == outcome, verdict.text
    assert list(verdict.excused.values()) == (["the model amplifies roundings"] if noise else [])


@pytest.mark.parametrize(("off", "outcome"), [(0.0, "equal"), (0.5, "wrong")])
def test_a_fused_model_may_be_as_far_from_float64_as_the_original(off: float, outcome: str, monkeypatch) -> None:
    """Of x + 300,000 - 300,000 float32 keeps steps of 1/32; the fused model gives x, or x + off."""

    interface = "g (float[B, 16] x) => (float[B, 16] y)"
    original = parsed(f"{interface} {{ up = Add (x, big)  y = Sub (up, big) }}", big=3e5)
    fused = parsed(f"{interface} {{ y = Add (x, off) }}", off=off)
    result = FusionResult(fused, {"FusedGemm": 1}, {"FusedGemm": 1}, [], (2, 1))
    monkeypatch.setattr("bertfuse.qualify.mutants.verdict.fuse", lambda model, **options: result)
    x = np.random.default_rng(8).standard_normal((3, 16)).astype(np.float32)
    verdict = judge(original, {"a": {"x": x}})
    assert verdict.outcome == outcome, verdict.text
    assert list(verdict.excused.values()) == ["the original is as far from float64's results"] * (not off)


@pytest.mark.parametrize(
    ("size", "fused", "outcome"),
    [
        (1e20, "s = MatMul (x, x_t)  y = Mul (s, scale)", "equal"),  # 1e40 for a moment
        (1e20, "s = MatMul (x, x_t)  y = Mul (s, other)", "wrong"),
        (1e20, "n = Neg (x)  s = MatMul (n, x_t)  y = Mul (s, scale)", "wrong"),
        (1e4, "s = MatMul (x, x_t)  t = Mul (s, scale)  u = Add (t, big)  y = Sub (u, big)", "wrong"),  # no overflow
    ],
)
def test_what_overflows_may_differ_if_it_is_the_same_in_float64(size, fused, outcome, monkeypatch) -> None:
    """The original scales before the product, the fused model after it."""
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    interface = "g (float[B, 16] x) => (float[B, B] y)"
    transposed = "x_t = Transpose <perm = [1, 0]> (x)"
    scale = {"scale": 1e-6, "other": 1.1e-6, "big": 3e9}
    original = parsed(f"{interface} {{ {transposed}  x_s = Mul (x, scale)  y = MatMul (x_s, x_t) }}", **scale)
    result = FusionResult(parsed(f"{interface} {{ {transposed}  {fused} }}", **scale), {"FusedGemm": 1}, {}, [], (3, 3))
    monkeypatch.setattr("bertfuse.qualify.mutants.verdict.fuse", lambda model, **options: result)
    x = (size * np.random.default_rng(seed).standard_normal((3, 16))).astype(np.float32)
    verdict = judge(original, {"a": {"x": x}})
    assert verdict.outcome == outcome, verdict.text
    told = ["float32 overflows on the way, and both are the same in float64"]
    assert list(verdict.excused.values()) == told * (outcome == "equal")


def test_a_fused_model_that_alone_overflows_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """On inputs that are not large a softmax without its maximum taken off is right in float64 alone."""
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    interface = "g (float[B, 16] x) => (float[B, 16] y)"
    fused = parsed(f"{interface} {{ e = Exp (x)  s = ReduceSum <keepdims = 1> (e, axes)  y = Div (e, s) }}")
    fused.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1]), "axes"))
    result = FusionResult(fused, {"FusedGemm": 1}, {}, [], (1, 3))
    monkeypatch.setattr("bertfuse.qualify.mutants.verdict.fuse", lambda model, **options: result)
    x = 200 * np.random.default_rng(seed).standard_normal((3, 16)).astype(np.float32)
    assert judge(parsed(f"{interface} {{ y = Softmax (x) }}"), {"a": {"x": x}}).outcome == "wrong"


def test_models_in_float64() -> None:
    """Functions, bodies and constants of every spelling are, and what ONNX Runtime has for float32 alone is spelled."""
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")
    functions = """
        <ir_version: 10, opset_import: ["": 20, "f": 1]>
        g (float[N] x, bool c) => (float[N] y) {
            two = Constant <value_floats = [2.0]> ()  half = Constant <value_float = 0.5> ()
            a = f.Squared (x)  b = Gelu (a)  d = Gelu <approximate = "tanh"> (x)  e = Mul (b, two)  h = Mul (d, half)
            y = If (c) <then_branch = t () => (float[N] s) { one = Constant <value = float {1}> ()
                        u = Add (e, h)  s = Add (u, one) },
                    else_branch = o () => (float[N] m) { m = Mul (e, h) }>
        }
        <domain: "f", opset_import: ["": 20]>
        Squared (v) => (w) { z = Cast <to = 1> (v)  w = Mul (z, v) }
    """
    doubles = in_doubles(onnx.parser.parse_model(functions))
    assert doubles is not None
    x = (1e22 * np.random.default_rng(seed).standard_normal(7)).astype(np.float32)  # its square is beyond float32
    wide = x.astype(np.float64)
    for then in (True, False):
        feed = {"x": x, "c": np.array(then)}
        e, h = 2 * wide**2, 0.5 * np.maximum(wide, 0)
        assert np.allclose(doubles.run(feed)[0], e + h + 1 if then else e * h, rtol=1e-6)
        assert doubles.overflows(feed) and not doubles.overflows(feed | {"x": x / np.float32(1e22)})
    small = np.linspace(-4, 4, 7, dtype=np.float32)
    curve, tanh = (
        ReferenceEvaluator(
            onnx.parser.parse_model(
                f"""<ir_version: 9, opset_import: ["": 20]> g (double[N] x) => (double[N] y) {{
                    y = Gelu <approximate = "{kind}"> (x) }}"""
            )
        )
        for kind in ("none", "tanh")
    )
    wanted = 2 * curve.run(None, {"x": small.astype(np.float64) ** 2})[0]
    wanted = wanted + 0.5 * tanh.run(None, {"x": small.astype(np.float64)})[0] + 1
    assert np.allclose(doubles.run({"x": small, "c": np.array(True)})[0], wanted, atol=1e-6)


@pytest.mark.parametrize(("wrong", "outcome"), [("", "equal"), ("t = Not (s)", "wrong")])
@pytest.mark.parametrize("largest", [1 << 40, 1 << 20, 1 << 10])
def test_a_product_of_masks_that_wraps_says_nothing(wrong: str, outcome: str, largest: int, monkeypatch) -> None:
    """docs/design.md, "What is believed": 2^40 times itself is 0 in int64. Other rows tell all the same."""
    interface = "g (int64[B, S, 1] m, int64[B, 1, S] n) => (bool[B, S, S] y)"
    original = parsed(f"{interface} {{ p = Mul (m, n)  y = Cast <to = 9> (p) }}")
    body = f"q = Cast <to = 9> (m)  k = Cast <to = 9> (n)  s = And (q, k)  {wrong or 't = Identity (s)'}"
    fused = parsed(f"{interface} {{ {body}  y = Identity (t) }}")
    result = FusionResult(fused, {"FusedGemm": 1}, {}, [], (2, 4))
    monkeypatch.setattr("bertfuse.qualify.mutants.verdict.fuse", lambda model, **options: result)
    mask = np.array([[0, 1, 1], [0, 1, largest]])
    verdict = judge(original, {"a": {"m": mask[:, :, None], "n": mask[:, None, :]}})
    assert verdict.outcome == outcome, verdict.text
    assert bool(verdict.excused) is (outcome == "equal" and largest == 1 << 40)


def test_a_model_of_nothing_but_roundings_is_seen_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """x over the mean of x - mean(x): in some of many rows it is 0, or the same, in one model and a few moved ones."""
    seed = secrets.randbelow(1 << 31)
    print(f"seed {seed}")

    def model(mean: str) -> onnx.ModelProto:
        return parsed(
            f"""g (float[B, 16] x) => (float[B, 16] y) {{
                h = MatMul (x, w)  m = ReduceMean <axes = [-1]> (h)  c = Sub (h, m)  {mean}  y = Div (c, z)
            }}""",
            w=np.random.default_rng(seed).standard_normal((16, 16)), part=np.full((16, 1), 1 / 16),
        )  # fmt: skip

    result = FusionResult(model("z = MatMul (c, part)"), {"FusedGemm": 1}, {}, [], (5, 5))
    monkeypatch.setattr("bertfuse.qualify.mutants.verdict.fuse", lambda model, **options: result)
    rows = np.random.default_rng(seed + 1).standard_normal((2, 1000, 16)).astype(np.float32)
    verdict = judge(model("z = ReduceMean <axes = [-1]> (c)"), {"a": {"x": rows[0]}, "b": {"x": rows[1]}})
    assert verdict.outcome == "equal", verdict.text


@pytest.mark.parametrize(
    "axes, rows, other",
    [(["B", "S"], 1, True), (["B", "S"], 3, False), (["R", "S"], 1, False), ([None, None], 1, True)],
)
def test_inputs_of_other_sizes_than_their_names_say(axes: list, rows: int, other: bool) -> None:
    """Only these may end a fused model's run; what a file says of tensors inside excuses nothing."""
    first = ["B", "S"] if axes[0] else axes
    ids, mask = (
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.INT64, s) for n, s in (("i", first), ("m", axes))
    )
    total = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["i", "m"], ["y"])], "g", [ids, mask], [total])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    feed = {"i": np.ones((3, 5), np.int64), "m": np.ones((rows, 5), np.int64)}
    assert differs_from_declared_sizes(model, feed) is other


def test_inner_tensors_come_by_name() -> None:
    """A mask that is fed beside one that is computed: each is looked at with its own window."""
    model = parsed(
        "g (int64[B,S] fed, int64[B,S] second) => (int64[B,S] y) { computed = Neg(fed) y = Add(computed, second) }"
    )
    feed = {name: np.random.default_rng(i).integers(9, size=(2, 3)) for i, name in enumerate(("fed", "second"))}
    found = inner(model, {"fed", "computed", "second"}, feed)
    assert found is not None and set(found) == {"fed", "computed", "second"}
    assert np.array_equal(found["computed"], -feed["fed"])
    assert all(np.array_equal(found[name], array) for name, array in feed.items())
