"""torch.onnx.export without work that would change nothing: half of the export of a small encoder.

Captured programs are not traced a second time (decomposition.py), the pass that inserts casts does not run every
operator again, signatures are read of those functions alone that a model uses, no function's source is parsed for the
domain that it is in, and onnxscript's rules are tried at nodes of the operator that they look for. All of it patches
what the packages keep to themselves, for one thread and one export: where a release has other insides the patch is
left out, and where an export fails it is done again without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

from .decomposition import Shortcut, decomposed_where_needed


@contextmanager
def shortcuts() -> Iterator[Shortcut]:
    """All of them."""
    with ExitStack() as stack:
        found = stack.enter_context(decomposed_where_needed())
        for patch in (_without_running, _signatures_when_asked, _without_parsing, _rules_by_operator):
            with suppress(ImportError, AttributeError):
                target, name, replace = patch(found)
                kind = type(vars(target)[name])
                original = vars(target)[name].fget if kind is property else getattr(target, name)
                mine: Any = _in_this_thread(original, replace)
                mine = staticmethod(mine) if kind is classmethod else property(mine) if kind is property else mine
                stack.enter_context(mock.patch.object(target, name, mine))
        yield found


def _in_this_thread(original: Callable[..., Any], replace: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is replace(original, ...) in this thread, and `original` in any other."""
    thread = threading.get_ident()

    def function(*arguments: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:
            return original(*arguments, **options)
        return replace(original, *arguments, **options)

    return function


def _without_running(shortcut: Shortcut) -> tuple[Any, str, Callable[..., Any]]:
    """The pass that inserts casts: what an operator gives is in the program, and need not be computed again."""
    from torch.onnx._internal.fx.passes import type_promotion

    rule_of, interpreter = type_promotion.get_type_promotion_rule, type_promotion._TypePromotionInterpreter
    interpreter._set_current_node, interpreter._maybe_promote_node  # noqa: B018

    def run_node(original: Callable[..., Any], self: Any, node: Any) -> Any:
        if node.op != "call_function" or "val" not in node.meta:
            return original(self, node)
        shortcut.others = True
        with self._set_current_node(node):
            if rule := rule_of(node, self.type_promotion_table):
                self._maybe_promote_node(node, rule)
        return node.meta["val"]

    return interpreter, "run_node", run_node


def _signatures_when_asked(shortcut: Shortcut) -> tuple[Any, str, Callable[..., Any]]:
    """The registry of 600 functions: each one's signature is read where it is looked up."""
    from torch.onnx._internal.exporter import _registration

    meta, registry = _registration.OnnxDecompMeta, _registration.ONNXRegistry
    read, look_up = meta.__post_init__, registry.get_decomps

    class Later(meta):
        def __post_init__(self) -> None:
            if self.is_custom:
                read(self)

    def get_decomps(self: Any, target: Any) -> Any:
        found = look_up(self, target)
        for entry in found:
            if entry.signature is None:
                read(entry)
        return found

    def from_torchlib(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        shortcut.others = True
        with mock.patch.object(_registration, "OnnxDecompMeta", Later):
            made = original(*arguments, **options)
        made.get_decomps = get_decomps.__get__(made)
        return made

    return registry, "from_torchlib", from_torchlib


def _without_parsing(shortcut: Shortcut) -> tuple[Any, str, Callable[..., Any]]:
    """onnxscript's functions, 500 of which are asked for the domain that they are in, and parse their source for it."""
    from onnxscript._internal import values

    values.TracedOnnxFunction.opset.fget, values.TracedOnnxFunction.function_ir.fget  # noqa: B018

    class Header:
        """The domain; all else is parsed when it is asked for."""

        def __init__(self, parsed: Callable[[], Any], domain: str) -> None:
            self._parsed, self.domain = parsed, domain

        def __getattr__(self, name: str) -> Any:
            return getattr(self._parsed(), name)

    def function_ir(original: Callable[..., Any], self: Any) -> Any:
        return Header(lambda: original(self), self.opset.domain)

    return values.TracedOnnxFunction, "function_ir", function_ir


def _rules_by_operator(shortcut: Shortcut) -> tuple[Any, str, Callable[..., Any]]:
    """onnxscript's rules, which it tries one after the other at every node."""
    from onnxscript.rewriter import _matcher, _rewrite_rule

    known: dict[int, tuple[Any, str | None]] = {}  # by id, which the rule beside it keeps from being another's

    def operator(rule: Any) -> str | None:
        """Of the node that the rule's pattern ends in; None where that is not certain."""
        if type(rule._matcher) is not _matcher.SimplePatternMatcher:
            return None
        identifier = rule._matcher.pattern.output_nodes[0].op_identifier()
        return None if identifier is None else identifier[1]

    def try_rewrite(original: Callable[..., Any], self: Any, *arguments: Any, **options: Any) -> Any:
        if id(self) not in known:
            known[id(self)] = self, operator(self)
        wanted = known[id(self)][1]
        if wanted is not None and len(arguments) > 2 and arguments[2].op_type != wanted:
            return None
        return original(self, *arguments, **options)

    return _rewrite_rule.RewriteRule, "try_rewrite", try_rewrite
