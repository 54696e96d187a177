# SPDX-License-Identifier: Apache-2.0
"""Write converted models with expected outputs, for other versions of ONNX Runtime.

    python tests/programs/forms_matrix.py FOLDER [--accept]

The files are made once, with the newest packages; `tests/matrix/test_converted_files.py` runs them
and needs NumPy and ONNX Runtime only. A row of the matrix is a form and its content: a native type
and the operator that takes it, or the anybit operator that was expanded into standard nodes.
`--accept` writes the results that a run of `ort_matrix.py` left in the folder to supported.json.
"""

import support_path  # noqa: F401

# isort: split
import argparse
import json
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
from cases import OPERATORS
from forms import (
    FORMS,
    NATIVE,
    Call,
    Form,
    Kind,
    Merged,
    cases_per_model,
    iter_models,
    select_calls,
)
from fusible_models import BEFORE, BETWEEN, QUANTIZERS, X, fusible_model
from native_cases import native_cases
from onnx import ModelProto, parser
from places import HAS_MODELS, MODELS

import anybit
from anybit.compiler.compiled import CompiledModel
from anybit.onnx.conversion import Conversion, convert

EXACT_NETWORKS = ("TFC_1W1A", "TFC_2W2A", "qkeras_jettagging")
"""Networks whose sums are exact in any order, so that all versions of the runtime agree."""
COMPILED_NETWORKS = ("TFC_2W2A", "kwsmlp_w3a3", "cnv_1w1a")
"""Networks with bits, bytes and convolutions, compiled to one node each."""
LIMITS = (24, 20)
"""Newest opsets without 2-bit types, and without 4- and 16-bit types."""
FUSIBLE = ("Dropout", "all")
"""Chains of identity-like nodes between the first node and the quantizer."""
BETWEEN_REGIONS = """
<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 2]>
g (float[n, 6] x) => (float[n, 4] y)
<float[6, 5] v = {1, -2, 3, 0, -1, 2, 1, -2, 3, 0, -1, 2, 1, -2, 3, 0, -1, 2, 1, -2, 3, 0, -1, 2, 1,
  -2, 3, 0, -1, 2}, float[5, 4] w = {1, 2, -3, 0, 1, 2, -3, 0, 1, 2, -3, 0, 1, 2, -3, 0, 1, 2, -3,
  0}, float[5] b = {0.1, -0.2, 0.3, 0.7, -0.9}, float step = {0.25}, float one = {1}, float none =
  {0}, float four = {4}, float eight = {8}>
{
    vq = qonnx.custom_op.general.Quant <signed: int = 1, narrow: int = 0> (v, one, none, four)
    wq = qonnx.custom_op.general.Quant <signed: int = 1, narrow: int = 0> (w, one, none, four)
    xq = qonnx.custom_op.general.Quant <signed: int = 1, narrow: int = 0> (x, step, none, eight)
    h = MatMul (xq, vq)
    i = Add (h, b)
    s = Softmax <axis: int = 1> (i)
    sq = qonnx.custom_op.general.Quant <signed: int = 1, narrow: int = 0> (s, step, none, eight)
    y = MatMul (sq, wq)
}
"""
SAMPLE, PORTABLE_SAMPLE = 5, 17
"""Sampling steps of the cases that become standard operators: their nodes are old and common.

Portable models hold few cases each, and run four times."""

TOGETHER_NATIVE = 24
EXPECTED = Path(__file__).parents[1] / "matrix" / "supported.json"


class Files:
    """Writer of models to a folder, by row."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows: dict[str, list[str]] = defaultdict(list)

    def add(
        self,
        row: str,
        converted: Conversion | CompiledModel,
        feeds: dict[str, np.ndarray],
        expected: dict[str, np.ndarray],
        undefined: dict[str, np.ndarray] | None = None,
    ) -> None:
        stem = f"{sum(map(len, self.rows.values())):04}"
        self.rows[row].append(stem)
        converted.save(self._folder / f"{stem}.onnx")
        arrays = {f"feed {name}": array for name, array in feeds.items()}
        arrays |= {f"expected {n}": a.astype(np.float64) for n, a in expected.items()}
        arrays |= {f"undefined {n}": a for n, a in (undefined or {}).items() if a.any()}
        np.savez(self._folder / f"{stem}.npz", **arrays)

    def add_cases(self, row: str, model: Merged, converted: Conversion) -> None:
        undefined = model.undefined(converted)
        self.add(row, converted, dict(model.feeds), model.expected(), undefined)


def write(folder: Path) -> None:
    files = Files(folder)
    for form in (Form.QONNX, Form.STANDARD, Form.PORTABLE):
        _standard_rows(files, form)
    for form in NATIVE:
        _native_rows(files, form)
    for limit in LIMITS:
        _limited_row(files, limit)
    for limit in (25, *LIMITS):
        _fusible_row(files, limit)
    _network_rows(files)
    _compiled_rows(files)
    (folder / "rows.json").write_text(json.dumps(files.rows, indent=1))


def _standard_rows(files: Files, form: Form) -> None:
    every = PORTABLE_SAMPLE if form is Form.PORTABLE else SAMPLE
    for operator, kind in product(OPERATORS, (Kind.ACTIVATION, Kind.RUN_TIME)):
        for model in iter_models(kind, select_calls(operator, every), cases_per_model(form, kind)):
            files.add_cases(f"{form}: {operator}", model, convert(model.proto, to=form))


def _native_rows(files: Files, form: Form) -> None:
    for kind in (Kind.ACTIVATION, Kind.WEIGHT):
        for action, cases in _native_questions(form, kind).items():
            for model in iter_models(kind, cases, TOGETHER_NATIVE):
                files.add_cases(f"{form}: {action}", model, convert(model.proto, to=form))


def _native_questions(form: Form, kind: Kind) -> dict[str, list[Call]]:
    """Group the cases that become native quantizers by the operators they become."""
    sample = [case for operator in OPERATORS for case in select_calls(operator, SAMPLE)]
    cases = [*native_cases(), *(case for case in sample if case not in native_cases())]
    groups = defaultdict(list)
    for model in iter_models(kind, cases, TOGETHER_NATIVE):
        converted = convert(model.proto, to=form)
        for output, question in model.calls.items():
            action = model.action(converted, output)
            if "Linear" in action:
                groups[action.replace(" and DequantizeLinear", "")].append(question)
    return groups


def _limited_row(files: Files, limit: int) -> None:
    kind = Kind.ACTIVATION
    for model in iter_models(
        kind, select_calls("int_quant", SAMPLE), cases_per_model(Form.QDQ, kind)
    ):
        converted = convert(model.proto, to="qdq", opset_limit=limit)
        files.add_cases(f"qdq: int_quant with opset_limit={limit}", model, converted)


def _fusible_row(files: Files, limit: int) -> None:
    """Write quantizers that the optimizer of some version would fuse with the nodes before them."""
    for before, middle, quantizer in product(BEFORE.values(), FUSIBLE, QUANTIZERS.values()):
        proto = fusible_model(before, BETWEEN[middle], quantizer)
        converted = convert(proto, to="qdq", opset_limit=limit)
        expected = anybit.load(proto).run(X)
        files.add(f"qdq: fusible with opset_limit={limit}", converted, {"x": X}, expected)


def _network_rows(files: Files) -> None:
    for name in EXACT_NETWORKS if HAS_MODELS else ():
        path = MODELS / f"{name}.onnx"
        with np.load(path.with_suffix(".npz")) as arrays:
            x = arrays["x"][:1]
        network = anybit.load(path)
        feeds = {network.inputs[0].name: x}
        for form in FORMS:
            files.add(f"{form}: networks", convert(path, to=form), feeds, network.run(x))


def _compiled_rows(files: Files) -> None:
    """Write compiled models as files, with the outputs of the compiled model in memory."""
    model = parser.parse_model(BETWEEN_REGIONS)
    x = np.linspace(-9, 9, 42, dtype=np.float32).reshape(7, 6)
    _compiled_row(files, "compiled: regions and float nodes", model, x)
    for name in COMPILED_NETWORKS if HAS_MODELS else ():
        path = MODELS / f"{name}.onnx"
        with np.load(path.with_suffix(".npz")) as arrays:
            _compiled_row(files, "compiled: networks", path, arrays["x"][:1])


def _compiled_row(files: Files, row: str, source: Path | ModelProto, x: np.ndarray) -> None:
    compiled = anybit.compile(source)
    files.add(row, compiled, {compiled.inputs[0].name: x}, compiled.run(x))


def accept(folder: Path) -> None:
    rows = json.loads((folder / "rows.json").read_text())
    verdicts = {
        path.stem.removeprefix("verdicts-"): json.loads(path.read_text())
        for path in sorted(folder.glob("verdicts-*.json"))
    }
    accepted = {
        row: {column: outcomes[row] for column, outcomes in verdicts.items() if row in outcomes}
        for row in rows
    }
    lines = [f"  {json.dumps(row)}: {json.dumps(columns)}" for row, columns in accepted.items()]
    EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--accept", action="store_true", help="write supported.json")
    options = parser.parse_args()
    if options.accept:
        accept(options.folder)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder)


if __name__ == "__main__":
    main()
