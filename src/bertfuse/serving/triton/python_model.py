"""The Python model of a repository that `bertfuse triton` wrote: texts in, vectors or scores out.

Runs inside Triton's Python backend. The model is run here, or by another model of the repository (`CalledSession`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from bertfuse.inference import Classifier, Encoder, Reranker
from bertfuse.runtime.ragged_inputs import LONGEST, OFFSETS
from bertfuse.runtime.session import CPU

Feed = Mapping[str, np.ndarray]
MAX_BATCH_TOKENS = 16384  # of one run of the model that is called


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        version = Path(args["model_repository"]) / args["model_version"]
        pipeline = json.loads((version / "pipeline.json").read_text(encoding="utf-8"))
        self._kind = pipeline["kind"]
        folder = version / "model"
        options: dict[str, Any] = {"max_seq_length": pipeline["max_seq_length"]}
        if "runs" in pipeline:
            # Any file of the folder stands for the model, which is not in it: the session is what runs.
            folder /= "config.json"
            options |= {"session": CalledSession(pipeline["runs"]), "max_batch_tokens": MAX_BATCH_TOKENS}
        else:
            on_gpu = args["model_instance_kind"] == "GPU"
            options["device"] = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"
            options["library"] = pipeline["library"]
        self._model: Any = {"embed": Encoder, "rerank": Reranker, "classify": Classifier}[self._kind](folder, **options)

    def execute(self, requests: list[Any]) -> list[Any]:
        """All texts of all requests at once; a request that holds no text gets an error of its own."""
        responses: list[Any] = [None] * len(requests)
        given: dict[int, list[Any]] = {}
        for index, request in enumerate(requests):
            try:
                given[index] = self._texts(request)
            except UnicodeDecodeError as error:
                message = f"text is not UTF-8: {error.reason} at byte {error.start}"
                responses[index] = pb_utils.InferenceResponse(error=pb_utils.TritonError(message))
        if given:
            found = self._answers([text for texts in given.values() for text in texts])
            start = 0
            for index, texts in given.items():
                rows = np.ascontiguousarray(found[start : start + len(texts)])
                name = {"embed": "embedding", "rerank": "score", "classify": "scores"}[self._kind]
                responses[index] = pb_utils.InferenceResponse([pb_utils.Tensor(name, rows)])
                start += len(texts)
        return responses

    def _texts(self, request: Any) -> list[Any]:
        names = ("query", "text") if self._kind == "rerank" else ("text",)
        columns = [
            [value.decode() for value in pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)]
            for name in names
        ]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _answers(self, texts: list[Any]) -> np.ndarray:
        if self._kind == "embed":
            return self._model.encode(texts)
        if self._kind == "rerank":
            return self._model.predict(texts)[:, None]
        scores: list[Any] = [None] * len(texts)
        for row, found in self._model.scores(texts):
            scores[row] = found
        return np.stack(scores).astype(np.float32)


class CalledSession:
    """What bertfuse's classes use of an onnxruntime session, of a model of the same repository."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        self._name, self._max_batch_size = described["model"], described["max_batch_size"]
        self._ragged, self._shortest = described["ragged"], described.get("shortest", 1)
        self._inputs, self._outputs = (
            [SimpleNamespace(**value) for value in described[part]] for part in ("inputs", "outputs")
        )
        self._metadata = described["metadata"]

    def get_inputs(self) -> list[SimpleNamespace]:
        return self._inputs

    def get_outputs(self) -> list[SimpleNamespace]:
        return self._outputs

    def get_providers(self) -> list[str]:
        """The CPU, whatever the called model runs on: one run at a time."""
        return [CPU]

    def get_modelmeta(self) -> SimpleNamespace:
        return SimpleNamespace(custom_metadata_map=self._metadata)

    def run(self, names: Sequence[str], feed: Feed, options: Any = None) -> list[np.ndarray]:
        """As onnxruntime's, in one request for each `max_batch_size` texts.

        A ragged model gets one for each text: Triton puts them together, and makes cu_seqlens and max_seqlen.
        """
        if self._ragged:
            bounds = feed[OFFSETS]
            rows = {name: array for name, array in feed.items() if name not in (OFFSETS, LONGEST)}
            feeds = [{name: array[None, start:end] for name, array in rows.items()} for start, end in pairwise(bounds)]
            answers = asyncio.run(self._call_all(names, feeds))
            of_tokens = {value.name for value in self._outputs if value.shape[0] == self._inputs[0].shape[0]}
            return [
                np.concatenate([answer[at][0] if name in of_tokens else answer[at] for answer in answers])
                for at, name in enumerate(names)
            ]
        count, length = feed["input_ids"].shape
        missing = max(0, self._shortest - length)
        if missing:
            feed = {name: np.pad(array, ((0, 0), (0, missing))) for name, array in feed.items()}
        starts = range(0, count, self._max_batch_size)
        parts = [
            {name: array[start : start + self._max_batch_size] for name, array in feed.items()} for start in starts
        ]
        answers = asyncio.run(self._call_all(names, parts))
        found = [np.concatenate([answer[at] for answer in answers]) for at in range(len(names))]
        return [array[:, :length] if missing and array.ndim > 2 else array for array in found]

    async def _call_all(
        self, names: Sequence[str], feeds: Sequence[Mapping[str, np.ndarray]]
    ) -> list[list[np.ndarray]]:
        return await asyncio.gather(*(self._call(names, feed) for feed in feeds))

    async def _call(self, names: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        request = pb_utils.InferenceRequest(
            model_name=self._name,
            requested_output_names=list(names),
            inputs=[pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in feed.items()],
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        )
        response = await request.async_exec()
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return [pb_utils.get_output_tensor_by_name(response, name).as_numpy() for name in names]
