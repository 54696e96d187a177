# SPDX-License-Identifier: Apache-2.0
"""Rules of language for names, docstrings, comments and pages, as data and as checks.

docs/writing.md explains them. The lists grow with what reviewers find. Run as a script on files or
folders, it prints what to rewrite: `python tests/support/language.py src docs`.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

# Names that say nothing about the thing they stand for.
BANNED_NAMES = {
    *("asked", "behind", "beside", "between", "doomed", "each", "found", "given", "known", "meant"),
    *("posed", "said", "told", "wanted", "what", "who", "whose", "why"),
}

# Function docstrings begin with an imperative verb, those of classes and modules with a noun.
BANNED_FIRST_WORDS = {
    *("By", "How", "Of", "That", "Those", "What", "Where", "Whether", "Which", "Who", "Whose"),
}
NOT_A_VERB = BANNED_FIRST_WORDS | {
    *("A", "All", "An", "And", "As", "At", "Each", "Every", "For", "From", "If", "In", "Is", "It"),
    *("Its", "On", "One", "So", "The", "There", "This", "To", "With"),
}

# First words of function names that are not verbs, and last words that make a noun of the name.
BANNED_FUNCTION_FORMS = {
    *("accuracy", "array", "attributes", "axis", "badness", "bars", "beyond", "bins", "bits"),
    *("bold", "by", "bytes", "candidates", "channels", "channelwise", "codes", "columns", "common"),
    *("conclusion", "constant", "constants", "content", "correlation", "counterpart", "counts"),
    *("coverage", "decibels", "default", "details", "difference", "differences", "differing"),
    *("distance", "divisor", "dtype", "element", "elements", "entries", "error", "errors"),
    *("expansion", "exponent", "exponents", "expression", "factor", "factors", "facts", "failure"),
    *("feeds", "few", "figures", "findings", "first", "followable", "front", "function", "graphs"),
    *("grid", "grids", "heat", "histogram", "hull", "image", "initializers", "inner", "integer"),
    *("integers", "inverse", "itemsize", "json", "kernel", "kind", "known", "largest", "layer"),
    *("layers", "layout", "least", "legacy", "length", "line", "literal", "magnitudes", "meanings"),
    *("message", "mix", "names", "native", "neutral", "nodes", "numbers", "obstacle", "of", "off"),
    *("oldest", "on", "operator", "opset", "options", "origins", "others", "outlier", "owners"),
    *("page", "panel", "paragraphs", "parameter", "parameters", "parts", "percent", "percentage"),
    *("pictures", "plain", "producers", "product", "proto", "quality", "quantizer", "quantizers"),
    *("rank", "readers", "reason", "reasons", "rectangle", "remark", "remarks", "remedy", "risk"),
    *("risks", "row", "rows", "runnable", "samples", "scales", "scores", "second", "seconds"),
    *("sections", "shown", "side", "sides", "signature", "simple", "single", "size", "sizes"),
    *("slower", "smooth", "span", "staircase", "stdout", "steps", "suggestion", "table", "tensor"),
    *("tensors", "threads", "timing", "top", "typed", "types", "ulps", "unknown", "value"),
    *("values", "variants", "versions", "violation", "widest", "width", "with", "without", "work"),
    *("working", "worst"),
}
_BANNED_ENDINGS = ("_behind", "_of")
_PARTICIPLE = re.compile(r"[a-z]{2,}ed$")
# Verbs that look like participles, and names that others chose: array API, ONNX, pytest; the public
# functions of modules; the parts of an operator, named after what they describe.
FUNCTION_EXCEPTIONS = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"}
EXCEPTED_FUNCTIONS = {
    *("exact_session_options", "library_path", "quantizer", "reference_ops", "squared_difference"),
    *("_grid", "_remarks"),
}

# Phrases that readers took twice, and what to say.
BANNED_PHRASES = {
    r"(?<!there )\b(is|are|was) no (?!longer|more|other)": "is not a",
    r"\bso many\b": "n, that many",
    r"\bthereof\b|\bwherein\b|\bwhereof\b|\blest\b": "split the sentence",
    r"\ball that\b": "all ... that, everything",
    r"\bheld back\b": "held out",
    r"\bwhat (layers|a layer|it) reads?\b": "activations, inputs",
    r"\bwhat (layers|a layer|it) makes?\b": "outputs",
    r"\b(is|are|was|were|be) (said|told)\b": "is reported",
    r"\bmade[- ]up\b": "random",
    r"\bkeeps? (its|their) floats\b": "stays float32",
    r"\bbehind (a|an|the|it|that|them|each|layers|sums)\b": "after",
    r"\bas was given\b|\bthat was given\b": "name the argument",
    r"\bin pieces\b": "shards, tasks",
    r"\bwhat (is|are|was|were) (between|behind|before|left|wanted|told|said)\b": "a noun",
    r"\bby (what|whom|how much|how many)\b": "a noun",
    r"\bof (what|whom|which|how many|how much)\b": "a noun",
    r"\bnor (is|are|do|does|can|may|has|have)\b": "does not ... either",
    r"\bbut for\b": "except",
}
_PHRASES = {re.compile(phrase, re.IGNORECASE): say for phrase, say in BANNED_PHRASES.items()}

_Defined = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def check_file(path: Path) -> list[str]:
    """Return one line per fault of a Python, Markdown, C++ or YAML file: `path:line: fault`."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tree = ast.parse(text)
        faults = [*_check_names(tree), *_check_docstrings(tree), *_check_prose(_python_prose(text))]
    elif path.suffix == ".md":
        faults = list(_check_prose(_markdown_prose(text)))
    else:
        faults = list(_check_prose(_comments(text)))
    return [f"{path}:{line}: {fault}" for line, fault in sorted(faults)]


def check_paths(paths: Iterable[Path]) -> list[str]:
    """Return the faults of files, and of all files below folders."""
    files: list[Path] = []
    for path in paths:
        candidates = [path] if path.is_file() else sorted(path.rglob("*.*"))
        files += [file for file in candidates if file.suffix in {".py", ".md", ".cpp", ".hpp"}]
    return [fault for file in files for fault in check_file(file)]


def check_functions(paths: Iterable[Path]) -> list[str]:
    """Return the names of module-level functions in files and folders that are not verbs."""
    return [
        f"{path}:{node.lineno}: the function `{node.name}` is not named after what it does"
        for folder in paths
        for path in (sorted(folder.rglob("*.py")) if folder.is_dir() else [folder])
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_verb(node.name)
    ]


def is_verb(name: str) -> bool:
    """Return whether a function name begins with a verb, as far as the lists tell."""
    first = name.strip("_").split("_")[0]
    if name in EXCEPTED_FUNCTIONS or name.startswith("__"):
        return True
    if first in BANNED_FUNCTION_FORMS or name.endswith(_BANNED_ENDINGS):
        return False
    return first in FUNCTION_EXCEPTIONS or not _PARTICIPLE.match(first)


def _check_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name, line = node.id, node.lineno
        elif isinstance(node, ast.arg):
            name, line = node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            name, line = node.name, node.lineno
        else:
            continue
        if name.strip("_") in BANNED_NAMES:
            yield line, f"the name `{name}` says nothing: use a noun of the field"


def _check_docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, _Defined) or not (docstring := ast.get_docstring(node)):
            continue
        first = re.split(r"\W", docstring, maxsplit=1)[0]
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_property = function and any("property" in ast.dump(d) for d in node.decorator_list)
        banned = NOT_A_VERB if function and not is_property else BANNED_FIRST_WORDS
        if first in banned:
            form = "an imperative verb" if banned is NOT_A_VERB else "a noun"
            yield node.body[0].lineno, f"docstring begins with {first!r}: begin with {form}"


def _check_prose(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for line, text in lines:
        for phrase, say in _PHRASES.items():
            if match := phrase.search(text):
                yield line, f"{match.group()!r}: say {say}"


def _python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of comments and of strings with more than one word."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (
            token.type in {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
            and " " in token.string
        ):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def _markdown_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) outside code fences."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if "//" in line:
            yield number, line.split("//", 1)[1]


if __name__ == "__main__":
    report = check_paths(map(Path, sys.argv[1:]))
    print("\n".join(report))
    print(f"{len(report)} faults", file=sys.stderr)
    sys.exit(bool(report))
