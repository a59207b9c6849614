"""The options that `polygraphy run` gets from bertfuse: --onnxrt-ops and --op-libraries.

polygraphy finds `arg_groups` through the entry point group polygraphy.run.plugins.
"""

from __future__ import annotations

from typing import Any

from polygraphy.tools.args import ModelArgs, OnnxLoadArgs, OnnxrtSessionArgs
from polygraphy.tools.args import util as args_util
from polygraphy.tools.args.base import BaseArgs, BaseRunnerArgs
from polygraphy.tools.script import inline, inline_identifier, make_invocable, safe


# The docstrings of both classes are their sections' headings in polygraphy's help, in the form that it asks for.
class OpLibraryArgs(BaseArgs):
    """
    ONNX-Runtime Op Libraries: custom-op libraries for --onnxrt-ops.

    Depends on:

        - ModelArgs
        - OnnxLoadArgs
        - OnnxrtSessionArgs
    """

    def add_parser_args_impl(self) -> None:
        self.group.add_argument(
            "--op-libraries",
            help="Custom-op libraries that --onnxrt-ops registers. Defaults to bertfuse's own",
            nargs="+",
            default=None,
        )

    def parse_impl(self, args: Any) -> None:
        """
        Parses command-line arguments and populates the following attributes:

        Attributes:
            libraries (List[str]): Paths of custom-op libraries; None is bertfuse's own.
        """
        self.libraries = args_util.get(args, "op_libraries")

    def add_to_script_impl(self, script: Any) -> str:
        load, session = self.arg_groups[OnnxLoadArgs], self.arg_groups[OnnxrtSessionArgs]
        model = self.arg_groups[ModelArgs].path
        if load.must_use_onnx_loader():
            model = load.add_to_script(script, serialize_model=True)
        level = None
        if session.graph_optimization_level is not None:
            script.add_import(imports=["onnxruntime"], imp_as="onnxrt")
            name = inline_identifier(session.graph_optimization_level)
            level = inline(safe("onnxrt.GraphOptimizationLevel.{:}", name))
        script.add_import(imports=["SessionWithOpLibraries"], frm="bertfuse.runtime.polygraphy_loader")
        made = make_invocable(
            "SessionWithOpLibraries",
            model,
            libraries=self.libraries,
            providers=session.providers,
            graph_optimization_level=level,
        )
        return script.add_loader(made, "build_onnxrt_ops_session")


class OnnxrtOpsRunnerArgs(BaseRunnerArgs):
    """
    ONNX-Runtime Inference with Op Libraries: running inference with ONNX-Runtime and custom-op libraries.

    Depends on:

        - OpLibraryArgs
    """

    def get_name_opt_impl(self) -> tuple[str, str]:
        return "ONNX-Runtime with op libraries", "onnxrt-ops"

    def add_to_script_impl(self, script: Any) -> None:
        script.add_import(imports=["OnnxrtRunner"], frm="polygraphy.backend.onnxrt")
        loader = self.arg_groups[OpLibraryArgs].add_to_script(script)
        script.add_runner(make_invocable("OnnxrtRunner", loader, name="onnxrt-ops"))


def arg_groups() -> list[BaseArgs]:
    """What `polygraphy run` adds to its own."""
    return [OpLibraryArgs(), OnnxrtOpsRunnerArgs()]
