"""torch.onnx.export without tracing a program a second time where that would change nothing.

The exporter hands every captured program to `run_decompositions`, which traces it again, a third of the export of a
small encoder. What a BERT is captured as is made of operators that the exporter writes as they are, but for a few that
are other names of one, or do nothing.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


@dataclass
class Shortcut:
    """Whether a program was left as it had been captured; and whether anything else was left out (shortcuts.py)."""

    taken: bool = False
    others: bool = False


@contextmanager
def decomposed_where_needed() -> Iterator[Shortcut]:
    """Within it this thread's programs whose every operator the exporter can write are not decomposed."""
    from torch.export import ExportedProgram

    decompose, thread, shortcut = ExportedProgram.run_decompositions, threading.get_ident(), Shortcut()

    def run_decompositions(program: ExportedProgram, table: Any = None, *arguments: Any, **options: Any) -> Any:
        if threading.get_ident() == thread and table and not arguments and not options:
            _plain_names(program)
            if _is_decomposed(program, table):
                shortcut.taken = True
                return program
        return decompose(program, table, *arguments, **options)

    with mock.patch.object(ExportedProgram, "run_decompositions", run_decompositions):
        yield shortcut


def _is_decomposed(program: ExportedProgram, table: Collection[Any]) -> bool:
    """Whether no operator of the program has a decomposition or writes to what it reads, or holds other programs."""
    import torch

    for node in program.graph.nodes:
        if node.op == "call_function":
            schema = getattr(node.target, "_schema", None)
            of_sizes = node.target is operator.getitem or ("val" in node.meta and not _is_tensor(node))
            if schema is None and not of_sizes:
                return False
            if node.target in table or (schema is not None and schema.is_mutable):
                return False
        elif node.op not in ("placeholder", "output"):
            return False
    return not any(isinstance(module, torch.fx.GraphModule) for module in program.graph_module.children())


def _is_tensor(node: Node) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)


def _plain_names(program: ExportedProgram) -> None:
    """Gives operators that are other names the plain ones, and leaves out those that change nothing."""
    import torch

    aten = torch.ops.aten
    plain = {aten.__and__.Tensor: aten.bitwise_and.Tensor, aten.__or__.Tensor: aten.bitwise_or.Tensor}
    for node in list(program.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten._assert_tensor_metadata.default:
            program.graph.erase_node(node)
        elif node.target in plain:
            node.target = plain[node.target]
        elif getattr(node.target, "overloadpacket", None) in (aten.to, aten.reshape, aten.view) and _is_tensor(node):
            source = node.args[0]
            before, after = source.meta["val"], node.meta["val"]
            # As text: to compare symbolic sizes would make them equal from then on.
            same = before.dtype == after.dtype and str(list(before.shape)) == str(list(after.shape))
            is_output = any(user.op == "output" for user in node.users)  # whose names the program keeps
            if same and before.device == after.device and not is_output:
                node.replace_all_uses_with(source)
                program.graph.erase_node(node)
            elif node.target.overloadpacket is aten.to and before.device == after.device:
                node.target, node.args, node.kwargs = aten._to_copy.default, (source,), {"dtype": after.dtype}
