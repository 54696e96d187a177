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

import numpy as np
import onnx
import onnx_ir as ir

import anybit
from anybit.formats import FloatFormat
from anybit.onnx.graph.layout import CHANNELS_LAST, CHANNELS_LAST_OPERATORS
from anybit.onnx.graph.op_traits import OpTrait, get_bias_index, has_trait
from anybit.onnx.operators.integer_network import DOMAIN, NAME
from anybit.onnx.operators.known import RUNTIME_DOMAINS
from anybit.onnx.operators.registry import CANONICAL_DOMAINS
from anybit.onnx.quantizers.metadata import CODING_KEY, RANGE_KEY
from anybit.onnx.quantizers.native_types import FLOATS, INTEGERS
from anybit.ops import OPERATORS
from anybit.ops.domain import Role
from anybit.ops.grids import Call, Coding, IntegerGrid
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
SCRIPTS = (
    "operators",
    "codes",
    "figure",
    "form",
    "proto",
    "model",
    "ranges",
    "quantizers",
    "drop",
    "page",
)
# As in CMakeLists.txt: every written operation is one IEEE operation.
EXACT = ("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
# Small before fast: there are no vectors, which loops ask for, and what is thrown does not unwind.
SMALL = ("-Os", "-fignore-exceptions", "-fvisibility=hidden", "-Wno-pass-failed", "-s")


def compiled(folder: Path) -> bytes:
    """Compile the operators to a WebAssembly module."""
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
    """Return the description of an operator for the forms of the page."""
    said = operator.documentation
    return {
        "name": operator.name,
        "onnx": operator.onnx_name,
        "domain": operator.onnx_domain,
        "aliases": operator.onnx_aliases,
        "version": operator.version,
        "bits": fixed_bits(operator),
        "codes": codes_of(operator),
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


def fixed_bits(operator: Operator) -> str:
    """Return the width of codes that no input determines."""
    code_dtype = operator.get_code_dtype(operator.complete({}))
    if code_dtype is not None:
        return str(8 * np.dtype(code_dtype).itemsize)
    roles = {each.role: np.float32(1) for each in operator.inputs[1:]}
    if operator.grid is None or roles.keys() - {Role.SCALE, Role.ZERO_POINT}:
        return "?"
    parameters = {each.name: roles[each.role] for each in operator.inputs[1:]}
    grid = operator.grid(Call(parameters, operator.complete({})))
    return "?" if grid is None else str(grid.bits)


def codes_of(operator: Operator) -> str:
    """Those that its quantizers have, or of which kind they are where inputs say which."""
    roles = {each.role for each in operator.inputs[1:]}
    if operator.grid is None:
        return ""
    if Role.BITWIDTH in roles:
        return "integers"
    if Role.MANTISSA_BITWIDTH in roles:
        return "floats"
    parameters = {each.name: np.float32(1) for each in operator.inputs[1:]}
    grid = operator.grid(Call(parameters, operator.complete({})))
    return ", ".join(map(str, grid.codes)) if isinstance(grid, IntegerGrid) else ""


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
        "modes": dict(RoundingMode.__members__),
        "formats": formats,
        "onnx": standard(),
    }


def standard() -> dict[str, object]:
    """Return the ONNX tables of the page, read from the package."""
    since: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            first = since.get(schema.name, schema.since_version)
            since[schema.name] = min(first, schema.since_version)
    nodes = [ir.Node("", name, []) for name in since]
    described = (each for each in ir.DataType if each.name not in ("UNDEFINED", "STRING"))
    return {
        "types": {each.value: (str(each.numpy()), each.bitwidth) for each in described},
        "text": ir.DataType.STRING.value,
        "codes": [str(each.dtype.numpy()) for each in (*INTEGERS, *FLOATS)],
        "domains": CANONICAL_DOMAINS,
        "runtimeDomains": RUNTIME_DOMAINS,
        "standard": since,
        "newest": onnx.defs.onnx_opset_version(),
        "others": [
            f"{DOMAIN}::{NAME}",
            *(f"{CHANNELS_LAST}::{name}" for name in sorted(CHANNELS_LAST_OPERATORS)),
        ],
        "moves": [node.op_type for node in nodes if has_trait(node, OpTrait.DATA_MOVEMENT)],
        "selects": [node.op_type for node in nodes if has_trait(node, OpTrait.SELECTION)],
        "biased": [node.op_type for node in nodes if get_bias_index(node) is not None],
        "rangeKey": RANGE_KEY,
        "codingKey": CODING_KEY,
        "signs": Coding.SIGN,
    }


def script(module: bytes) -> str:
    data = f"const REGISTRY = {json.dumps(registry(), separators=(',', ':'))};\n"
    packed = base64.b64encode(gzip.compress(module, mtime=0)).decode()
    parts = [(PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join([data, f'const MODULE = "{packed}";\n', *parts]).replace("</", "<\\/")


def page(module: bytes) -> str:
    """Return the page; its policy allows its own script and style only."""
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
