"""Packed execution: models without padding are what their padded selves are on real tokens, in both interfaces."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import FusionResult, fuse
from bertfuse.graph_rewrite.spec import DOMAIN
from tests import checkpoints
from tests.graph_rewrite.attentions import HIDDEN, Attention, attend
from tests.graph_rewrite.graphs import Builder
from tests.graph_rewrite.packing_models import (
    check,
    check_model,
    exported,
    fused,
    random_feed,
    random_mask,
    run,
    session,
    token_outputs,
)
from tests.model_coverage.families import LONGEST

# Family, task, exporter, and whether pooling takes the first token.
MODELS = [
    ("bert", "feature-extraction", "torchscript", True),
    ("bert", "fill-mask", "torchscript", False),
    ("bert", "token-classification", "torchscript", False),
    ("bert", "question-answering", "torchscript", False),
    ("bert", "text-classification", "torchscript", True),
    ("roberta", "text-classification", "torchscript", True),
    ("roberta", "feature-extraction", "torchscript", True),
    ("distilbert", "text-classification", "torchscript", True),
    ("electra", "text-classification", "torchscript", True),
    ("albert", "feature-extraction", "torchscript", True),
    ("bge (bert, cls)", "sentence-similarity", "torchscript", True),
    ("e5 (bert, mean)", "sentence-similarity", "torchscript", False),
    ("multilingual-e5 (xlm-roberta, mean)", "sentence-similarity", "torchscript", False),
    ("roberta", "text-classification", "dynamo", True),
]
IDS = ["-".join(map(str, model[:3])) for model in MODELS]


def _ops(result: FusionResult) -> Counter[str]:
    return Counter(node.op_type for node in result.model.graph.node if node.domain == DOMAIN)


@pytest.mark.parametrize("library", ["never", "always"])
@pytest.mark.parametrize("padding", ["remove", "ragged"])
@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_real_tokens_are_what_they_were(model: tuple[str, str, str, bool], padding: str, library: str) -> None:
    *name, first = model
    packed = fused(*name, padding=padding)
    assert _ops(packed)["FusedAttention"] == _ops(fused(*name))["FusedAttention"] > 0
    assert all("cu_seqlens" in " ".join(n.input) for n in packed.model.graph.node if n.op_type == "FusedAttention")
    onnx.checker.check_model(packed.model, full_check=True)
    check_model(fused(*name), packed, library, range(4), padding == "ragged", first)


@pytest.mark.parametrize("model", MODELS, ids=IDS)
def test_padded_models_are_byte_for_byte_what_they_were(model: tuple[str, str, str, bool]) -> None:
    path = exported(*model[:3])
    assert fuse(path, padding="keep").model.SerializeToString() == fuse(path).model.SerializeToString()


def test_the_interface_stays_or_is_ragged() -> None:
    def declared(result: FusionResult) -> list[tuple[str, int, int]]:
        values = [*result.model.graph.input, *result.model.graph.output]
        return [(v.name, v.type.tensor_type.elem_type, len(v.type.tensor_type.shape.dim)) for v in values]

    name = ("bert", "feature-extraction", "torchscript")
    assert declared(fused(*name, padding="remove")) == declared(fused(*name))
    ragged = fused(*name, padding="ragged").model.graph
    assert [value.name for value in ragged.input] == ["input_ids", "token_type_ids", "cu_seqlens", "max_seqlen"]
    assert [len(value.type.tensor_type.shape.dim) for value in ragged.input] == [1, 1, 1, 1]
    assert [len(value.type.tensor_type.shape.dim) for value in ragged.output] == [2, 2]


@pytest.mark.parametrize("padding", ["keep", "remove", "ragged"])
@pytest.mark.parametrize("library", ["never", "always"])
def test_rows_that_no_output_needs(padding: str, library: str) -> None:
    """Classification reads the first token: the last layer's projection and feed-forward network run for it alone."""
    name = ("bert", "text-classification", "torchscript")
    result = fused(*name, padding=padding, rows=True)
    (report,) = [report for report in result.passes if report.name == "rows that outputs need"]
    assert report.done == ["3 nodes run for the first row of each sequence alone"]
    check_model(fused(*name), result, library, range(6), padding == "ragged", True)
    # Behind the last attention everything has [B, H] rows.
    model = onnx.shape_inference.infer_shapes(fused(*name, padding="keep", rows=True).model)
    shapes = {v.name: len(v.type.tensor_type.shape.dim) for v in model.graph.value_info}
    last = [node for node in model.graph.node if node.op_type == "FusedGemmGelu"][-1]
    assert shapes[last.output[0]] == 2


@pytest.mark.parametrize("task", ["token-classification", "feature-extraction"])
def test_rows_that_an_output_needs_are_all_computed(task: str) -> None:
    result = fused("bert", task, padding="remove")
    (report,) = [report for report in result.passes if report.name == "rows that outputs need"]
    assert report.done == [] and len(report.left) == 1 and report.left[0]


@pytest.mark.parametrize("library", ["never", "always"])
def test_a_batch_without_any_token(library: str) -> None:
    for padding in ("remove", "ragged"):
        packed = session(fused("bert", "feature-extraction", padding=padding).model, library)
        mask = np.zeros((2, 5), np.int64)
        feed = random_feed(["input_ids", "attention_mask", "token_type_ids"], mask, np.random.default_rng(0))
        outputs = run(packed, bertfuse.ragged(feed) if padding == "ragged" else feed)
        assert not outputs["last_hidden_state"].any()
        assert np.isfinite(outputs["pooler_output"]).all()


def test_a_row_without_a_token_is_pooled_from_zeros() -> None:
    """What it is, is said in the README: the same for every such row, and finite."""
    packed = session(fused("bert", "text-classification", padding="remove").model)
    mask = np.array([[1, 1, 1], [0, 0, 0], [0, 0, 0]])
    feed = random_feed(["input_ids", "attention_mask", "token_type_ids"], mask, np.random.default_rng(0))
    logits = run(packed, feed)["logits"]
    assert np.isfinite(logits).all()
    np.testing.assert_array_equal(logits[1], logits[2])


def test_pooling_takes_the_first_real_token() -> None:
    """Padding on the left: the same as on the right, where the model computes positions from the mask or not at all."""
    packed = session(fused("roberta", "text-classification", padding="remove").model)
    rng = np.random.default_rng(1)
    ids = rng.integers(4, 90, (2, 6))
    left = {"input_ids": np.pad(ids, ((0, 0), (3, 0)), constant_values=1)}
    left["attention_mask"] = (left["input_ids"] != 1).astype(np.int64)
    right = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    names = {value.name for value in packed.get_inputs()}
    one, other = ({k: v for k, v in feed.items() if k in names} for feed in (left, right))
    np.testing.assert_allclose(run(packed, one)["logits"], run(packed, other)["logits"], 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("cu_seqlens", "longest", "reason"),
    [
        ([0, 5, 4, 9], 9, "falls from 5 to 4"),
        ([0, 4, 8], 9, "ends with 8, expected 9, the number of tokens"),
        ([0, 4, 9], 3, "sequence 0 has 4 tokens, but input 'max_seqlen' is 3 long"),
    ],
)
def test_bad_ragged_input_is_a_status(cu_seqlens: list[int], longest: int, reason: str) -> None:
    model = fused("bert", "feature-extraction", padding="ragged").model
    feed = {
        "input_ids": np.full(9, 7),
        "token_type_ids": np.zeros(9, np.int64),
        "cu_seqlens": np.array(cu_seqlens, np.int32),
        "max_seqlen": np.zeros(longest, np.int32),
    }
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match=reason):
        session(model, "always").run(None, feed)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        session(model).run(None, feed)


@pytest.mark.parametrize("library", ["never", "always"])
def test_a_sequence_longer_than_the_position_table_is_a_status(library: str) -> None:
    model = fused("bert", "feature-extraction", padding="ragged").model
    texts = {"input_ids": [[5] * 3, [6] * (LONGEST + 1)]}
    feed = bertfuse.ragged({**texts, "token_type_ids": [[0] * 3, [0] * (LONGEST + 1)]})
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        session(model, library).run(None, feed)


def test_ragged_takes_lists_and_arrays() -> None:
    lists = bertfuse.ragged({"input_ids": [[5, 6, 7], [], [8]]})
    mask = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]])
    arrays = bertfuse.ragged({"input_ids": [[5, 0, 6, 7], [9, 9, 9, 9], [0, 0, 0, 8]], "attention_mask": mask})
    for made in (lists, arrays):
        assert made["input_ids"].tolist() == [5, 6, 7, 8] and made["input_ids"].dtype == np.int64
        assert made["cu_seqlens"].tolist() == [0, 3, 3, 4] and made["cu_seqlens"].dtype == np.int32
        assert made["max_seqlen"].shape == (3,) and made["max_seqlen"].dtype == np.int32
    for bad, reason in (
        ({"token_type_ids": [[0]]}, "there are no input_ids"),
        ({"input_ids": [[1, 2]], "token_type_ids": [[0]]}, "token_type_ids has other lengths than input_ids"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "input_ids has other lengths than attention_mask"),
        ({"input_ids": [[1.5]]}, "input_ids must hold integers"),
    ):
        with pytest.raises(BertfuseError, match=reason):
            bertfuse.ragged(bad)


def test_ragged_takes_what_tokenizers_give() -> None:
    tokenizer = checkpoints.tokenizer()
    texts = ["anna walks", "the river"]
    alone = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    tokenizer.enable_padding(length=9)
    for given, ids in ((tokenizer.encode_batch(texts), alone), (tokenizer.encode(texts[0]), alone[:1])):
        made = bertfuse.ragged(given)
        assert made["input_ids"].tolist() == [token for row in ids for token in row]
        assert made["cu_seqlens"].tolist() == [0, *np.cumsum([len(row) for row in ids])]
        assert made["token_type_ids"].shape == made["input_ids"].shape
    for bad in ("anna walks", [[1, 2, 3]]):
        with pytest.raises(BertfuseError, match="give a mapping with input_ids"):
            bertfuse.ragged(bad)


def test_eight_threads_and_a_mask_each() -> None:
    name = ("bert", "feature-extraction", "torchscript")
    plain, packed = session(fused(*name).model, threads=1), session(fused(*name, padding="remove").model, "always", 1)

    def once(seed: int) -> None:
        rng = np.random.default_rng(seed)
        mask = random_mask(rng)
        feed = random_feed([value.name for value in plain.get_inputs()], mask, rng)
        check(run(plain, feed), run(packed, feed), mask, token_outputs(plain), False, True)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(once, seed) for seed in range(64)]:
            future.result()


@pytest.mark.parametrize("padding", ["remove", "ragged"])
@pytest.mark.parametrize("library", ["never", "always"])
def test_texts_of_1_to_4096_tokens(padding: str, library: str) -> None:
    name = ("long", "feature-extraction", "torchscript")
    plain, packed = session(fused(*name).model), session(fused(*name, padding=padding).model, library)
    for lengths in ([4096, 1], [1], [2, 700, 0, 129, 1]):
        mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
        feed = random_feed([value.name for value in plain.get_inputs()], mask, np.random.default_rng(0))
        given = bertfuse.ragged(feed) if padding == "ragged" else feed
        check(run(plain, feed), run(packed, given), mask, token_outputs(plain), padding == "ragged", True)


@pytest.mark.parametrize("padding", ["remove", "ragged"])
def test_fuzz_of_masks_and_lengths(padding: str) -> None:
    """Seeds are printed with their masks; BERTFUSE_PACKING_FUZZ says how many."""
    count = int(os.environ.get("BERTFUSE_PACKING_FUZZ", "25"))
    for model, library in ((MODELS[0], "always"), (MODELS[6], "never"), (MODELS[9], "always")):
        *name, first = model
        packed = fused(*name, padding=padding)
        check_model(fused(*name), packed, library, range(1000, 1000 + count), padding == "ragged", first)


@pytest.mark.parametrize("dtype", ["fp16"])
@pytest.mark.parametrize("library", ["never", "always"])
def test_half_precision(dtype: str, library: str) -> None:
    path = exported("bert", "feature-extraction")
    plain, packed = (session(fuse(path, padding=p, dtype=dtype).model, library) for p in ("keep", "remove"))
    rng = np.random.default_rng(4)
    mask = random_mask(rng)
    feed = random_feed([value.name for value in plain.get_inputs()], mask, rng)
    one, other = run(plain, feed)["last_hidden_state"], run(packed, feed)["last_hidden_state"]
    assert other.dtype == np.float16 and not other[mask == 0].any()
    np.testing.assert_allclose(other[mask != 0], one[mask != 0], 2e-2, 2e-2)


def _mask_as(kind: str) -> onnx.ModelProto:
    """A sentence encoder pooled by the mean, whose attention shows tokens by another comparison than "not 0"."""
    model = onnx.load(exported("e5 (bert, mean)", "sentence-similarity"))
    graph = model.graph
    (cast,) = [n for n in graph.node if n.op_type == "Cast" and list(n.input) == ["attention_mask"]]
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(2 if kind == "two" else 1), "shown"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.float32), "one"))
    make = onnx.helper.make_node
    nodes = [make("Equal", ["attention_mask", "shown"], list(cast.output))]
    if kind == "opposite":  # 1 - mask as a condition that hides: transformers 4
        nodes = [
            make("Cast", ["attention_mask"], ["mask_float"], to=onnx.TensorProto.FLOAT),
            make("Sub", ["one", "mask_float"], ["mask_opposite"]),
            make("Cast", ["mask_opposite"], ["mask_hides"], to=onnx.TensorProto.BOOL),
            make("Not", ["mask_hides"], list(cast.output)),
        ]
    place = list(graph.node).index(cast)
    del graph.node[place]
    for node in reversed(nodes):
        node.name = f"extra_{node.output[0]}"
        graph.node.insert(place, node)
    return model


@pytest.mark.parametrize("padding", ["remove", "ragged"])
@pytest.mark.parametrize("kind", ["one", "opposite"])
def test_masks_of_which_1_alone_shows_a_token(kind: str, padding: str) -> None:
    """2 would hide a token and weigh more than 1 in the pooling; masks of 0 and 1 are all that counts."""
    model = _mask_as(kind)
    packed = fuse(model, padding=padding)
    assert next(report.done for report in packed.passes if report.changes_padding), packed.pass_lines
    assert "Equal" in [node.op_type for node in fuse(model).model.graph.node]
    check_model(fuse(model), packed, "never", range(6), padding == "ragged", False)


def test_a_mask_that_1_does_not_show_keeps_padding() -> None:
    """Attention sees tokens of 2 alone, and pooling by the mask weighs those of 1, too."""
    packed = fuse(_mask_as("two"), padding="remove")
    (report,) = [report for report in packed.passes if report.changes_padding]
    assert report.done == [] and "what padding gives is needed" in report.left[0]
    with pytest.raises(BertfuseError, match="padding 'ragged' is not possible: what padding gives is needed"):
        fuse(_mask_as("two"), padding="ragged")


def test_what_cannot_be_packed_is_left_with_a_reason() -> None:
    path = exported("bert", "feature-extraction")
    basic = fuse(path, level="basic", padding="remove")
    assert "there is no FusedAttention" in basic.passes[0].left[0]
    assert basic.model.SerializeToString() == fuse(path, level="basic").model.SerializeToString()
    with pytest.raises(BertfuseError, match="padding 'ragged' is not possible: there is no FusedAttention"):
        fuse(path, level="basic", padding="ragged")
    with pytest.raises(BertfuseError, match="padding 'none' is unknown; choose one of keep, remove, ragged"):
        fuse(path, padding="none")


def test_weights_of_another_input_keep_padding() -> None:
    """Where 1 alone shows a token, 0 hides it: 0 of the mask, not of other numbers."""
    b = Builder()
    ids, mask, types = (b.ids(name, ("B", "S")) for name in ("ids", "attention_mask", "types"))
    x = b.layer_norm(b.op("Add", *(b.op("Gather", b.weight(9, HIDDEN), i, axis=0) for i in (ids, types))), HIDDEN)
    visible = b.op("Unsqueeze", b.op("Equal", mask, b.const(1)), b.const([1, 2]))
    context = attend(b, x, Attention(parts={"mask": b.op("Where", visible, b.const(0.0), b.const(-np.inf))}), mask)
    y = b.layer_norm(b.op("Add", b.linear(context, HIDDEN, HIDDEN), x), HIDDEN)
    for source, kept in ((mask, False), (types, True)):
        weight = b.op("Cast", b.op("Unsqueeze", b.op("Equal", source, b.const(1)), b.const([2])), to=1)
        b.outputs.clear()
        b.output(b.op("ReduceSum", b.op("Mul", y, weight), b.const([1]), keepdims=0))
        report = fuse(b.model(), padding="remove").passes
        reasons = [why for p in report if p.changes_padding for why in p.left if why.startswith("what padding gives")]
        assert bool(reasons) is kept
