"""What is installed, what loads, and what that means for running fused models."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from typing import Any

import bertfuse
from bertfuse.errors import BertfuseError
from bertfuse.graph_rewrite import OPS
from bertfuse.graph_rewrite.spec import DOMAIN, OP_VERSION
from bertfuse.runtime import native
from bertfuse.runtime.library import LIBRARIES, library_path, misses_library, register

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
CUDA = "CUDAExecutionProvider"
_OPEN_CUDA_SESSION = f"""
import sys, onnxruntime
model = sys.stdin.buffer.read()
print(onnxruntime.InferenceSession(model, providers=["{CUDA}"], enable_fallback=0).get_providers())
"""


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
    if gpus and providers:
        problems += _provider_problem(providers)
    gpu_code = _gpu_code(bool(gpus), problems) if libraries["onnxruntime"]["loads"] else None
    for gpu in gpu_code["gpus"] if gpu_code else []:
        if gpu_code["machine_code"] and gpu["uses"] is None:
            problems.append(
                f"the library has no code for {gpu['name']} ({gpu['compute_capability']}): build it with"
                f" -DBERTFUSE_CUDA_ARCHITECTURES={gpu['compute_capability'].replace('.', '')}"
            )
    # Without the library fused models still run, on their op bodies: a library that is there but broken is a problem.
    # So is one that a variable names.
    named = {name for name, (_, variable) in LIBRARIES.items() if os.environ.get(variable)}
    problems += [
        entry["error"] for name, entry in libraries.items() if entry["error"] and (entry["path"] or name in named)
    ]
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
        raise BertfuseError(
            f"{path}: does not load: {error}; install bertfuse again ('make build' in a checkout)"
        ) from error
    if count.value != len(OPS):
        raise BertfuseError(
            f"{path}: has {count.value} plugins, not {len(OPS)}; install bertfuse again ('make build' in a checkout)"
        )
    return list(OPS)


def _provider_problem(providers: list[str]) -> list[str]:
    """That ONNX Runtime has no CUDA provider, or has one that does not load, most often for want of cuDNN."""
    if CUDA not in providers:
        return ["there is a GPU, but this onnxruntime has no CUDA provider: pip install onnxruntime-gpu"]
    try:
        import onnx
    except ImportError:
        return []  # a problem of its own
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", values[:1], values[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    # In a process of its own, where what ONNX Runtime logs, its only word on the reason, can be read.
    command = [sys.executable, "-c", _OPEN_CUDA_SESSION]
    try:
        ran = subprocess.run(command, input=model.SerializeToString(), capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return [f"whether ONNX Runtime's CUDA provider loads cannot be asked: {error}"]
    if CUDA in ran.stdout.decode(errors="replace"):
        return []
    said = re.sub(r"\x1b\[[0-9;]*m", "", ran.stderr.decode(errors="replace"))  # ONNX Runtime colours what it logs
    reason = re.search(r"(?:with error|CUDA failure \d+): ([^;\n]+)", said)
    why = reason[1].strip() if reason else (said.strip().splitlines() or ["it does not say why"])[-1]
    problem = f"there is a GPU, but ONNX Runtime's CUDA provider does not load: {why}"
    if ".so" in why:
        problem += "; pip install 'onnxruntime-gpu[cuda,cudnn]' has CUDA's and cuDNN's libraries, LD_LIBRARY_PATH"
        problem += " must name their folders (site-packages/nvidia/*/lib)"
    return [problem]


def _gpu_code(gpu_here: bool, problems: list[str]) -> dict[str, Any] | None:
    """Which architectures the library's GPU code is for, and what each GPU here uses of it; None where it can't say."""
    try:
        built = native.gpu_architectures()
    except BertfuseError as error:
        problems.append(str(error))
        return None
    code: dict[str, Any] = {
        "machine_code": [_version_of(name) for name in built if not name.endswith("-virtual")],
        "ptx": [_version_of(name) for name in built if not name.endswith("-real")],
        "gpus": [],
        "left_out": None if built else _why_left_out(),
    }
    if gpu_here and not built:
        problems.append(f"there is a GPU, but the library has no CUDA kernels ({code['left_out']}): see docs/gpu.md")
    gpus = []
    try:
        native.load_cublaslt()
        for gpu in native.gpus():  # keeps those before one that cannot be asked
            gpus.append(gpu)
    except native.NativeError as error:
        problems.append(f"the library cannot use GPU {len(gpus)}: {error}")
    else:
        if gpu_here and built and not gpus:
            problems.append(f"there is a GPU, but the library can use none: {_why_no_gpu()}")
    for gpu in gpus:
        runs = _version_of(str(gpu.code_architecture))
        uses = f"machine code for {runs}" if runs in code["machine_code"] else None
        if gpu.code_architecture and uses is None:
            uses = f"PTX of {_version_of(str(gpu.ptx_architecture))}, compiled by the driver"
        if uses and gpu.backends:
            uses += f", kernels {', '.join(gpu.backends.decode().split())}"
        version = _version_of(str(gpu.compute_capability))
        code["gpus"].append({"name": gpu.name.decode(), "compute_capability": version, "uses": uses})
    return code


def _why_left_out() -> str:
    """Why the library was built without CUDA kernels, as CMake left it beside the library."""
    note = library_path().with_name("cuda_left_out.txt")
    return note.read_text(encoding="utf-8").strip() if note.is_file() else "the build did not say why"


def _why_no_gpu() -> str:
    """What the library says of the first GPU where it finds none."""
    gpu, error = native.Gpu(), native.Error()
    native.load_library().bertfuse_describe_gpu(0, ctypes.byref(gpu), ctypes.byref(error))
    return error.message.decode(errors="replace")


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
