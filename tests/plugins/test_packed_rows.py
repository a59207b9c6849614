"""Packed rows in the library's CPU kernels and in the op bodies, on random packings, against the float64 oracle."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from bertfuse.graph_rewrite import functions, oracle
from bertfuse.graph_rewrite.ops import MODEL_OPS, OPS, PACKING_OPS
from bertfuse.graph_rewrite.spec import DOMAIN
from bertfuse.qualify.tolerances import assert_close
from tests.cases import ATTENTIONS, FLOATS, Case
from tests.one_node import _ONNX_TYPES, as_float64, model, run, session
from tests.packed_cases import packed_case, packing_op_inputs, random_packing

PACKED = [op for op in MODEL_OPS if OPS[op].packed_inputs]
SEEDS = range(6)


def _oracle(case: Case) -> list[np.ndarray]:
    """What the op gives for the real rows. The padded rows' NaN goes: the oracle computes them all."""
    inputs = {name: None if a is None else np.nan_to_num(a) for name, a in as_float64(case.inputs).items()}
    return oracle(case.op, inputs, dict(case.attributes))


def _check(case: Case, rows: int, results: list[np.ndarray]) -> None:
    for got, want in zip(results, _oracle(case), strict=True):
        width = want.shape[-1]
        got = got.reshape(-1, width)[:rows]
        assert_close(got, want.reshape(-1, width)[:rows], case.op, case.dtype, case.error_scale)


def _run(runner: onnxruntime.InferenceSession, case: Case) -> list[np.ndarray]:
    return run(runner, case, [want.shape for want in _oracle(case)])


def _body(proto: onnx.ModelProto, opset: int = 17, data_type: int = TensorProto.FLOAT) -> onnxruntime.InferenceSession:
    for entry in proto.opset_import:
        if entry.domain == "":
            entry.version = opset
    functions.attach(proto, {proto.graph.node[0].output[0]: data_type})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _with_defaults(case: Case) -> Case:
    """Fused nodes carry every attribute, and their functions count on it."""
    return replace(case, attributes={a.name: a.default for a in case.spec.attributes} | dict(case.attributes))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", PACKED)
def test_kernels_compute_the_real_rows(op: str, dtype: str, library: Path) -> None:
    for seed in SEEDS:
        packing = random_packing(seed)
        case = packed_case(op, packing, seed, dtype)
        print(f"seed {seed}: {packing.lengths} in {packing.real.shape}")
        _check(case, packing.rows, _run(session(model(case), library), case))


@pytest.mark.parametrize("opset", [13, 17, 18, 22])
@pytest.mark.parametrize("op", PACKED)
def test_bodies_compute_as_many_rows_as_there_are(op: str, opset: int) -> None:
    for seed in SEEDS:
        packing = random_packing(seed)
        case = _with_defaults(packed_case(op, packing, seed, exact=True))
        print(f"seed {seed}: {packing.lengths} in {packing.real.shape}")
        runner = _body(model(case), opset)
        fed = {value.name for value in runner.get_inputs()}
        results = runner.run(None, {name: a for name, a in case.inputs.items() if name in fed})
        assert all(got.shape[:2] == (1, packing.rows) for got in results)
        _check(case, packing.rows, results)


LENGTHS = [
    # The body computes all five as long as the longest: with 4096 it took 19 GB.
    pytest.param((1, 2048, 3, 0, 127), marks=pytest.mark.slow),
    (4096,),
    (1,) * 40,
    (0, 0, 9),
    (129, 128, 127, 1, 2),
]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_attention_over_lengths_of_every_kind(lengths: tuple[int, ...], library: Path) -> None:
    packing = random_packing(1, lengths)
    case = packed_case("FusedAttention", packing, 5)
    _check(case, packing.rows, _run(session(model(case), library), case))
    case = _with_defaults(packed_case("FusedAttention", packing, 5, exact=True))
    runner = _body(model(case))
    _check(case, packing.rows, runner.run(None, {k: v for k, v in case.inputs.items() if v is not None}))


def _packing_model(op: str, inputs: dict[str, np.ndarray], float_type: int) -> onnx.ModelProto:
    spec = OPS[op]
    attributes = {a.name: a.default for a in spec.attributes}
    outputs = [t.name for t in spec.outputs]
    node = helper.make_node(op, list(inputs), outputs, name="node", domain=DOMAIN, **attributes)
    given = [helper.make_tensor_value_info(n, _ONNX_TYPES[a.dtype.name], [None] * a.ndim) for n, a in inputs.items()]
    index_type = next((_ONNX_TYPES[inputs[t.name].dtype.name] for t in spec.inputs if t.dtype == "I"), 0)
    types = {"T": float_type, "I": index_type, "C": TensorProto.INT32}
    made = [helper.make_tensor_value_info(t.name, types[t.dtype], [None] * len(t.axes)) for t in spec.outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(helper.make_graph([node], "g", given, made), opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("with_library", [True, False])
@pytest.mark.parametrize("op", PACKING_OPS)
def test_ops_that_move_rows(op: str, with_library: bool, library: Path) -> None:
    for seed in SEEDS:
        packing = random_packing(seed)
        inputs = packing_op_inputs(op, packing, seed)
        print(f"seed {seed}: {packing.lengths} in {packing.real.shape}")
        expected = oracle(op, as_float64(inputs))
        if not with_library and op == "UnpackTokens":
            inputs["x"] = inputs["x"].reshape(1, -1, inputs["x"].shape[-1])[:, : packing.rows]
            inputs["token_index"] = inputs["token_index"].reshape(1, -1)[:, : packing.rows]
        proto = _packing_model(op, inputs, TensorProto.FLOAT)
        runner = session(proto, library) if with_library else _body(proto)
        results = runner.run(None, inputs)
        for result, want, tensor in zip(results, expected, OPS[op].outputs, strict=True):
            if not with_library and tensor.name == "token_index":
                want = want.reshape(1, -1)[:, : packing.rows]
            np.testing.assert_array_equal(result, want.astype(result.dtype), err_msg=f"{op} {tensor.name}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_of_other_types_are_moved_as_they_are(dtype: str, library: Path) -> None:
    packing = random_packing(3)
    for op in ("UnpackTokens", "FirstTokens"):
        inputs = packing_op_inputs(op, packing, 3, dtype)
        runner = session(_packing_model(op, inputs, _ONNX_TYPES[dtype]), library)
        case = Case(op, "moved", inputs, {}, dtype)
        want = oracle(op, as_float64(inputs))[0]
        np.testing.assert_array_equal(run(runner, case, [want.shape])[0].astype(np.float64), want)


def _refusal(proto: onnx.ModelProto, inputs: dict[str, np.ndarray], library: Path) -> str:
    with pytest.raises(Exception) as caught:  # onnxruntime's exceptions share no public base
        session(proto, library).run(None, {name: a for name, a in inputs.items() if a is not None})
    return str(caught.value)


@pytest.mark.parametrize(
    ("lengths", "cu_seqlens", "longest", "reason"),
    [
        ((3, 4), [0, 5, 4, 7], 9, "falls from 5 to 4 at 2, expected it to ascend"),
        ((3, 4), [0, 3, 6], 9, "ends with 6, expected 7, the number of tokens"),
        ((3, 4), [0, 3, 8], 9, "ends with 8, expected at most 7"),
        ((3, 4), [1, 3, 7], 9, "begins with 1, expected 0"),
        ((3, 4), [0, 3, 7], 3, "sequence 1 has 4 tokens, but input 'max_seqlen' is 3 long"),
        ((3, 4), [], 3, "axis 0 is 0, expected N+1: at least 1"),
    ],
)
def test_bad_offsets(lengths, cu_seqlens, longest, reason, library: Path) -> None:
    inputs = packing_op_inputs("RaggedPositions", random_packing(0, lengths), 0)
    inputs |= {"cu_seqlens": np.array(cu_seqlens, np.int32), "max_seqlen": np.zeros(longest, np.int32)}
    proto = _packing_model("RaggedPositions", inputs, TensorProto.FLOAT)
    assert reason in _refusal(proto, inputs, library)
    with pytest.raises(Exception, match="ONNXRuntimeError"):  # the body finds another number of places than of tokens
        _body(proto).run(None, inputs)


@pytest.mark.parametrize("op", PACKED)
def test_counts_beyond_the_rows(op: str, library: Path) -> None:
    packing = random_packing(7, (3, 4))
    case = packed_case(op, packing, 7)
    name = "cu_seqlens" if op in ATTENTIONS else "row_count"
    for wrong in (-1, packing.real.size + 1):
        value = np.array([0, 1, wrong] if name == "cu_seqlens" else wrong, np.int32)
        bad = replace(case, inputs={**case.inputs, name: value})
        assert f"input '{name}'" in _refusal(model(bad), dict(bad.inputs), library)


def test_a_sequence_longer_than_its_places(library: Path) -> None:
    case = packed_case("FusedAttentionVariant", random_packing(3, (3, 9)), 3)
    short = {name: case.inputs[name][:8] for name in ("cos", "sin")}
    bad = replace(case, inputs={**case.inputs, **short})
    assert "input 'cos' has 8 rows, and sequence 1 9 tokens" in _refusal(model(bad), dict(bad.inputs), library)


def test_a_token_index_out_of_range(library: Path) -> None:
    packing = random_packing(9, (3, 4))
    case = packed_case("EmbedLayerNorm", packing, 9)
    for wrong in (-1, packing.real.size):
        index = packing.token_index.copy()
        index[0, 1] = wrong
        bad = replace(case, inputs={**case.inputs, "token_index": index})
        assert f"'token_index' holds {wrong}, expected a place among" in _refusal(model(bad), dict(bad.inputs), library)


def test_places_that_do_not_ascend(library: Path) -> None:
    packing = random_packing(8, (3, 4))
    case = packed_case("FusedAttentionVariant", packing, 8)
    for row, wrong in ((0, -1), (1, 0), (5, -7)):
        index = packing.token_index.copy()
        index.reshape(-1)[row] = wrong if row != 1 else index.reshape(-1)[0]
        bad = replace(case, inputs={**case.inputs, "token_index": index})
        holds = f"'token_index' holds {index.reshape(-1)[row]} at {row}, expected places that ascend"
        assert holds in _refusal(model(bad), dict(bad.inputs), library)


def test_one_session_in_eight_threads(library: Path) -> None:
    case = packed_case("FusedAttention", random_packing(2), 2)
    runner = session(model(case), library)

    def once(seed: int) -> None:
        # Other offsets over the same rows, so that nothing of a run may stay behind for the next.
        rng = np.random.default_rng(seed)
        rows = case.inputs["qkv"].shape[0] * case.inputs["qkv"].shape[1]
        count = int(case.inputs["cu_seqlens"][-1])
        inner = np.sort(rng.integers(0, count + 1, len(case.inputs["cu_seqlens"]) - 2))
        other = replace(case, inputs={**case.inputs, "cu_seqlens": np.array([0, *inner, count], np.int32)})
        assert count <= rows
        _check(other, count, _run(runner, other))

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(once, seed) for seed in range(80)]:
            future.result()
