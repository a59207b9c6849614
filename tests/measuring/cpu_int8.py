"""int8 models on the CPU, taking turns: python -m tests.measuring.cpu_int8 FLOAT INT8 [--threads 1,2] [--texts FILE]

FLOAT is a folder that `bertfuse optimize` wrote, INT8 what `bertfuse quantize` made of it. Beside them: the original
as `onnxruntime.quantization.quantize_dynamic` quantises it, that file fused, and where openvino and nncf are installed
and there are texts, OpenVINO's int8 model. Processor milliseconds of a run, which other work on the machine disturbs
less than its time: the least and the median; all threads' together. Of every other text, the rest of which nncf
calibrates with, the mean cosine of mean-pooled vectors to the original's.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import quantize_dynamic

from bertfuse.analysis.bench import machine
from bertfuse.graph_rewrite import fuse_file
from bertfuse.model_folder.files import model_pair
from bertfuse.runtime.inputs import random_inputs, read_texts, text_inputs, vocabulary_sizes
from bertfuse.runtime.library import register
from tests.measuring.cpu_turns import times


def session(path: Path, threads: int, library: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    if library:
        register(options)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class OpenVino:
    """A model of OpenVINO, run as an ONNX Runtime session is."""

    def __init__(self, path: Path, threads: int) -> None:
        import openvino

        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._request = openvino.Core().compile_model(str(path), "CPU", options).create_infer_request()
        self._inputs = [one.any_name for one in self._request.model_inputs]

    def run(self, _: None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        found = self._request.infer({name: feed[name] for name in self._inputs})
        return list(found.values())


def quantize_by_nncf(original: Path, target: Path, feeds: list[dict[str, np.ndarray]]) -> None:
    import nncf
    import openvino

    model = openvino.Core().read_model(str(original))
    made = nncf.quantize(model, nncf.Dataset(feeds), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(feeds))
    openvino.save_model(made, str(target))


def pooled(made: Any, feeds: list[dict[str, np.ndarray]]) -> np.ndarray:
    vectors = np.concatenate([made.run(None, feed)[0].mean(axis=1) for feed in feeds])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("floats", type=Path)
    parser.add_argument("int8", type=Path)
    parser.add_argument("--sizes", default="1x16,1x128,8x128")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each size")
    given = parser.parse_args()
    original, ours = model_pair(given.floats)[0], model_pair(given.int8)[1]
    sizes = [tuple(map(int, size.split("x"))) for size in given.sizes.split(",")]
    texts = [] if given.texts is None else read_texts(given.texts)
    feeds = [text_inputs(given.floats, [text]) for text in texts]
    openvino = bool(feeds) and all(importlib.util.find_spec(name) for name in ("openvino", "nncf"))
    about = machine()
    print(f"{about['cpu']}, {about['cores']} cores, onnxruntime {about['onnxruntime']}; least, median")
    with tempfile.TemporaryDirectory() as scratch:
        theirs, fused, nncf = (Path(scratch, name) for name in ("theirs.onnx", "fused.onnx", "nncf.xml"))
        quantize_dynamic(original, theirs)
        fuse_file(theirs, fused)
        if openvino:
            plain = Path(scratch, "original.onnx")  # OpenVINO goes by the suffix
            plain.write_bytes(original.read_bytes())
            quantize_by_nncf(plain, nncf, feeds[1::2])
        for threads in map(int, given.threads.split(",")):
            contenders: dict[str, Any] = {
                "original, float32": session(original, threads, False),
                "quantize_dynamic": session(theirs, threads, False),
                "quantize_dynamic, fused": session(fused, threads, True),
                "bertfuse int8, op bodies": session(ours, threads, False),
                "bertfuse int8, library": session(ours, threads, True),
            }
            if openvino:
                contenders["OpenVINO, nncf's int8"] = OpenVino(nncf, threads)
            rows, made = vocabulary_sizes(original), list(contenders.values())
            found = [times(made, random_inputs(made[0], rows, *size, padded=False), given.seconds) for size in sizes]
            print(f"\nload {os.getloadavg()[0]:.1f}\n")
            print(" | ".join([f"| {threads} threads", *given.sizes.split(","), "cosine |"]))
            print("|---|" + "---|" * (len(sizes) + 1))
            expected = pooled(made[0], feeds[::2]) if feeds else None
            for place, (name, one) in enumerate(contenders.items()):
                cells = [f"{least:.3g}, {median:.3g}" for _, _, least, median in (of[place] for of in found)]
                cosine = f"{np.sum(pooled(one, feeds[::2]) * expected, axis=1).mean():.5f}" if feeds else ""
                print(f"| {name} | " + " | ".join([*cells, cosine]) + " |", flush=True)


if __name__ == "__main__":
    main()
