# SPDX-License-Identifier: Apache-2.0
"""Write the case tables as folders in the layout of ONNX's own backend tests.

    python tests/programs/backend_tests.py OUT_FOLDER [--operator NAME ...]

Any runtime or tool can test itself with them. Each case is a folder `test_<operator>_<case>` with a
model of one node, its input and its exact output. `index.json` lists the folders with operator,
node and attributes; `README.txt` describes the layout. Cases that raise an error are left out.
"""

import support_path  # noqa: F401

# isort: split
import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import ort_backend
from cases import OPERATORS, Case, every_case, expected_result
from onnx import helper, numpy_helper

from anybit.ops import Input, Operator

# Operators whose parameters the model computes; those of the others are constants in files.
AT_RUN_TIME = {"dynamic_quantize", "dynamic_dequantize"}
IR_VERSION, OPSET = 8, 13

README = """\
Test cases of anybit's operators, in the layout of ONNX's backend tests.

test_<operator>_<case>/
    model.onnx                      one node
    data.json                       the tolerances of ONNX's test runner: none
    test_data_set_0/input_0.pb      x, and further inputs where parameters are inputs
    test_data_set_0/output_0.pb     the exact result
index.json                          list of the folders

Parameters (scale, bit-width, ...) are initializers, except of operators that compute their
parameters at run time. A size of 0 is written as a name in the model. An output must have the
type, the shape and the bits of output_0.pb, the sign of zero included; all NaNs are equal.
"""


def write(folder: Path, cases: Iterable[tuple[str, Case]]) -> int:
    """Write the cases that have a result, and return their number."""
    index: list[dict[str, Any]] = []
    taken: set[str] = set()
    for name, case in cases:
        if case.raises is None:
            where = _free_name(f"test_{name}_{case.name}", taken)
            index.append({"folder": where, **_write_case(folder / where, name, case)})
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    (folder / "README.txt").write_text(README, encoding="utf-8")
    return len(index)


def _free_name(stem: str, taken: set[str]) -> str:
    """Return an unused folder name, numbered if needed: some file systems ignore case."""
    name, number = stem, 1
    while name.lower() in taken:
        number += 1
        name = f"{stem}_{number}"
    taken.add(name.lower())
    return name


def _write_case(folder: Path, name: str, case: Case) -> dict[str, Any]:
    operator = ort_backend.BY_NAME[name]
    arrays = dict(_arrays(operator, case))
    constant = [] if name in AT_RUN_TIME else list(arrays)[1:]
    fed = [key for key in arrays if key not in constant]
    result = np.asarray(expected_result(name, case))
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    proto = _model(operator, case, arrays, constant, result)
    (folder / "model.onnx").write_bytes(proto.SerializeToString(deterministic=True))
    (folder / "data.json").write_text('{"rtol": 0, "atol": 0}\n', encoding="utf-8")
    for place, key in enumerate(fed):
        _write_tensor(data / f"input_{place}.pb", arrays[key], key)
    _write_tensor(data / "output_0.pb", result, proto.graph.output[0].name)
    (node,) = proto.graph.node
    return {
        "operator": name,
        "case": case.name,
        "node": f"{node.domain}.{node.op_type}",
        "version": operator.version,
        "inputs": fed,
        "initializers": constant,
        "attributes": {item.name: _shown(item) for item in node.attribute},
    }


def _write_tensor(path: Path, array: np.ndarray, name: str) -> None:
    tensor = numpy_helper.from_array(ort_backend.contiguous(array), name)
    path.write_bytes(tensor.SerializeToString(deterministic=True))


def _shown(attribute: onnx.AttributeProto) -> int | str:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _arrays(operator: Operator, case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the inputs that the case has, by name."""
    x = np.asarray(case.inputs[0])
    yield operator.inputs[0].name, x
    for value, declared in zip(case.inputs[1:], operator.inputs[1:], strict=False):
        if value is not None:
            yield declared.name, _parameter(value, declared, x)


def _parameter(value: Any, declared: Input, x: np.ndarray) -> np.ndarray:
    """Return a parameter as an array; numbers get the dtype that the operator computes in.

    Most files store parameters so, bit widths included. Integers that this dtype cannot represent
    stay integers.
    """
    array = ort_backend.as_tensor(value, declared)
    if hasattr(value, "dtype") or declared.domain.dtypes:
        return array
    with np.errstate(over="ignore"):
        typed = array.astype(np.float64 if x.dtype == np.float64 else np.float32)
        exact = array.dtype.kind == "f" or bool(np.all(typed.astype(array.dtype) == array))
    return typed if exact else array


def _model(
    operator: Operator,
    case: Case,
    arrays: dict[str, np.ndarray],
    constant: list[str],
    result: np.ndarray,
) -> onnx.ModelProto:
    names = [item.name if item.name in arrays else "" for item in operator.inputs]
    while not names[-1]:
        names.pop()
    graph = helper.make_graph(
        [ort_backend.node(operator, names, ["result"], **case.attributes)],
        f"{operator.name}_{case.name}",
        [_value(key, array) for key, array in arrays.items() if key not in constant],
        [_value("result", result)],
        [
            numpy_helper.from_array(ort_backend.contiguous(array), key)
            for key, array in arrays.items()
            if key in constant
        ],
    )
    imports = {"": OPSET, operator.onnx_domain: operator.version}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*item) for item in imports.items()],
        ir_version=IR_VERSION,
        producer_name="anybit",
    )


def _value(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    """Return the value info of an array, with names for sizes of 0, which readers reject."""
    shape = [size or f"none_{axis}" for axis, size in enumerate(array.shape)]
    return ort_backend.value_info(name, array.dtype, shape)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="output folder; created if missing")
    parser.add_argument(
        "--operator", action="append", choices=OPERATORS, help="only this operator (repeatable)"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    operators = options.operator or OPERATORS
    count = write(options.folder, (pair for pair in every_case() if pair[0] in operators))
    print(f"{count} cases in {options.folder}")


if __name__ == "__main__":
    main()
