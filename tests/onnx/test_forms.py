# SPDX-License-Identifier: Apache-2.0
"""Every case of the tables in every form gives the operator's numbers, in ONNX Runtime.

What is compared are numbers: 0 equals -0. The only elements left out are `undefined_in_onnx`.
"""

from form_sessions import LEVELS, check_once, run_all
from forms import (
    Form,
    Kind,
    cases_per_model,
    differences,
    iter_models,
    parametrize_cases,
    select_calls,
)

import anybit.onnx
from anybit.onnx.conversion import convert


@parametrize_cases
def test_form_numbers(operator: str, form: Form, kind: Kind, every: int) -> None:
    anybit.onnx.register()
    actual = []
    for model in iter_models(kind, select_calls(operator, every), cases_per_model(form, kind)):
        converted = convert(model.proto, to=form)
        assert converted.exact
        undefined = model.undefined(converted)
        file = check_once(form, converted).SerializeToString()
        for level in LEVELS:
            for library, outputs in run_all(form, file, level, model.feeds):
                lines = differences(outputs, model, undefined)
                actual += [f"{level} {library}: {line}" for line in lines]
    assert not actual, "\n".join(actual[:20])
