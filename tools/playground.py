# SPDX-License-Identifier: Apache-2.0
"""The playground: one page that computes the operators in the browser, compiled from our C++.

    python tools/playground.py

writes build/playground/index.html. It needs anybit and Zig's compiler: `pip install ziglang`.
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
    *(f"engine/{name}.cpp" for name in ("application", "block_application", "check_inputs")),
    *(f"engine/{name}.cpp" for name in ("checked_call", "elementwise_plan")),
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
# Small before fast. Exceptions do not unwind; the warning is for loops that cannot use vectors.
SMALL = ("-Os", "-fignore-exceptions", "-fvisibility=hidden", "-Wno-pass-failed", "-s")


def compile_module(folder: Path) -> bytes:
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


def describe_operator(operator: Operator) -> dict[str, object]:
    """Return the description of an operator for the forms of the page."""
    documentation = operator.documentation
    return {
        "name": operator.name,
        "onnx": operator.onnx_name,
        "domain": operator.onnx_domain,
        "aliases": operator.onnx_aliases,
        "version": operator.version,
        "bits": get_fixed_bits(operator),
        "codes": get_codes(operator),
        "summary": documentation.summary,
        "body": documentation.body,
        "inputs": [
            {
                "name": declared.name,
                "role": declared.role,
                "optional": declared.optional,
                "domain": declared.domain.description,
                "types": declared.domain.dtypes,
                "says": documentation.arguments.get(declared.name, ""),
            }
            for declared in operator.inputs
        ],
        "attributes": [
            {
                "name": attribute.name,
                "onnx": [attribute.onnx_name, *attribute.aliases],
                "default": attribute.default,
                "mode": attribute.is_mode,
                "says": documentation.arguments.get(attribute.name, ""),
            }
            for attribute in operator.attributes
        ],
    }


def get_fixed_bits(operator: Operator) -> str:
    """Return the width of the codes, or "?" if an input determines it."""
    code_dtype = operator.get_code_dtype(operator.complete({}))
    if code_dtype is not None:
        return str(8 * np.dtype(code_dtype).itemsize)
    roles = {declared.role: np.float32(1) for declared in operator.inputs[1:]}
    if operator.grid is None or roles.keys() - {Role.SCALE, Role.ZERO_POINT}:
        return "?"
    parameters = {declared.name: roles[declared.role] for declared in operator.inputs[1:]}
    grid = operator.grid(Call(parameters, operator.complete({})))
    return "?" if grid is None else str(grid.bits)


def get_codes(operator: Operator) -> str:
    """Return the codes of the operator's quantizers, or their kind if inputs determine them."""
    roles = {declared.role for declared in operator.inputs[1:]}
    if operator.grid is None:
        return ""
    if Role.BITWIDTH in roles:
        return "integers"
    if Role.MANTISSA_BITWIDTH in roles:
        return "floats"
    parameters = {declared.name: np.float32(1) for declared in operator.inputs[1:]}
    grid = operator.grid(Call(parameters, operator.complete({})))
    return ", ".join(map(str, grid.codes)) if isinstance(grid, IntegerGrid) else ""


def describe_registry() -> dict[str, object]:
    """Return the description of all operators: the scripts of the page name none."""
    formats = {
        name: list(entry)
        for name, entry in vars(anybit.formats).items()
        if isinstance(entry, FloatFormat)
    }
    return {
        "version": anybit.__version__,
        "operators": [describe_operator(operator) for operator in OPERATORS],
        "modes": dict(RoundingMode.__members__),
        "formats": formats,
        "onnx": describe_onnx(),
    }


def describe_onnx() -> dict[str, object]:
    """Return the ONNX tables of the page, read from the package."""
    since: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            first = since.get(schema.name, schema.since_version)
            since[schema.name] = min(first, schema.since_version)
    nodes = [ir.Node("", name, []) for name in since]
    types = [dtype for dtype in ir.DataType if dtype.name not in ("UNDEFINED", "STRING")]
    return {
        "types": {dtype.value: (str(dtype.numpy()), dtype.bitwidth) for dtype in types},
        "text": ir.DataType.STRING.value,
        "codes": [str(native.dtype.numpy()) for native in (*INTEGERS, *FLOATS)],
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


def make_script(module: bytes) -> str:
    data = f"const REGISTRY = {json.dumps(describe_registry(), separators=(',', ':'))};\n"
    packed = base64.b64encode(gzip.compress(module, mtime=0)).decode()
    parts = [(PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join([data, f'const MODULE = "{packed}";\n', *parts]).replace("</", "<\\/")


def make_page(module: bytes) -> str:
    """Return the page; its policy allows its own script and style only."""
    pieces = {
        "SCRIPT": make_script(module),
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
    path = parser.parse_args().page
    with tempfile.TemporaryDirectory() as folder:
        module = compile_module(Path(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(make_page(module), encoding="utf-8", newline="\n")
    print(f"{path}: {path.stat().st_size:,} bytes; the module has {len(module):,}")


if __name__ == "__main__":
    main()
