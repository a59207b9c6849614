"""Stands in for Triton's onnxruntime backend, which nvidia-pytriton lacks: does with a batch what that backend does.

Ragged inputs are laid out one after the other, and batch inputs are made as model_config.proto defines them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._config = json.loads(args["model_config"])
        file = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])

    def execute(self, requests: list[Any]) -> list[Any]:
        feed, lengths = {}, []
        for value in self._config["input"]:
            arrays = [pb_utils.get_input_tensor_by_name(r, value["name"]).as_numpy() for r in requests]
            assert sum(map(len, arrays)) <= self._config["max_batch_size"]
            if value["allow_ragged_batch"]:
                lengths = [array.size for array in arrays]
                feed[value["name"]] = np.concatenate([array.reshape(-1) for array in arrays])
            else:
                feed[value["name"]] = np.concatenate(arrays)
        for value in self._config["batch_input"]:
            (name,) = value["target_name"]
            if value["kind"] == "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
                feed[name] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            else:
                assert value["kind"] == "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
                feed[name] = np.zeros(max(lengths), np.int32)
        names = [value["name"] for value in self._config["output"]]
        found = dict(zip(names, self._session.run(names, feed), strict=True))
        scattered = {name for value in self._config["batch_output"] for name in value["target_name"]}
        counts = [len(pb_utils.get_input_tensor_by_name(r, "input_ids").as_numpy()) for r in requests]
        rows, tokens = np.cumsum([0, *counts]), np.cumsum([0, *lengths])
        responses = []
        for index, request in enumerate(requests):
            tensors = []
            for name in request.requested_output_names():
                if name in scattered:
                    array = found[name][None, tokens[index] : tokens[index + 1]]
                else:
                    array = found[name][rows[index] : rows[index + 1]]
                tensors.append(pb_utils.Tensor(name, np.ascontiguousarray(array)))
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
