# SPDX-License-Identifier: Apache-2.0
"""Every case in every form gives the operator's numbers in ONNX's own reference evaluator.

What it cannot is listed here, each entry with a test that fails once it can.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import pytest
from cases import Case, computed, f32
from form_sessions import check_once, run_cached
from forms import (
    Call,
    Form,
    Kind,
    Merged,
    cases_per_model,
    differences,
    grouping_key,
    iter_models,
    merge_calls,
    parametrize_cases,
    select_calls,
)
from onnx.reference import ReferenceEvaluator

import anybit.onnx
from anybit.onnx.conversion import Conversion, convert

# It computes with NumPy, which warns of overflow and of NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# Its DequantizeLinear begins with this version.
OPSET = 19


def beyond_int32(case: Case, action: str) -> np.ndarray:
    """Skip inputs for which QuantizeLinear is wrong: it casts to int32 before saturating."""
    x = np.asarray(case.inputs[0])
    if not action.startswith(
        ("QuantizeLinear and DequantizeLinear int", "QuantizeLinear and DequantizeLinear uint")
    ):
        return np.zeros(x.shape, bool)
    with np.errstate(all="ignore"):
        quotient = x.astype(np.float32) / np.asarray(case.inputs[1], np.float32)
    return np.abs(quotient) >= 2.0**31


def evaluated(form: Form, model: Merged, converted: Conversion) -> dict[str, np.ndarray]:
    new_ops = anybit.onnx.reference_ops() if form is Form.QONNX else None
    proto = check_once(form, converted)

    def answer() -> dict[str, np.ndarray]:
        evaluator = ReferenceEvaluator(proto, new_ops=new_ops)
        results = evaluator.run(None, dict(model.feeds))
        return dict(zip(evaluator.output_names, results, strict=True))

    return run_cached(
        ("ONNX's evaluator", form is Form.QONNX), proto.SerializeToString(), model.feeds, answer
    )


def answerable(form: Form, kind: Kind, requested: Sequence[Call]) -> Iterator[Merged]:
    """Models of many cases each, but portable ones of cases with the same attributes.

    The branches of functions compare names of rounding modes, which it cannot: let there be none.
    """
    alike = (
        [
            list(group)
            for _, group in itertools.groupby(requested, key=lambda item: grouping_key(item[1]))
        ]
        if form is Form.PORTABLE
        else [requested]
    )
    for group in alike:
        yield from iter_models(kind, group, cases_per_model(form, kind), opset=OPSET)


@parametrize_cases
def test_forms_numbers(operator: str, form: Form, kind: Kind, every: int) -> None:
    anybit.onnx.register()
    actual = []
    for model in answerable(form, kind, select_calls(operator, every)):
        converted = convert(model.proto, to=form)
        left_out = model.undefined(converted)
        for output, (name, case) in model.calls.items():
            if name == "int_quant":
                left_out[output] |= beyond_int32(case, model.action(converted, output))
        actual += differences(evaluated(form, model, converted), model, left_out)
    assert not actual, "\n".join(actual[:20])


@pytest.mark.parametrize("dtype_width", [2, 4, 8, 16])
def test_forms_deviation_large_quotients(dtype_width: int) -> None:
    case = computed("large", f32([3e9]), 1.0, 0.0, dtype_width)
    model = merge_calls("large", Kind.ACTIVATION, [("int_quant", case)], OPSET)
    converted = convert(model.proto, to="qdq")
    (output,) = model.calls
    assert beyond_int32(case, model.action(converted, output)).all()
    wrong = differences(evaluated(Form.QDQ, model, converted), model, model.undefined(converted))
    # Two bits are limited before QuantizeLinear.
    assert bool(wrong) == (dtype_width != 2)


def test_forms_deviation_no_dequantize_linear_below_its_version() -> None:
    case = computed("plain", f32([1]), 1.0, 0.0, 8)
    model = merge_calls("plain", Kind.ACTIVATION, [("int_quant", case)], OPSET - 1)
    converted = convert(model.proto, to="qdq")
    onnx.checker.check_model(check_once(Form.QDQ, converted))
    with pytest.raises(RuntimeError, match="No implementation for operator 'DequantizeLinear'"):
        evaluated(Form.QDQ, model, converted)


def test_forms_deviation_no_comparison_of_texts_of_different_lengths() -> None:
    cases = [computed(mode, f32([1]), 1.0, 0.0, 8, rounding_mode=mode) for mode in ("UP", "DOWN")]
    model = merge_calls("modes", Kind.ACTIVATION, [("int_quant", case) for case in cases], OPSET)
    converted = convert(model.proto, to="portable")
    with pytest.raises(RuntimeError, match="Input type mismatch: <U"):
        evaluated(Form.PORTABLE, model, converted)
