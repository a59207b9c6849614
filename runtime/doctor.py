"""What is installed, what loads, and what that means for running fused models."""

from __future__ import annotations

import ctypes
import importlib.metadata
import platform
import shutil
import subprocess
from typing import Any

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS
from bertfuse.graph_rewrite.spec import DOMAIN, OP_VERSION

from . import native
from .library import LIBRARIES, library_path, misses_library, register

PACKAGES = (
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnx-graphsurgeon",
    "polygraphy",
    "torch",
    "transformers",
    "tensorrt",
    "tensorrt-rtx-cu13-libs",
)
REQUIRED = ("onnx", "onnx-graphsurgeon", "polygraphy")


def doctor() -> dict[str, Any]:
    """A report as plain data; `problems` lists what keeps fused models from running, each with what to do."""
    packages = {name: _version(name) for name in PACKAGES}
    problems = [f"{name} is not installed: pip install {name}" for name in REQUIRED if packages[name] is None]
    providers: list[str] = []
    try:
        import onnxruntime

        providers = onnxruntime.get_available_providers()
    except ImportError as error:
        problems.append(f"onnxruntime does not import ({error}): pip install onnxruntime, or onnxruntime-gpu")
    libraries = {runtime: _library(runtime, bool(providers)) for runtime in LIBRARIES}
    gpus = _gpus()
    if gpus and providers and "CUDAExecutionProvider" not in providers:
        problems.append("there is a GPU, but this onnxruntime has no CUDA provider: pip install onnxruntime-gpu")
    gpu_code = _gpu_code() if libraries["onnxruntime"]["loads"] else None
    if gpus and gpu_code is not None and not gpu_code["machine_code"]:
        problems.append("there is a GPU, but the library has no CUDA kernels: run 'make build' where nvcc is found")
    for gpu in gpu_code["gpus"] if gpu_code else []:
        if gpu_code["machine_code"] and gpu["uses"] is None:
            problems.append(
                f"the library has no code for {gpu['name']} ({gpu['compute_capability']}): build it with"
                f" -DBERTFUSE_CUDA_ARCHITECTURES={gpu['compute_capability'].replace('.', '')}"
            )
    # Without the library fused models still run, on their op bodies: a library that is there but broken is a problem.
    problems += [entry["error"] for entry in libraries.values() if entry["path"] and entry["error"]]
    return {
        "bertfuse": bertfuse.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "ops": {"domain": DOMAIN, "version": OP_VERSION, "names": list(OPS)},
        "libraries": libraries,
        "providers": providers,
        "gpus": gpus,
        "gpu_code": gpu_code,
        "problems": problems,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _library(runtime: str, available: bool) -> dict[str, Any]:
    """Whether the library is there, registers with its runtime, and which of our ops it brings."""
    entry: dict[str, Any] = {"path": None, "loads": False, "ops": [], "error": None}
    try:
        entry["path"] = str(library_path(runtime))
        if runtime == "tensorrt":
            entry["ops"] = _plugins(entry["path"])
            entry["loads"] = True
        elif available:
            import onnxruntime

            register(onnxruntime.SessionOptions())
            entry["loads"] = True
            entry["ops"] = _known_ops()
    except BertfuseError as error:
        entry["error"] = str(error)
    return entry


def _plugins(path: str) -> list[str]:
    """The ops that the library has TensorRT plugins for; asking needs no TensorRT."""
    count = ctypes.c_int32()
    try:
        library = ctypes.CDLL(path)
        library.getCreators.restype = ctypes.c_void_p
        library.getCreators(ctypes.byref(count))
    except (OSError, AttributeError) as error:
        raise BertfuseError(f"{path}: does not load: {error}; build it again with 'make build'") from error
    if count.value != len(OPS):
        raise BertfuseError(f"{path}: has {count.value} plugins, not {len(OPS)}; build it again with 'make build'")
    return list(OPS)


def _gpu_code() -> dict[str, Any] | None:
    """Which architectures the library's GPU code is for, and what each GPU here uses of it; None where it can't say."""
    try:
        built = native.gpu_architectures()
        gpus = list(native.gpus())
    except (BertfuseError, native.NativeError):
        return None
    code: dict[str, Any] = {
        "machine_code": [_version_of(name) for name in built if not name.endswith("-virtual")],
        "ptx": [_version_of(name) for name in built if not name.endswith("-real")],
        "gpus": [],
    }
    for gpu in gpus:
        runs = _version_of(str(gpu.code_architecture))
        uses = f"machine code for {runs}" if runs in code["machine_code"] else None
        if gpu.code_architecture and uses is None:
            uses = f"PTX of {_version_of(str(gpu.ptx_architecture))}, compiled by the driver"
        if uses and gpu.hopper_kernels:
            uses += ", Hopper kernels (9.0a)"
        version = _version_of(str(gpu.compute_capability))
        code["gpus"].append({"name": gpu.name.decode(), "compute_capability": version, "uses": uses})
    return code


def _version_of(architecture: str) -> str:
    """ "90a-real", as CMake has it, is 9.0a."""
    number = architecture.split("-")[0]
    digits = number.rstrip("abcdefghijklmnopqrstuvwxyz")
    return f"{digits[:-1]}.{digits[-1:]}{number[len(digits) :]}"


def _known_ops() -> list[str]:
    """The ops that a session with the library takes, found by loading a model of one node without function for each."""
    try:
        import onnx
    except ImportError as error:
        raise BertfuseError("which ops the library brings cannot be asked without onnx: pip install onnx") from error
    import onnxruntime

    names = []
    for spec in OPS.values():
        inputs = [
            onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.FLOAT, None) for tensor in spec.inputs
        ]
        outputs = [onnx.ValueInfoProto(name=tensor.name) for tensor in spec.outputs]
        names_in = [tensor.name for tensor in spec.inputs]
        node = onnx.helper.make_node(spec.name, names_in, [tensor.name for tensor in spec.outputs], domain=DOMAIN)
        graph = onnx.helper.make_graph([node], spec.name, inputs, outputs)
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid(DOMAIN, OP_VERSION)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        register(options)
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of a wrong type or shape, since no attribute and no shape is given: it is known
            if misses_library(error):
                continue
        names.append(spec.name)
    return names


def _gpus() -> list[dict[str, str]]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    fields = ("name", "compute_cap", "memory.total", "driver_version")
    try:
        ran = subprocess.run(
            [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.split(",") for line in ran.stdout.splitlines() if line.strip()]
    return [dict(zip(fields, (cell.strip() for cell in line), strict=False)) for line in lines]
