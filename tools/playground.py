# SPDX-License-Identifier: Apache-2.0
"""Makes the playground: one page that computes the operators in the browser, with our own C++.

    python tools/playground.py

needs anybit, and Zig as the compiler: `pip install ziglang`, or see tools/zig/c++.
"""

import argparse
import base64
import gzip
import hashlib
import json
import subprocess
import tempfile
from pathlib import Path

import anybit
from anybit.formats import FloatFormat
from anybit.ops import OPERATORS
from anybit.ops.operator import Operator
from anybit.ops.rounding import RoundingMode

ROOT = Path(__file__).parents[1]
PARTS = ROOT / "docs/playground"
NATIVE = ROOT / "src/anybit/_native"
SOURCES = (
    "wasm/module.cpp",
    *(f"engine/{name}.cpp" for name in ("application", "check_inputs", "elementwise_plan")),
    *(f"engine/{name}.cpp" for name in ("elementwise_table", "kernels")),
    "isa/levels.cpp",
)
SCRIPTS = ("operators", "codes", "figure", "form", "page")
# As in CMakeLists.txt: every written operation is one IEEE operation.
EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
# Small before fast: there are no vectors, which loops ask for, and what is thrown does not unwind.
SMALL = ("-Os", "-fignore-exceptions", "-fvisibility=hidden", "-Wno-pass-failed", "-s")


def compiled(folder: Path) -> bytes:
    """The operators as a module of WebAssembly."""
    module = folder / "operators.wasm"
    target = ("-target", "wasm32-wasi", "-mexec-model=reactor", "-std=c++20")
    where = ("-DANYBIT_ISA=baseline", f"-I{ROOT / 'src/anybit'}", "-Wall", "-Wextra", "-Werror")
    sources = [str(NATIVE / source) for source in SOURCES]
    command = [
        str(ROOT / "tools/zig/c++"),
        *target,
        *EXACT,
        *SMALL,
        *where,
        "-o",
        str(module),
        *sources,
    ]
    subprocess.run(command, check=True)
    return module.read_bytes()


def signature(operator: Operator) -> dict[str, object]:
    """What the forms of the page know of an operator."""
    said = operator.documentation
    return {
        "name": operator.name,
        "onnx": operator.onnx_name,
        "domain": operator.onnx_domain,
        "aliases": operator.onnx_aliases,
        "version": operator.version,
        "summary": said.summary,
        "body": said.body,
        "inputs": [
            {
                "name": each.name,
                "role": each.role,
                "optional": each.optional,
                "domain": each.domain.description,
                "types": each.domain.dtypes,
                "says": said.arguments.get(each.name, ""),
            }
            for each in operator.inputs
        ],
        "attributes": [
            {
                "name": each.name,
                "onnx": [each.onnx_name, *each.aliases],
                "default": each.default,
                "mode": each.is_mode,
                "says": said.arguments.get(each.name, ""),
            }
            for each in operator.attributes
        ],
    }


def registry() -> dict[str, object]:
    """All that the page knows of operators: it names none."""
    formats = {
        name: list(each)
        for name, each in vars(anybit.formats).items()
        if isinstance(each, FloatFormat)
    }
    return {
        "version": anybit.__version__,
        "operators": [signature(each) for each in OPERATORS],
        "modes": list(RoundingMode.__members__),
        "formats": formats,
    }


def script(module: bytes) -> str:
    data = f"const REGISTRY = {json.dumps(registry(), separators=(',', ':'))};\n"
    packed = base64.b64encode(gzip.compress(module, mtime=0)).decode()
    parts = [(PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join([data, f'const MODULE = "{packed}";\n', *parts]).replace("</", "<\\/")


def page(module: bytes) -> str:
    """The page, which loads nothing: its policy allows its own script and style only."""
    pieces = {
        "SCRIPT": script(module),
        "STYLE": (PARTS / "style.css").read_text(encoding="utf-8"),
    }
    text = (PARTS / "page.html").read_text(encoding="utf-8")
    for name, piece in pieces.items():
        digest = base64.b64encode(hashlib.sha256(piece.encode()).digest()).decode()
        text = text.replace(f"{{{name}_DIGEST}}", digest).replace(f"{{{name}}}", piece)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    usual = ROOT / "build/playground/index.html"
    parser.add_argument("page", type=Path, nargs="?", default=usual, help="the file to write")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        module = compiled(Path(folder))
    given.page.parent.mkdir(parents=True, exist_ok=True)
    given.page.write_text(page(module), encoding="utf-8", newline="\n")
    print(f"{given.page}: {given.page.stat().st_size:,} bytes, {len(module):,} of them compiled")


if __name__ == "__main__":
    main()
