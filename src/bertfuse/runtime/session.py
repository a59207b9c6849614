"""An onnxruntime session that loads the custom-op library where that pays, and says plainly what went wrong."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnxruntime

from bertfuse.errors import BertfuseError, RuntimeLibraryError
from bertfuse.graph_rewrite.spec import DOMAIN

from .library import misses_library, register

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
PROVIDERS = {"cpu": [CPU], "cuda": [CUDA, CPU]}
LIBRARY_CHOICES = ("auto", "always", "never")

# SkipLayerNormalization's CPU kernel takes twice the time of the Add and LayerNormalization that it replaces: measured
# on 8x128 tokens of MiniLM with onnxruntime 1.31, 28 ms against 12 of 330 ms a run.
_SLOWER_ON_CPU = ["SkipLayerNormFusion"]

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


@contextmanager
def ort_errors(name: str) -> Iterator[None]:
    """Turns an onnxruntime exception into a BertfuseError of one line that starts with `name`."""
    try:
        yield
    except BertfuseError:
        raise
    except Exception as error:  # onnxruntime's own exception classes share no public base
        known = type(error).__module__.startswith(("onnxruntime", "polygraphy"))
        if not known and not isinstance(error, RuntimeError | ValueError):
            raise
        text = _PREFIX.sub("", str(error).strip())
        if "Could not find an implementation for" in text:  # it does not say for which type
            text += "; its CPU provider computes no bfloat16, for one: run such a model on a GPU"
        raise BertfuseError(f"{name}: ONNX Runtime: {' '.join(text.split())}") from error


def providers_of(provider: str) -> list[str]:
    """onnxruntime's provider list for "cpu" or "cuda"; BertfuseError where this onnxruntime lacks it."""
    if provider not in PROVIDERS:
        raise BertfuseError(f"provider {provider!r} is unknown: choose one of {', '.join(PROVIDERS)}")
    wanted = PROVIDERS[provider]
    missing = [name for name in wanted if name not in onnxruntime.get_available_providers()]
    if missing:
        raise BertfuseError(f"provider {provider}: this onnxruntime has no {missing[0]}; install onnxruntime-gpu")
    return list(wanted)


class InferenceSession(onnxruntime.InferenceSession):
    """onnxruntime.InferenceSession for fused (and any other) models.

    Args:
        path: the model's path, or its serialised bytes.
        providers: as onnxruntime's, or the name of one; None is the CPU.
        library: "auto" registers the custom-op library for sessions that are not CPU only, and on the CPU for models
            with bertfuse's ops: they take less time with it than by their op bodies (docs/performance.md), and where
            the library is missing a warning says so and the bodies run. A CPU-only session also leaves out the one
            fusion of onnxruntime that costs time there (unless `disabled_optimizers` is given). "always" and "never"
            leave no choice.
        tuning, tf32, deterministic_rows: as `register` takes them. What ONNX Runtime itself computes on a GPU keeps to
            tf32, too: off unless asked for here or in the provider's own option use_tf32.
        sess_options: as onnxruntime's. Without them only fatal errors are logged: the rest is raised.

    A provider that onnxruntime leaves out, because its libraries or its device are missing, is told by a warning, or
    by an error where the CPU was not asked for as well. `uses_library` tells whether the library was registered.

    Raises:
        RuntimeLibraryError: the library is needed and missing.
        BertfuseError: the model cannot be read or has something that onnxruntime cannot run.
    """

    uses_library: bool

    def __init__(
        self,
        path: str | os.PathLike[str] | bytes,
        providers: Sequence[Any] | str | None = None,
        *,
        library: str = "auto",
        tuning: str | os.PathLike[str] | None = None,
        tf32: bool = False,
        deterministic_rows: bool = False,
        sess_options: onnxruntime.SessionOptions | None = None,
        **options: Any,
    ) -> None:
        if library not in LIBRARY_CHOICES:
            raise BertfuseError(f"library {library!r} is unknown: choose one of {', '.join(LIBRARY_CHOICES)}")
        model = path if isinstance(path, bytes) else os.fspath(path)
        name = "model" if isinstance(model, bytes) else model
        if not isinstance(model, bytes) and not os.path.isfile(model):
            reason = (
                "is a folder; name the .onnx file in it" if os.path.isdir(model) else "no such file; check the path"
            )
            raise BertfuseError(f"{model}: {reason}")
        providers = [providers] if isinstance(providers, str) else list(providers or [CPU])
        if sess_options is None:
            sess_options = onnxruntime.SessionOptions()
            sess_options.log_severity_level = 4
        cpu_only = all((entry[0] if isinstance(entry, tuple) else entry) == CPU for entry in providers)
        settings: dict[str, Any] = {"tuning": tuning, "tf32": tf32, "deterministic_rows": deterministic_rows}
        self.uses_library = library == "always"
        if library == "always":
            register(sess_options, **settings)
        elif library == "auto" and (not cpu_only or has_fused_ops(model)):
            self.uses_library = _register(sess_options, **settings)
        if cpu_only:
            options.setdefault("disabled_optimizers", _SLOWER_ON_CPU)
        providers, options = _with_tf32(providers, options, tf32)
        # Where a provider fails, onnxruntime would say so on stdout and go on without it.
        options.setdefault("enable_fallback", 0)

        def load() -> None:
            super(InferenceSession, self).__init__(model, sess_options, providers=providers, **options)

        with ort_errors(name):
            try:
                load()
            except Exception as error:
                # What only the library can run is found by trying: reading a large model to find out costs more.
                if library != "auto" or self.uses_library or not misses_library(error):
                    raise
                register(sess_options, **settings)
                self.uses_library = True
                load()
            _check_providers(name, providers, self.get_providers())


# An ONNX file names the domains of its operators before its graph or behind it, never among the weights.
_ENDS_BYTES = 1 << 20
# An OperatorSetIdProto up to its version, by hand: importing onnx takes a tenth of a second.
_DOMAIN_ENTRY = b"\n" + bytes([len(DOMAIN)]) + DOMAIN.encode() + b"\x10"


def has_fused_ops(model: str | os.PathLike[str] | bytes) -> bool:
    """Whether a model (its path, or serialised) says at its beginning or end, where alone this looks, that it has
    bertfuse's ops.
    """
    if isinstance(model, bytes):
        return _DOMAIN_ENTRY in model[:_ENDS_BYTES] or _DOMAIN_ENTRY in model[-_ENDS_BYTES:]
    with open(model, "rb") as file:
        if _DOMAIN_ENTRY in file.read(_ENDS_BYTES):
            return True
        file.seek(max(0, os.path.getsize(model) - _ENDS_BYTES))
        return _DOMAIN_ENTRY in file.read()


def _with_tf32(providers: list[Any], options: dict[str, Any], tf32: bool) -> tuple[list[Any], dict[str, Any]]:
    """The providers with CUDA's use_tf32 set, where it is not: on is onnxruntime's default, an error of 4e-4."""
    setting = {"use_tf32": int(tf32)}
    beside = options.get("provider_options")
    if beside is not None:
        changed = [
            (setting | dict(own or {})) if name == CUDA else own for name, own in zip(providers, beside, strict=False)
        ]
        return providers, options | {"provider_options": changed}
    named = [(entry[0], dict(entry[1])) if isinstance(entry, tuple) else (entry, {}) for entry in providers]
    return [
        (name, setting | own) if name == CUDA else entry for (name, own), entry in zip(named, providers, strict=True)
    ], options


def _check_providers(model: str, wanted: Sequence[Any], given: Sequence[str]) -> None:
    names = [entry[0] if isinstance(entry, tuple) else entry for entry in wanted]
    missing = [name for name in names if name not in given]
    if not missing:
        return
    text = f"{model}: ONNX Runtime left {' and '.join(missing)} out; bertfuse doctor tells what it lacks"
    if CPU not in names:
        raise BertfuseError(text)
    warnings.warn(f"{text}; the session runs on {given[0]}", RuntimeWarning, stacklevel=4)


def check_on(session: onnxruntime.InferenceSession, providers: Sequence[Any], name: str) -> None:
    """Raises BertfuseError where a session runs on another provider than the first of those asked for."""
    first = next((entry[0] if isinstance(entry, tuple) else entry for entry in providers), CPU)
    if session.get_providers()[0] != first:
        raise BertfuseError(
            f"{name}: runs on {session.get_providers()[0]}, since ONNX Runtime left {first} out; bertfuse doctor tells "
            "what it lacks"
        )


def _register(sess_options: onnxruntime.SessionOptions, **settings: Any) -> bool:
    try:
        register(sess_options, **settings)
    except RuntimeLibraryError as error:
        warnings.warn(f"fused ops run as standard operators: {error}", RuntimeWarning, stacklevel=3)
        return False
    return True
