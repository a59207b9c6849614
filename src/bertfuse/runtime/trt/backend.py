"""TensorRT or TensorRT for RTX, whichever is asked for or installed, with our plugins in its registry."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import re
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bertfuse.errors import BertfuseError, RuntimeLibraryError

from ..library import library_path

# The bare name that the parser of TensorRT for RTX opens, and the files of its wheel.
_RTX_NAME, _RTX, _RTX_PARSER = "libtensorrt_rtx.so", "libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"
_WHEEL_FILES = (_RTX, _RTX_PARSER)


@dataclass(frozen=True)
class _Kind:
    title: str
    modules: tuple[str, ...]  # the first that is installed
    minimum: tuple[int, int]
    why: str
    extra: str


_KINDS = {
    "tensorrt": _Kind("TensorRT", ("tensorrt",), (8, 5), "the first that the plugins are made for", "tensorrt"),
    "rtx": _Kind(
        "TensorRT for RTX",
        ("tensorrt_rtx", "tensorrt_rtx_bindings"),
        (1, 7),
        "the first whose parser imports IPluginV3 plugins",
        "rtx",
    ),
}
BACKENDS = tuple(_KINDS)
TITLES = {name: kind.title for name, kind in _KINDS.items()}


@dataclass(frozen=True)
class Backend:
    """One of BACKENDS: its Python module and the logger that everything made with it shares."""

    name: str
    title: str
    trt: Any
    log: Any

    @property
    def version(self) -> str:
        return str(self.trt.__version__)

    @property
    def is_older(self) -> bool:
        """Whether it is TensorRT 8 or 9: no strongly typed networks, IPluginV2DynamicExt, ONNX up to opset 17."""
        return self.name == "tensorrt" and _numbers(self.version) < (10,)

    @property
    def knows_layer_normalization(self) -> bool:
        return self.name != "tensorrt" or _numbers(self.version) >= (8, 6)

    def __str__(self) -> str:
        return f"{self.title} {self.version}"


def load_backend(name: str | None = None) -> Backend:
    """TensorRT ("tensorrt"), TensorRT for RTX ("rtx"), or (None) the first of the two that is installed.

    Raises RuntimeLibraryError where it is missing, too old or does not import.
    """
    if name is not None and name not in _KINDS:
        raise BertfuseError(f"backend {name!r} is unknown: choose one of {', '.join(BACKENDS)}")
    for candidate in [name] if name else BACKENDS:
        if _installed(candidate):
            return _load(candidate)
    wanted = _KINDS[name].title if name else "neither TensorRT nor TensorRT for RTX"
    hints = " or ".join(f"pip install 'bertfuse[{_KINDS[kind].extra}]'" for kind in ([name] if name else BACKENDS))
    raise RuntimeLibraryError(f"{wanted} is {'not ' if name else ''}installed: {hints}")


def _installed(name: str) -> str | None:
    """The module that is there."""
    return next((module for module in _KINDS[name].modules if importlib.util.find_spec(module)), None)


def _remedy(module: str, reason: str) -> str:
    """For a module that does not import. TensorRT 8's is for one Python, and its libraries need others."""
    try:
        version = importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        version = ""
    if version.startswith("8.") and "Python version" in reason:
        return f"the Python interface of TensorRT {version} ends at Python 3.10: run bertfuse by that"
    if version.startswith("8.") and "shared object" in reason:
        return f"TensorRT {version} needs cuBLAS 12 and cuDNN 8: put their folders on LD_LIBRARY_PATH"
    return "install it again"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


@cache
def _load(name: str) -> Backend:
    kind, module = _KINDS[name], _installed(name)
    if name == "rtx":
        _let_the_parser_find_rtx()
    try:
        trt = importlib.import_module(str(module))
        version = str(trt.__version__)
    except (ImportError, OSError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise RuntimeLibraryError(f"{kind.title} does not import ({reason}); {_remedy(str(module), reason)}") from error
    found = _numbers(version)[:2]
    if found < kind.minimum:
        least = ".".join(map(str, kind.minimum))
        raise RuntimeLibraryError(f"{kind.title} {version} is too old: {least} is {kind.why}; pip install --upgrade it")
    return Backend(name, kind.title, trt, _logger(trt))


_links: tempfile.TemporaryDirectory[str] | None = None


def _let_the_parser_find_rtx() -> None:
    """Loads TensorRT for RTX so that its parser, once it meets a plugin, finds "libtensorrt_rtx.so".

    The parser opens that bare name, the wheel has libtensorrt_rtx.so.1 only, and the process is terminated when the
    name is not found. The parser's run path is its own folder ($ORIGIN), which is the folder it was loaded through:
    one of symbolic links, in which the bare name exists, too. The loader then sees a file that it has already.
    """
    global _links
    wheel = _rtx_wheel()
    if _links is not None or wheel is None or _parser_is_loaded():
        return
    _links = tempfile.TemporaryDirectory(prefix="bertfuse-rtx-")
    folder = Path(_links.name)
    for name, file in ((_RTX_NAME, _RTX), (_RTX, _RTX), (_RTX_PARSER, _RTX_PARSER)):
        (folder / name).symlink_to(wheel / file)
    for name in _WHEEL_FILES:
        ctypes.CDLL(str(folder / name))


def _rtx_wheel() -> Path | None:
    """The folder of the wheel's libraries; None where the bare name resolves without our help."""
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    wheel = Path(spec.origin).parent if spec is not None and spec.origin else None
    if wheel is None or (wheel / _RTX_NAME).exists() or not all((wheel / name).is_file() for name in _WHEEL_FILES):
        return None
    try:
        ctypes.CDLL(_RTX_NAME)
    except OSError:
        return wheel
    return None


def _parser_is_loaded() -> bool:
    return _RTX_PARSER in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")


def _check_that_plugins_parse(backend: Backend) -> None:
    """RuntimeLibraryError where a plugin would end the process: TensorRT for RTX was loaded before we could help."""
    if backend.name == "rtx" and _links is None and _rtx_wheel() is not None:
        raise RuntimeLibraryError(
            "TensorRT for RTX was imported before bertfuse could make its parser find libtensorrt_rtx.so:"
            " call bertfuse.runtime.trt.load_backend() before the import"
        )


def _logger(trt: Any) -> Any:
    class Log(trt.ILogger):
        """Keeps warnings and errors instead of printing them; `take` hands the errors over."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(" ".join(message.split()))
            elif severity == trt.ILogger.Severity.WARNING:
                self.warnings.append(" ".join(message.split()))

        def take(self, default: str) -> str:
            """The first error since the last call (later ones follow from it), `default` where there was none."""
            errors, self.errors = self.errors, []
            return errors[0] if errors else default

    return Log()


_registered: set[tuple[str, Path]] = set()


def load_plugins(backend: Backend) -> Path:
    """Puts our plugin creators into the backend's registry; returns the library. Raises RuntimeLibraryError.

    BERTFUSE_TRT_LIBRARY names another library than the installed one.
    """
    path = library_path("tensorrt")
    if (backend.name, path) in _registered:
        return path
    _check_that_plugins_parse(backend)
    backend.log.take("")
    registry = backend.trt.get_plugin_registry()
    if not hasattr(registry, "load_library"):  # 8.5
        _register_by_itself(backend, path)
    elif registry.load_library(str(path)) is None:
        reason = backend.log.take("it exports no getCreators or lacks a library it needs")
        raise RuntimeLibraryError(f"{path}: {backend} does not load it: {reason}")
    _registered.add((backend.name, path))  # a registry takes a library once
    return path


def _register_by_itself(backend: Backend, path: Path) -> None:
    """For a registry that loads no libraries: the one beside `path` that registers it (and says on stderr why not)."""
    helper = path.with_name("libbertfuse_trt_autoload.so")
    try:
        ctypes.CDLL(str(helper))
    except OSError as error:
        raise RuntimeLibraryError(f"{helper}: {backend} needs it to register {path.name}: {error}") from error


def has_creator(backend: Backend, op: str, version: str, namespace: str) -> bool:
    """Whether a plugin of that name is registered."""
    try:
        registry = backend.trt.get_plugin_registry()
        find = registry.get_plugin_creator if backend.is_older else registry.get_creator
        return find(op, version, namespace) is not None
    finally:
        backend.log.take("")
