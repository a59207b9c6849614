"""The routes as OpenAPI describes them, and a page of it that loads nothing from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import orjson

from bertfuse import __version__

from .front import Model
from .routes import POSTS

_TEXTS = {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_TEXTS_OR_IDS = {
    "oneOf": [
        *_TEXTS["oneOf"],
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
    ]
}
_FLAG, _NUMBER, _STRING = {"type": "boolean"}, {"type": "integer", "minimum": 1}, {"type": "string"}
_MODEL = {"type": "string", "description": "Which of the server's models; not needed where one fits."}
_CUT = {"truncate": _FLAG, "truncation_direction": {"type": "string", "enum": ["right", "Right"]}}
_LIST = {"type": "array", "items": {"type": "string"}}
_EMBED = {"inputs": _TEXTS_OR_IDS, "prompt_name": _STRING, **_CUT}
_DOCUMENTS = {
    "query": _STRING,
    "documents": {"type": "array", "items": {"oneOf": [_STRING, {"type": "object"}]}},
    "top_n": _NUMBER,
    "return_documents": _FLAG,
    "raw_scores": _FLAG,
}
_OPENAI = {
    "input": _TEXTS_OR_IDS,
    "modality": {"type": "string", "enum": ["text", "image"], "description": "image: input has data URIs."},
    "encoding_format": {"type": "string", "enum": ["float", "base64"]},
    "dimensions": _NUMBER,
    "prompt_name": _STRING,
    **_CUT,
}
_TASK = {"type": "string", "enum": ["query", "document"]}
_MULTI = {"input": _TEXTS_OR_IDS, "input_type": _TASK, "embedding_type": _OPENAI["encoding_format"]}
_MULTI |= {"dimensions": _NUMBER, "prompt_name": _STRING, **_CUT}
_PREDICT = {
    "inputs": {"oneOf": [_STRING, _LIST, {"type": "array", "items": _LIST}]},
    "raw_scores": _FLAG,
    **_CUT,
}

# path: (properties, those that must be there, an example)
_BODIES: dict[str, tuple[dict[str, Any], list[str], dict[str, Any]]] = {
    "/v1/embeddings": (_OPENAI, ["input"], {"input": ["A man is eating."]}),
    "/v1/multi-vector": (_MULTI, ["input"], {"input": ["anna eats"], "input_type": "document"}),
    "/v1/rerank": (_DOCUMENTS, ["query", "documents"], {"query": "who eats?", "documents": ["anna eats"]}),
    "/embed": (_EMBED | {"normalize": _FLAG, "dimensions": _NUMBER}, ["inputs"], {"inputs": ["A man is eating."]}),
    "/embed_all": (_EMBED | {"input_type": _TASK}, ["inputs"], {"inputs": ["A man is eating."]}),
    "/embed_sparse": (_EMBED, ["inputs"], {"inputs": ["A man is eating."]}),
    "/rerank": (
        {"query": _STRING, "texts": _LIST, "raw_scores": _FLAG, "return_text": _FLAG, **_CUT},
        ["query", "texts"],
        {"query": "who eats?", "texts": ["anna eats"]},
    ),
    "/predict": (_PREDICT, ["inputs"], {"inputs": "anna walks"}),
    "/similarity": (
        {
            "inputs": {"type": "object", "properties": {"source_sentence": _STRING, "sentences": _LIST}},
            "parameters": {"type": "object", "properties": {"prompt_name": _STRING, **_CUT}},
        },
        ["inputs"],
        {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    ),
    "/tokenize": (
        {"inputs": _TEXTS, "add_special_tokens": _FLAG, "prompt_name": _STRING},
        ["inputs"],
        {"inputs": "A man is eating."},
    ),
    "/decode": (
        {"ids": _TEXTS_OR_IDS["oneOf"][3], "skip_special_tokens": _FLAG},
        ["ids"],
        {"ids": [[101, 102]]},
    ),
}
_SAME = {"/embeddings": "/v1/embeddings", "/v2/rerank": "/v1/rerank", "/classify": "/predict"}
_GETS = {
    "/health": "200 where an engine answers, else 503.",
    "/metrics": "Counts and times, in Prometheus' text format.",
    "/info": "text-embeddings-inference: the models and the limits.",
    "/v1/models": "OpenAI: the models.",
}
_KINDS = {
    "embed": ("embeddings", "/embed", "/embed_all", "/similarity"),
    "rerank": ("rerank",),
    "classify": ("/predict", "/classify"),
    "sparse": ("/embed_sparse",),
    "late": ("/embed_all", "/v1/multi-vector", "rerank"),
}


def document(models: Sequence[Model]) -> dict[str, Any]:
    """OpenAPI 3.1 of the routes that these models answer."""
    kinds = {model.served.kind for model in models}
    paths: dict[str, Any] = {}
    for path, (_, _, summary) in POSTS.items():
        if path not in ("/tokenize", "/decode") and not any(_answers(kind, path) for kind in kinds):
            continue
        properties, needed, example = _BODIES[_SAME.get(path, path)]
        schema = {"type": "object", "properties": {"model": _MODEL, **properties}, "required": needed}
        body = {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}
        answers = {"200": {"description": "The answer."}, "4XX": {"description": "What is wrong, in one sentence."}}
        paths[path] = {"post": {"summary": summary, "requestBody": body, "responses": answers}}
    for path, summary in _GETS.items():
        paths[path] = {"get": {"summary": summary, "responses": {"200": {"description": "The answer."}}}}
    names = ", ".join(f"{model.served.name} ({model.served.kind}, {model.served.modality}s)" for model in models)
    info = {"title": "bertfuse", "version": __version__, "description": f"Models: {names}."}
    return {"openapi": "3.1.0", "info": info, "paths": paths}


def _answers(kind: str, path: str) -> bool:
    return any(path == name or (not name.startswith("/") and path.endswith(name)) for name in _KINDS[kind])


def page(described: dict[str, Any]) -> str:
    """HTML of an OpenAPI document: each route with its body, and a form that sends one."""
    parts = []
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            body = route.get("requestBody", {}).get("content", {}).get("application/json")
            inner = ""
            if body:
                needed = body["schema"]["required"]
                rows = "".join(
                    f"<tr><td>{html.escape(name)}{'*' if name in needed else ''}</td>"
                    f"<td><code>{html.escape(_kind(of))}</code></td></tr>"
                    for name, of in body["schema"]["properties"].items()
                )
                example = html.escape(orjson.dumps(body["example"]).decode())
                inner = f"<table>{rows}</table><textarea rows=3>{example}</textarea>"
            parts.append(
                f"<details data-method={method} data-path={html.escape(path)}><summary><b>{method.upper()}</b> "
                f"{html.escape(path)} <i>{html.escape(route['summary'])}</i></summary>{inner}"
                "<button>Send</button><pre></pre></details>"
            )
    info = described["info"]
    head = f"<h1>{html.escape(info['title'])} {info['version']}</h1><p>{html.escape(info['description'])}"
    return _PAGE.replace("HEAD", head).replace("ROUTES", "".join(parts))


def _kind(schema: dict[str, Any]) -> str:
    if "oneOf" in schema:
        return " | ".join(_kind(part) for part in schema["oneOf"])
    if "enum" in schema:
        return " | ".join(map(repr, schema["enum"]))
    return f"[{_kind(schema['items'])}]" if schema["type"] == "array" else schema["type"]


_PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>bertfuse</title>
<meta name=viewport content="width=device-width"><style>
body{font:16px system-ui;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
summary{cursor:pointer;padding:.4rem 0}details{border-bottom:1px solid #ddd}table{border-spacing:1rem .2rem}
textarea{width:100%;box-sizing:border-box;font:14px monospace}pre{overflow:auto;max-height:20rem}i{color:#666}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}textarea{color:#ddd;background:#222}i{color:#999}}
</style>HEAD<p>Key, if the server wants one: <input id=key size=30> · <a href=openapi.json>openapi.json</a></p>ROUTES
<script>
for (const route of document.querySelectorAll("details")) route.querySelector("button").onclick = async () => {
  const {method, path} = route.dataset, area = route.querySelector("textarea"), out = route.querySelector("pre");
  const key = document.getElementById("key").value;
  const headers = {"Content-Type": "application/json", ...(key ? {Authorization: "Bearer " + key} : {})};
  const sent = {method: method.toUpperCase(), headers, body: area ? area.value : undefined};
  const answer = await fetch(path.slice(1), sent);
  const text = await answer.text();
  out.textContent = answer.status + "\\n" + text.slice(0, 20000);
};
</script></html>"""
