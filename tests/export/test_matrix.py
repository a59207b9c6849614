"""Every exporter, attention and task: the ONNX file computes what PyTorch computes, at every batch and sequence."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from bertfuse.export import TASKS
from tests.tiny_models import ATTENTIONS, EXPORTERS, HEADS, HIDDEN, LAYERS, LONGEST, build, exported, inputs, reference

# The traced size is 2 x 7: sizes of 1 and sizes beyond it are where a constant would show.
SHAPES = ((1, 1), (1, 9), (3, 1), (2, 7), (4, LONGEST))

OUTPUTS = {
    "feature-extraction": ["last_hidden_state", "pooler_output"],
    "sentence-similarity": ["last_hidden_state", "sentence_embedding"],
    "fill-mask": ["logits"],
    "text-classification": ["logits"],
    "token-classification": ["logits"],
    "question-answering": ["start_logits", "end_logits"],
}


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("task", list(TASKS))
def test_computes_what_pytorch_computes(task: str, exporter: str, attention: str) -> None:
    path = exported(task, exporter, attention)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    assert names == OUTPUTS[task]
    model = build(task)
    for batch, sequence in SHAPES:
        feed = inputs(batch, sequence)
        for name, got, want in zip(names, session.run(None, feed), reference(model, feed, names), strict=True):
            # float32 sums in another order, over two layers of values around 1.
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5, err_msg=f"{name} at {batch}x{sequence}")


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_file_says_what_it_is(exporter: str, attention: str) -> None:
    model = onnx.load(exported("feature-extraction", exporter, attention))
    onnx.checker.check_model(model, full_check=True)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    expected = {
        "task": "feature-extraction",
        "exporter": exporter,
        "attention": attention,
        "dtype": "fp32",
        "model_type": "bert",
        "num_hidden_layers": str(LAYERS),
        "num_attention_heads": str(HEADS),
        "hidden_size": str(HIDDEN),
    }
    assert {key: properties.get(f"bertfuse.{key}") for key in expected} == expected
    assert properties["bertfuse.torch_version"] and properties["bertfuse.transformers_version"]
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    assert opset == {"dynamo": 20, "torchscript": 17}[exporter]
    for value in (*model.graph.input, model.graph.output[0]):
        assert [dim.dim_param for dim in value.type.tensor_type.shape.dim][:2] == ["batch", "sequence"]
    assert "embeddings.word_embeddings.weight" in {tensor.name for tensor in model.graph.initializer}


def test_nothing_of_the_exporting_machine_is_in_the_file() -> None:
    import transformers

    content = exported("feature-extraction", "dynamo", "sdpa").read_bytes()
    assert str(transformers.__path__[0]).encode() not in content
    assert b"stack_trace" not in content
