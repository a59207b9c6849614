"""Vectors of a folder with routes: queries and documents, or texts and images, through models of their own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertfuse.errors import BertfuseError
from bertfuse.model_folder.routes import read_router
from bertfuse.model_folder.sentence_modules import SENTENCE
from bertfuse.model_folder.towers import IMAGE, TEXT

from .image_processing import is_image
from .vectors import as_tensor, check_precision, quantized

if TYPE_CHECKING:
    from .model import TextModel


class RoutedEncoder:
    """What `Encoder` gives of a folder of sentence-transformers' Router (or Asym): an encoder for each of its routes.

    `kind` is the class of these; other arguments as its own. What is not said here is answered by the default route,
    where there is one, or the first.

    Attributes:
        routes: the encoders, by the route's name.
        default_route: the route of texts for which no task is given; None: they need one.
    """

    def __init__(self, kind: type[TextModel], folder: str | os.PathLike[str], **options: Any) -> None:
        router = read_router(Path(folder))
        assert router is not None
        self._router, self.folder = router, Path(folder)
        self.routes: dict[str, Any] = {name: kind(folder, **(options | {"route": name})) for name in router.routes}
        self.default_route = router.route(None)

    def route(self, task: str | None = None) -> Any:
        """The encoder of texts of that task. Raises BertfuseError where there is none."""
        try:
            name = self._router.route(task)
        except KeyError:
            name = None
        if name is None:
            asked = f"task {task!r} has no route" if task is not None else "it has no default route"
            raise BertfuseError(f"{self.folder}: {asked}; name a task: {', '.join(self.routes)}")
        return self.routes[name]

    def encode(self, sentences: Any, *positional: Any, task: str | None = None, **options: Any) -> Any:
        """As Encoder.encode, by the route of `task`; of texts in dictionaries, as {"query": "a text"}, by their key. Of
        towers images, and strings that are paths of images' files, go through theirs.
        """
        if self._router.towers and task not in self.routes and not isinstance(sentences, Mapping):
            return self._by_kind("encode", sentences, *positional, **options)
        texts = [sentences] if isinstance(sentences, str | Mapping) else list(sentences)
        if task is None and texts and isinstance(texts[0], Mapping):
            keys = {key for text in texts for key in text}
            if len(keys) != 1:
                raise BertfuseError(f"texts of several routes ({', '.join(sorted(keys))}): encode each by itself")
            (task,) = keys
            texts = [text[task] for text in texts]
        alone = isinstance(sentences, str | Mapping)
        return self.route(task).encode(texts[0] if alone else texts, *positional, **options)

    def encode_query(self, sentences: str | Iterable[str], **options: Any) -> Any:
        """`encode` of queries, with the prompt named "query", where there is one."""
        if self._router.towers:
            return self._by_kind("encode_query", sentences, **options)
        return self.route(options.pop("task", None) or "query").encode_query(sentences, **options)

    def encode_document(self, sentences: str | Iterable[str], **options: Any) -> Any:
        """`encode` of documents, with the prompt named "document", "passage" or "corpus", where there is one."""
        if self._router.towers:
            return self._by_kind("encode_document", sentences, **options)
        return self.route(options.pop("task", None) or "document").encode_document(sentences, **options)

    def _by_kind(self, method: str, given: Any, *positional: Any, **options: Any) -> Any:
        """`method` of the tower of texts, or of images, or of both where there are some of each."""
        options.pop("task", None)
        text, image = (getattr(self.routes[name], method) for name in (TEXT, IMAGE))
        if self.routes[TEXT].is_one(given) or self.routes[IMAGE].is_one(given):
            return (image if is_image(given) else text)(given, *positional, **options)
        given = list(given)
        images = np.array([is_image(one) for one in given], bool)
        if images.all() or not images.any():
            return (image if images.any() else text)(given, *positional, **options)
        if positional:
            raise BertfuseError("of images and texts together name the arguments: batch_size=…, normalize_embeddings=…")
        precision = check_precision(options.pop("precision", None))
        tensor, numpy = options.pop("convert_to_tensor", False), options.pop("convert_to_numpy", True)
        if options.get("output_value", SENTENCE) != SENTENCE:
            raise BertfuseError("of images and texts together there are vectors alone: leave output_value out")
        made: Any = None
        for part, which in ((image, images), (text, ~images)):
            found = part([given[at] for at in np.flatnonzero(which)], **options)
            made = np.empty((len(given), found.shape[1]), np.float32) if made is None else made
            made[which] = found
        made = quantized(made, precision)
        return as_tensor(made) if tensor else made if numpy else list(made)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "routes":
            raise AttributeError(name)
        return getattr(self.routes[self.default_route or next(iter(self.routes))], name)

    def __repr__(self) -> str:
        routes = ", ".join(f"{name}={encoder!r}" for name, encoder in self.routes.items())
        return f"RoutedEncoder(default_route={self.default_route!r}, {routes})"
