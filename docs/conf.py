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

# Every page but the start page, by what the navigation calls it. What is not there is left out:
# pages on PyTorch's and JAX's functions where these are not installed.
NAVIGATION = {
    "Tutorials": {
        "Run and convert": "tutorial_qonnx",
        "Train and compile": "tutorial_training",
        "A float model in 4 bits": "tutorial",
        "From C++": "tutorial_cpp",
        "Find a difference": "tutorial_difference",
        "Digits: 32 bits to 1": "qat_digits",
    },
    "Operators": {
        "IntQuant": "operators/int_quant",
        "FloatQuant": "operators/float_quant",
        "Trunc, version 2": "operators/trunc",
        "Trunc, version 1": "operators/trunc_v1",
        "BipolarQuant": "operators/bipolar_quant",
        "DynamicQuantize": "operators/dynamic_quantize",
        "DynamicDequantize": "operators/dynamic_dequantize",
        "Rounding modes": "rounding_modes",
        "Gradients": "gradients",
        "Deviations": "deviations",
        "Playground": "playground",
    },
    "Models": {
        "Load and run": "models",
        "Inspect": "inspect",
        "Check": "check",
        "Clean": "clean",
        "Convert": "convert",
        "Compile": "compile",
        "Find differences": "diff",
        "Schemas": "schemas",
        "ONNX Runtime": "onnxruntime",
    },
    "From floats to few bits": {
        "Quantize": "quantize",
        "Evaluate": "evaluate",
        "From a laptop to a cluster": "scale_out",
        "Other tools": "other_tools",
    },
    "Training": {
        "PyTorch": "pytorch",
        "Train": "training",
        "Export": "export",
        "JAX": "jax",
    },
    "Reference": {
        "Performance": "performance",
        "All public names": "names",
        "anybit": "api/anybit",
        "anybit.onnx": "api/onnx",
        "anybit.comparison": "api/comparison",
        "anybit.torch": "api/torch",
        "anybit.jax": "api/jax",
        "anybit.compat.qonnx": "api/qonnx",
    },
    "Project": {
        "At a glance": "/README",
        "Examples": "/examples/README",
        "Architecture": "/ARCHITECTURE",
        "Contributing": "/CONTRIBUTING",
        "Releases": "wheels",
        "Changes": "/CHANGELOG",
    },
}

# Pages that are no Markdown and where they go, if they have been built.
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
    f"docs/api/{each}.rst" for each in ("torch", "jax") if not importlib.util.find_spec(each)
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
    """Sphinx wants it as directives in a page, which a code host would show as text."""
    if page != root_doc:
        return
    for caption, pages in NAVIGATION.items():
        listed = "".join(
            f"{title} <{each}>\n"
            for title, each in pages.items()
            if (each[1:] if each.startswith("/") else f"docs/{each}") in app.env.found_docs
        )
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}```\n"


def read_docstring(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Indented paragraphs are code, as in Markdown, bars are bars, and names stand alone."""
    text = "\n".join(lines)
    text = re.sub(r"`[^`]*`|\|", lambda found: r"\|" if found[0] == "|" else found[0], text)
    text = re.sub(r"^( +)(\w+(?:, \w+)+)(:.*(?:\n\1 .*)*)", _entries, text, flags=re.MULTILINE)
    found: list[str] = []
    for line in text.split("\n"):
        above = next((each for each in reversed(found) if each), "")
        if line.startswith("    ") and found[-1:] == [""] and re.match(r"[^\s*>]", above):
            found += ["::", ""]
        found.append(line)
    lines[:] = found


def _entries(entry: re.Match[str]) -> str:
    """`a, b: text` as two entries of a section."""
    indent, names, text = entry.groups()
    return "\n".join(f"{indent}{each}{text}" for each in names.split(", "))


def read_signature(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str, returned: str
) -> tuple[str, str]:
    """Defaults that are made anew cannot be parsed; operators say in words what inputs hold."""
    if signature and "Annotated[" in signature:
        found = inspect.signature(thing)
        bare = [each.replace(annotation=each.empty) for each in found.parameters.values()]
        return str(inspect.Signature(bare)), ""
    return signature and signature.replace("<factory>", "..."), returned


def keep_options_whole(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Narrow screens break lines behind hyphens, and would break `-o` and `--data` in two."""
    option = r'(?<=<span class="w"> </span>)--?\w[\w-]*'
    context["body"] = re.sub(option, r'<span class="option">\g<0></span>', context.get("body", ""))


def finish(app: Any, error: Exception | None) -> None:
    """Pages that are built elsewhere, and a page that leads from the root to the start."""
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
