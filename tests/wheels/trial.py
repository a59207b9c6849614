"""What an installed wheel must do, with the bertfuse command alone: doctor, fuse, embed, the kernels of the library."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

import bertfuse

HIDDEN, INNER, WORDS = 32, 64, 50


def bertfuse_says(*arguments: object) -> str:
    ran = subprocess.run(["bertfuse", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def write_model(folder: Path, random: np.random.Generator) -> Path:
    """An embedding and one feed-forward layer, as exporters write it, with a tokenizer of words."""
    shapes = {"words": (WORDS, HIDDEN), "up": (HIDDEN, INNER), "up_bias": (INNER,), "down": (INNER, HIDDEN)}
    shapes |= {name: (HIDDEN,) for name in ("down_bias", "scale", "shift")}
    weights = [
        numpy_helper.from_array(random.normal(0, 0.3, shape).astype(np.float32), name) for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "up"], ["u"]),
        helper.make_node("Add", ["u", "up_bias"], ["ub"]),
        helper.make_node("Gelu", ["ub"], ["g"]),
        helper.make_node("MatMul", ["g", "down"], ["d"]),
        helper.make_node("Add", ["d", "down_bias"], ["db"]),
        helper.make_node("Add", ["db", "x"], ["sum"]),
        helper.make_node(
            "LayerNormalization", ["sum", "scale", "shift"], ["last_hidden_state"], axis=-1, epsilon=1e-12
        ),
    ]
    names = ("input_ids", "attention_mask", "token_type_ids")  # what texts give; all but the first are not read
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["B", "S"]) for name in names]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["B", "S", HIDDEN])
    graph = helper.make_graph(nodes, "feed_forward", inputs, [output], weights)
    (folder / "onnx").mkdir(parents=True)
    path = folder / "onnx" / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    words = {"[PAD]": 0, "[UNK]": 1} | {f"w{number}": number for number in range(2, WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "bert", "pad_token_id": 0}')
    return path


def main() -> None:
    for tool in ("cc", "c++", "g++", "cmake", "nvcc"):
        assert shutil.which(tool) is None, f"{tool} is on the path: this shows nothing"
    seed = int(np.random.SeedSequence().entropy) % 2**32
    print(f"seed {seed}, bertfuse {bertfuse.__version__}, onnxruntime {onnxruntime.__version__}")
    random = np.random.default_rng(seed)
    report = json.loads(bertfuse_says("doctor", "--json"))
    assert all(library["loads"] for library in report["libraries"].values()), report
    print("GPU code:", ", ".join(report["gpu_code"]["machine_code"]) or report["gpu_code"]["left_out"])

    model = write_model(Path("model"), random)
    fused = json.loads(bertfuse_says("fuse", "model", "-o", "fused", "--json"))["fused"]
    assert fused["FusedGemmGelu"] == fused["FusedGemmLayerNorm"] == 1, fused
    ids = random.integers(2, WORDS, (3, 7))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    want = onnxruntime.InferenceSession(model).run(None, feed)[0]
    options = onnxruntime.SessionOptions()
    bertfuse.register(options)
    found = onnxruntime.InferenceSession("fused/onnx/model.onnx", options).run(None, feed)[0]
    # float32 sums of 64 products of numbers around 1, in another order.
    np.testing.assert_allclose(found, want, atol=2e-5)

    Path("texts.txt").write_text("\n".join(" ".join(f"w{word}" for word in row) for row in ids))
    bertfuse_says("embed", "texts.txt", "-o", "vectors", "--model", "fused")
    assert list(Path("vectors").glob("part-*"))
    bertfuse_says("qualify", "--devices", "cpu", "--minutes", "0.05", "-o", "qualify.jsonl")


if __name__ == "__main__":
    main()
