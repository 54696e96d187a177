# SPDX-License-Identifier: Apache-2.0
"""Every case of the tables in every form gives the operator's numbers, in ONNX Runtime.

What is compared are numbers: 0 equals -0. The only elements left out are `undefined_in_onnx`.
"""

import pytest
from cases import OPERATORS
from forms import FORMS, LEVELS, Form, Kind, batches, checked, differences, questions, run, sessions

import anybit.onnx
from anybit.onnx.convert import convert

SAMPLE = 17
"""The quick tests take one case in so many: a prime, since cases come in regular patterns."""


@pytest.mark.parametrize("every", [SAMPLE, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers(operator: str, form: Form, kind: Kind, every: int) -> None:
    anybit.onnx.register()
    found = []
    for model in batches(kind, questions(operator, every)):
        converted = convert(model.proto, to=form)
        assert converted.exact
        undefined = model.undefined(converted)
        file = checked(form, converted).SerializeToString()
        for level in LEVELS:
            for library, session in sessions(form, file, level):
                lines = differences(run(session, model.feeds), model, undefined)
                found += [f"{level} {library}: {line}" for line in lines]
    assert not found, "\n".join(found[:20])
