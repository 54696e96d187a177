# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: CONTRIBUTING.md says how it is built.

The pages are those that a code host shows, unchanged and where they lie. What a site has besides is
added here: navigation, the API, and what pages load from beside them.
"""

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import anybit

ROOT = Path(__file__).resolve().parent.parent

# Navigation: sections of titles and pages. Pages that do not exist are omitted, such as those on
# the functions of PyTorch and JAX if these are not installed.
NAVIGATION = {
    "Tutorials": {
        "From a float model to 4 bits": "tutorial",
        "Run and convert a QONNX model": "tutorial_qonnx",
        "A sentence encoder in 8 bits": "tutorial_encoder",
        "Train and compile": "tutorial_training",
        "From PyTorch to a microcontroller": "tutorial_microcontroller",
        "Find a difference": "tutorial_difference",
        "Use it from C++": "tutorial_cpp",
        "Digits from 32 bits to 1": "qat_digits",
    },
    "How-to guides": {
        "Quantize a float model": "quantize",
        "Load and run models": "models",
        "Inspect": "inspect",
        "Check": "check",
        "Clean": "clean",
        "Convert": "convert",
        "Compile": "compile",
        "Compile an ONNX Runtime dynamic model": "dynamic_models",
        "Run on microcontrollers": "microcontrollers",
        "Evaluate": "evaluate",
        "Find differences": "diff",
        "Use several machines": "scale_out",
        "Train in PyTorch": "training",
        "Export from PyTorch": "export",
        "Operators in PyTorch": "pytorch",
        "Operators in JAX": "jax",
        "Operators in ONNX Runtime": "onnxruntime",
    },
    "Reference": {
        "IntQuant": "operators/int_quant",
        "FloatQuant": "operators/float_quant",
        "Trunc, version 2": "operators/trunc",
        "Trunc, version 1": "operators/trunc_v1",
        "BipolarQuant": "operators/bipolar_quant",
        "DynamicQuantize": "operators/dynamic_quantize",
        "DynamicDequantize": "operators/dynamic_dequantize",
        "BlockQuant": "operators/block_quant",
        "Rounding modes": "rounding_modes",
        "Gradients": "gradients",
        "Playground": "playground",
        "Schemas and test cases": "schemas",
        "All public names": "names",
        "anybit": "api/anybit",
        "anybit.onnx": "api/onnx",
        "anybit.comparison": "api/comparison",
        "anybit.torch": "api/torch",
        "anybit.jax": "api/jax",
        "anybit.compat.qonnx": "api/qonnx",
    },
    "Explanation": {
        "Algorithms of quantize": "algorithms",
        "The same bytes everywhere": "same_bytes",
        "Deviations": "deviations",
        "Performance": "performance",
        "Comparison with other tools": "other_tools",
        "Architecture": "/ARCHITECTURE",
    },
    "Project": {
        "At a glance": "/README",
        "Examples": "/examples/README",
        "Contributing": "/CONTRIBUTING",
        "Writing": "writing",
        "Security": "/SECURITY",
        "Conduct": "/CODE_OF_CONDUCT",
        "Changes": "/CHANGELOG",
    },
}

# Other pages and their destinations, if they have been built.
BUILT = {"build/playground/index.html": "docs/playground/index.html"}
_WAY_BACK = '<header>\n<p><a href="../index.html">anybit: documentation</a></p>'

_REDIRECT = """<!doctype html><title>anybit</title>
<meta http-equiv="refresh" content="0; url={0}"><a href="{0}">anybit</a>
"""

project = "anybit"
copyright = "The anybit developers"
release = anybit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "examples/README.md"]
exclude_patterns = ["**/.*", "benchmarks", "build", "src", "tests"]
exclude_patterns += [
    f"docs/api/{package}.rst"
    for package in ("torch", "jax")
    if not importlib.util.find_spec(package)
]
myst_heading_anchors = 6

# Docstrings are Markdown as far as reStructuredText reads it too.
default_role = "code"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
napoleon_use_ivar = True

html_theme = "furo"
html_title = "anybit"
html_favicon = "favicon.svg"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
# The paper of the pictures, see docs/_svg.py.
html_theme_options = {"dark_css_variables": {"color-background-primary": "#0d1117"}}
html_copy_source = False
html_use_index = False
html_domain_indices = False


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """Add the navigation as directives, which a code host would show as text."""
    if page != root_doc:
        return
    for caption, pages in NAVIGATION.items():
        listed = "".join(
            f"{title} <{page}>\n"
            for title, page in pages.items()
            if (page[1:] if page.startswith("/") else f"docs/{page}") in app.env.found_docs
        )
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}```\n"


def read_docstring(
    app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Convert Markdown conventions of docstrings: code blocks, bars, lists of names."""
    text = "\n".join(lines)
    text = re.sub(r"`[^`]*`|\|", lambda result: r"\|" if result[0] == "|" else result[0], text)
    text = re.sub(r"^( +)(\w+(?:, \w+)+)(:.*(?:\n\1 .*)*)", _entries, text, flags=re.MULTILINE)
    result: list[str] = []
    for line in text.split("\n"):
        above = next((line for line in reversed(result) if line), "")
        if line.startswith("    ") and result[-1:] == [""] and re.match(r"[^\s*>]", above):
            result += ["::", ""]
        result.append(line)
    lines[:] = result


def _entries(entry: re.Match[str]) -> str:
    """Split `a, b: text` into two entries of a section."""
    indent, names, text = entry.groups()
    return "\n".join(f"{indent}{name}{text}" for name in names.split(", "))


def read_signature(
    app: Any, kind: str, name: str, thing: Any, options: Any, signature: str, returned: str
) -> tuple[str, str]:
    """Simplify signatures: factory defaults cannot be parsed, annotations of operators are long."""
    if signature and "Annotated[" in signature:
        declared = inspect.signature(thing)
        bare = [
            parameter.replace(annotation=parameter.empty)
            for parameter in declared.parameters.values()
        ]
        return str(inspect.Signature(bare)), ""
    return signature and signature.replace("<factory>", "..."), returned


def keep_options_whole(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Keep options such as `--data` in one line: narrow screens break after hyphens."""
    option = r'(?<=<span class="w"> </span>)--?\w[\w-]*'
    context["body"] = re.sub(option, r'<span class="option">\g<0></span>', context.get("body", ""))


def finish(app: Any, error: Exception | None) -> None:
    """Copy pages that are built elsewhere, and redirect the root to the start page."""
    out = Path(app.outdir)
    for source, target in BUILT.items():
        if (ROOT / source).exists():
            (out / target).parent.mkdir(exist_ok=True)
            page = (ROOT / source).read_text(encoding="utf-8")
            (out / target).write_text(page.replace("<header>", _WAY_BACK, 1), encoding="utf-8")
    (out / "index.html").write_text(_REDIRECT.format(f"{root_doc}.html"), encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", read_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", read_signature)
    app.connect("html-page-context", keep_options_whole)
    app.connect("build-finished", finish)
