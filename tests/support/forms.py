# SPDX-License-Identifier: Apache-2.0
"""Cases as models for conversions: many cases are one model, which is converted and run once.

Every case is a node with inputs, constants and an output of its own, so that a merged model says
as much about each of them as a model per case would, in a fraction of the time.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
import pytest
from cases import OPERATORS, Case, every_case, expected_result
from native_cases import Call, native_cases
from onnx import TensorProto, helper, numpy_helper
from ort_backend import BY_NAME, as_tensor, contiguous, node, value_info

from anybit.onnx.conversion import Conversion
from anybit.onnx.forms import Form

Test = TypeVar("Test")

SAMPLE, LARGE_SAMPLE, PORTABLE_SAMPLE = 17, 5, 11
"""Steps through the cases in quick and slow tests: primes, because cases have regular patterns.

Portable models hold few cases each, and run four times."""
QUICK_COMBINATIONS = 30
ANCHOR = "anchor"
"""An input that the results of weights are added to: 0, which no optimizer knows."""


FORMS = tuple(form for form in Form if form not in (Form.COMPACT, Form.MATMULNBITS))
"""The forms whose rules are the same; test_compact.py and test_to_nbits.py have those of others."""
NATIVE = (Form.QDQ, Form.QCDQ)


class Kind(StrEnum):
    """The kind of tensor that a case quantizes."""

    ACTIVATION = "activation"
    """The parameters; x is an input of unknown sizes."""
    WEIGHT = "weight"
    """Everything. The result is added to an input that is 0."""
    RUN_TIME = "run_time"
    """Nothing: the parameters are inputs, too."""


@dataclass(frozen=True)
class Merged:
    """Cases in one model; `calls` has the case of each output."""

    name: str
    kind: Kind
    proto: onnx.ModelProto
    feeds: Mapping[str, np.ndarray]
    calls: Mapping[str, Call]

    def expected(self) -> dict[str, np.ndarray]:
        """Return the expected results by output."""
        return {output: expected_result(*call) for output, call in self.calls.items()}

    def undefined(self, converted: Conversion) -> dict[str, np.ndarray]:
        """Return the elements that ONNX leaves undefined, by output."""
        return {
            output: undefined_in_onnx(*call, self.action(converted, output))
            for output, call in self.calls.items()
        }

    def action(self, converted: Conversion, output: str) -> str:
        """Return the conversion's action for the node of an output."""
        node = "_".join(output.split("_")[:2]) + "_node"
        return next((step.action for step in converted.steps if step.node == node), "")


def undefined_in_onnx(operator: str, case: Case, action: str) -> np.ndarray:
    """Return the elements that QuantizeLinear leaves undefined.

    Integer types have no NaN, and float8 types saturate infinities. A conversion may change these
    elements only. Signs of NaN are defined, and constants with such values are not converted.
    """
    x = np.asarray(case.inputs[0])
    nothing = np.zeros(x.shape, bool)
    if not action.startswith("QuantizeLinear") or operator == "bipolar_quant":
        return nothing
    x = x.astype(np.float32)
    if "float8" not in action:
        return np.isnan(x)
    with np.errstate(all="ignore"):
        return np.isinf(x / np.asarray(case.inputs[1], np.float32))


class _Assembly:
    """A model that grows by one case at a time."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.feeds: dict[str, np.ndarray] = {}
        self.calls: dict[str, Call] = {}

    def add(self, operator: str, case: Case) -> None:
        prefix = f"case_{len(self.calls)}_"
        declared = BY_NAME[operator]
        names = [prefix + "x"]
        self._value(names[0], np.asarray(case.inputs[0]), self.kind is Kind.WEIGHT)
        for value, described in zip(case.inputs[1:], declared.inputs[1:], strict=False):
            names.append("" if value is None else prefix + described.name)
            if value is not None:
                array = as_tensor(value, described)
                self._value(names[-1], array, self.kind is not Kind.RUN_TIME)
        while not names[-1]:
            names.pop()
        made = node(declared, names, [prefix + "y"], **case.attributes)
        made.name = prefix + "node"
        self.nodes.append(made)
        self.calls[self._output(prefix + "y", expected_result(operator, case))] = (operator, case)

    def _value(self, name: str, array: np.ndarray, constant: bool) -> None:
        array = contiguous(array)
        if constant:
            self.tensors.append(numpy_helper.from_array(array, name))
            return
        sizes = [f"{name}_{axis}" for axis in range(array.ndim)]
        if array.dtype == ml_dtypes.bfloat16:  # which the runtime's NumPy has not
            self._cast(name + "_wide", name, TensorProto.BFLOAT16)
            name, array = name + "_wide", array.astype(np.float32)
        self.inputs.append(value_info(name, array.dtype, sizes))
        self.feeds[name] = array

    def _output(self, name: str, result: np.ndarray) -> str:
        """Declare the graph output for the result of a node."""
        dtype: Any = result.dtype
        if self.kind is Kind.WEIGHT:
            self._cast(name, name + "_wide", TensorProto.DOUBLE)
            if ANCHOR not in self.feeds:
                self._value(ANCHOR, np.zeros(()), False)
            self.nodes.append(helper.make_node("Add", [name + "_wide", ANCHOR], [name + "_sum"]))
            name, dtype = name + "_sum", np.float64
        elif dtype == ml_dtypes.bfloat16:
            self._cast(name, name + "_wide", TensorProto.FLOAT)
            name, dtype = name + "_wide", np.float32
        self.outputs.append(value_info(name, dtype, [None] * result.ndim))
        return name

    def _cast(self, name: str, result: str, to: int) -> None:
        self.nodes.append(helper.make_node("Cast", [name], [result], to=to))

    def model(self, name: str, opset: int) -> Merged:
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.tensors)
        used = {BY_NAME[operator] for operator, _ in self.calls.values()}
        imports = {"": opset} | {operator.onnx_domain: operator.version for operator in used}
        opsets = [helper.make_opsetid(*item) for item in imports.items()]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return Merged(name, self.kind, proto, self.feeds, self.calls)


def merge_calls(name: str, kind: Kind, calls: Iterable[Call], opset: int = 13) -> Merged:
    """Merge all calls into one model."""
    assembly = _Assembly(kind)
    for call in calls:
        assembly.add(*call)
    return assembly.model(name, opset)


@cache
def select_calls(operator: str, every: int = 1) -> tuple[Call, ...]:
    """Return every n-th valid case of an operator, native ones included.

    Cases with equal attributes follow one another: a portable model holds a branch for each
    combination that it has.
    """
    all_calls = [*every_case(), *native_cases()]
    valid = [call for call in all_calls if call[0] == operator and call[1].raises is None]
    return tuple(sorted(valid[::every], key=lambda call: grouping_key(call[1])))


def grouping_key(case: Case) -> tuple[Any, ...]:
    """Return equal keys for cases that a portable model computes in the same branch."""
    attributes = sorted((name, str(value).upper()) for name, value in case.attributes.items())
    return attributes, len(case.inputs), str(np.asarray(case.inputs[0]).dtype)


def cases_per_model(form: Form, kind: Kind) -> int:
    """Return the number of cases in one model of a form.

    It is large because sessions cost more than their nodes. The runtime inlines the local
    functions of portable models one by one, so they hold few. With native types the narrowest
    one in the model decides the opset of all. Only constant parameters have native types.
    """
    if form is Form.PORTABLE:
        return 3
    return 6 if form in NATIVE and kind is not Kind.RUN_TIME else 24


def iter_models(
    kind: Kind, calls: Sequence[Call], count: int, *, opset: int = 13
) -> Iterator[Merged]:
    """Yield models of `count` cases of one operator: its domain has one version."""
    for operator, group in itertools.groupby(calls, key=lambda call: call[0]):
        alike = list(group)
        for start in range(0, len(alike), count):
            batch = alike[start : start + count]
            yield merge_calls(f"{operator}_{kind}_{start}", kind, batch, opset)


def differences(
    actual: Mapping[str, np.ndarray], model: Merged, undefined: Mapping[str, np.ndarray]
) -> list[str]:
    """Return one line for every output that differs from the expected result."""
    assert actual.keys() == model.calls.keys()
    lines = []
    for output, call in model.calls.items():
        line = _difference(actual[output], call, undefined[output])
        if line:
            lines.append(f"{model.kind} {call[0]} {call[1].name}: {line}")
    return lines


def _difference(actual: np.ndarray, call: Call, undefined: np.ndarray) -> str:
    expected = expected_result(*call)
    if actual.shape != expected.shape:
        return f"got the shape {actual.shape}, expected {expected.shape}"
    wrong = ~same_numbers(actual, expected) & ~undefined
    if not wrong.any():
        return ""
    place = tuple(np.argwhere(wrong)[0])
    x = np.asarray(call[1].inputs[0])[place]
    return (
        f"{wrong.sum()} of {wrong.size} elements differ; at {place}, x = {x!r}: "
        f"got {actual[place]!r}, expected {expected[place]!r}"
    )


def same_numbers(actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return where two arrays of any types hold the same number, or both NaN. 0 equals -0."""
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    return (actual == expected) | (np.isnan(actual) & np.isnan(expected))


def parametrize_cases(test: Test) -> Test:
    """Parametrize a test by operator, form, kind and the step through the cases.

    Quick tests take few cases of some combinations, slow ones many cases of all.
    """
    combinations = list(itertools.product(OPERATORS, FORMS, Kind))
    quick = random.Random(0).sample(combinations, QUICK_COMBINATIONS)
    values = [(*combination, SAMPLE) for combination in quick]
    values += [
        pytest.param(
            *combination,
            PORTABLE_SAMPLE if Form.PORTABLE in combination else LARGE_SAMPLE,
            marks=pytest.mark.slow,
        )
        for combination in combinations
    ]
    return pytest.mark.parametrize(("operator", "form", "kind", "every"), values)(test)
