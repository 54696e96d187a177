# SPDX-License-Identifier: Apache-2.0
"""Models that nobody here made keep their outputs in every form, to the last bit.

Sums of arbitrary floats depend on their order, and the runtime chooses it: it packs the weights of
a product if they are constants of the file, and not if nodes compute them. So each form is compared
with the model itself, run in the way that the form's weights are: folded before the session, or
computed in it.
"""

from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from form_sessions import LEVELS, check_once, session_options, sessions
from forms import FORMS, NATIVE, Form
from places import MODELS, SMALL_MODELS, needs_models
from small_models import DOMAIN

import anybit
import anybit.onnx
from anybit.onnx import read
from anybit.onnx.conversion import convert
from anybit.onnx.passes import Normalize

# The runtime moves the scale of an activation after the product: (s x) W becomes s (x W).
SCALE_IS_MOVED = "MatMulScaleFusion"
MOVED = ("kwsmlp_w3a3",)

pytestmark = needs_models


def path_of(name: str) -> Path:
    return MODELS / f"{name}.onnx"


@cache
def rows(name: str) -> np.ndarray:
    with np.load(MODELS / f"{name}.npz") as arrays:
        return arrays["x"][:4]


def outputs(session: onnxruntime.InferenceSession, x: np.ndarray) -> np.ndarray:
    (declared,) = session.get_inputs()
    return np.concatenate([session.run(None, {declared.name: row[None]})[0] for row in x])


@cache
def folded(name: str) -> np.ndarray:
    (result,) = anybit.load(path_of(name)).run(rows(name)).values()
    return result


@cache
def computed_in_session(name: str, level: str) -> np.ndarray:
    model = read(path_of(name))
    Normalize()(model)
    file = ir.to_proto(model).SerializeToString()
    chosen = session_options(level, library_for=file)
    return outputs(onnxruntime.InferenceSession(file, chosen, ["CPUExecutionProvider"]), rows(name))


def expected(name: str, form: Form, level: str) -> np.ndarray:
    weights_are_nodes = form in NATIVE and level == "as it stands"  # else the runtime folds them
    if form is Form.QONNX or weights_are_nodes:
        return computed_in_session(name, level)
    return folded(name)


def converted_file(name: str, form: Form) -> bytes:
    anybit.onnx.register()
    return check_once(form, convert(path_of(name), to=form)).SerializeToString()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_forms_outputs(name: str, form: Form) -> None:
    file = converted_file(name, form)
    for level in LEVELS:
        for library, session in sessions(form, file, level):
            if (name, level, library) == (*MOVED, "optimized", "") and form not in NATIVE:
                continue  # test_forms_deviation_scales_are_moved
            np.testing.assert_array_equal(
                outputs(session, rows(name)), expected(name, form, level), f"{level}, {library}"
            )


@pytest.mark.parametrize("form", [Form.STANDARD, Form.PORTABLE])
@pytest.mark.parametrize("name", MOVED)
def test_forms_deviation_scales_are_moved(name: str, form: Form) -> None:
    """Disable the one optimization that changes an output here."""
    file, x = converted_file(name, form), rows(name)

    def optimized(disabled: list[str]) -> np.ndarray:
        chosen = session_options("optimized")
        session = onnxruntime.InferenceSession(
            file, chosen, ["CPUExecutionProvider"], disabled_optimizers=disabled
        )
        return outputs(session, x)

    np.testing.assert_array_equal(optimized([SCALE_IS_MOVED]), folded(name))
    moved = optimized([])
    assert not np.array_equal(moved, folded(name))
    np.testing.assert_array_equal(moved.argmax(axis=1), folded(name).argmax(axis=1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_forms_every_quantizer_is_reported(name: str, form: Form) -> None:
    quantizers = [node for node in read(path_of(name)).graph if node.domain]
    if form is Form.QONNX:  # where only names change
        quantizers = [
            node for node in quantizers if node.domain != DOMAIN or node.op_type == "Quant"
        ]
    converted = convert(path_of(name), to=form)
    assert converted.exact
    assert len(converted.steps) == len(quantizers)


@pytest.mark.parametrize("style", NATIVE)
@pytest.mark.parametrize("name", SMALL_MODELS)
def test_forms_there_and_back(name: str, style: Form) -> None:
    back = convert(convert(path_of(name), to=style).model, to="qonnx")
    assert back.exact
    file = check_once(Form.QONNX, back).SerializeToString()
    (returned,) = anybit.load(file).run(rows(name)).values()
    np.testing.assert_array_equal(returned, folded(name))
