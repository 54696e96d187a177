# SPDX-License-Identifier: Apache-2.0
"""Names and constants that hls4ml's frontend and its generated C++ accept."""

import re
from collections.abc import Iterator

import onnx_ir as ir

from anybit.onnx.checks.finding import Finding, make_error
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.text import escape_name

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
    co_return co_yield decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return
    short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    xor xor_eq
"""
_GENERATED_NAMES = """
    input main myproject nnet std hls ap_int ap_uint ap_fixed ap_ufixed size_t EOF INFINITY NAN NULL
    CHECKPOINT current e fin fout fpr i iline in in_begin cptr output_path pline pr
"""
RESERVED = frozenset((*_KEYWORDS.split(), *_GENERATED_NAMES.split()))
"""Reserved names in the C++ of hls4ml: words of the language, and its own."""
GENERATED = re.compile(
    r"N_.*|__.*|_[A-Z].*|.*_t|(config|index|layer)[0-9]+.*"
    r"|([abdepstwz]|br|th|tl|wr|output_transform_w)[0-9]+"
)
"""Patterns of generated names in hls4ml: types, configurations, results and weights."""

CLEAN = "run anybit clean --target hls4ml"
"""The remedy for problems that cleaning fixes."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def is_usable(name: str) -> bool:
    """Return whether hls4ml can write a name into C++ as it is."""
    if not _WORD.fullmatch(name) or GENERATED.fullmatch(name):
        return False
    return name not in RESERVED


def check(graph: ir.Graph) -> Iterator[Finding]:
    """Yield names and constants of a file that hls4ml refuses or misinterprets."""
    constants = [value for value in graph.initializers.values() if is_constant(value)]
    items = (*graph.inputs, *graph.outputs, *constants, *graph)
    names = list(dict.fromkeys(str(item.name or "") for item in items))
    yield from _report_names(
        [name for name in names if not is_usable(name)],
        "name",
        "cannot be a name in the C++ of hls4ml",
    )
    interface = {value.name for value in (*graph.inputs, *constants)}
    yield from _report_names(
        [str(node.name) for node in graph if node.name in interface],
        "name",
        "is the name of a node and of an input or a constant, which hls4ml takes for one",
    )
    yield from _report_names(
        [str(value.name) for value in constants if len(value.uses()) > 1],
        "fork",
        "is a constant with several readers; hls4ml drops it after the first",
    )
    for node in graph:
        if is_onnx_op(node, "Constant"):
            yield make_error(node, "layer", "hls4ml reads constants from initializers only", CLEAN)


def _report_names(names: list[str], code: str, problem: str) -> Iterator[Finding]:
    """Yield one finding for all names, with the first of them."""
    if names:
        others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        yield make_error(None, code, f"{escape_name(repr(names[0]))}{others} {problem}", CLEAN)
