# SPDX-License-Identifier: Apache-2.0
"""Tests of the playground's model page: equal to `anybit inspect`, safe against hostile files."""

import base64
import dataclasses
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from backends import OPERATORS
from browser import Browser, needs_browser
from onnx import TensorProto, helper
from places import EXAMPLE, EXAMPLES, MODELS, needs_models
from playground_page import PAGE, needs_page, open_page, wait
from x_types import x_dtypes

import anybit
from anybit.onnx.summary import summarize
from anybit.ops.domain import Role

pytestmark = [needs_browser, needs_page]

NAMES = ("TFC_1W1A", "TFC_2W2A", "cnv_1w1a", "kwsmlp_w3a3", "mobilenet_w4a4", "qkeras_jettagging")
_READ = """
(text) => {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  try {
    return JSON.stringify(playground.model.read(bytes));
  } catch (error) {
    if (error instanceof playground.Refused) return "refused: " + error.message;
    throw error;
  }
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_page() as browser:
        yield browser


def read_in_page(browser: Browser, model: bytes) -> str:
    return str(browser.value(f"({_READ})('{base64.b64encode(model).decode()}')"))


def assert_same_as_summary(browser: Browser, model: bytes) -> None:
    theirs: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(summarize(model))))
    ours = json.loads(read_in_page(browser, model))
    # The names of weights differ: the page names constants, the summary values computed from them.
    for summary in (ours, theirs):
        summary["weights"] = sorted(summary["weights"].values())
    assert ours == theirs


@needs_models
@pytest.mark.parametrize("name", NAMES)
def test_page_matches_summary_of_real_models(browser: Browser, name: str) -> None:
    assert_same_as_summary(browser, (MODELS / f"{name}.onnx").read_bytes())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.onnx")), ids=lambda path: path.stem)
def test_page_matches_summary_of_examples(browser: Browser, path: Path) -> None:
    assert_same_as_summary(browser, path.read_bytes())


@pytest.mark.parametrize("form", ["qdq", "qcdq", "standard"])
def test_page_matches_summary_of_converted_models(browser: Browser, form: str) -> None:
    assert_same_as_summary(browser, proto(anybit.convert(EXAMPLE, to=form)))


@needs_models
def test_page_shows_signs_in_standard_types(browser: Browser) -> None:
    model = proto(anybit.convert(MODELS / "TFC_1W1A.onnx", to="qdq"))
    assert "-1, 1" in {quantizer.codes for quantizer in summarize(model).quantizers}
    assert_same_as_summary(browser, model)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float6_e3m2fn", "float16", "bfloat16"])
@pytest.mark.parametrize("limit", [None, 1.5, 1.1])
def test_page_shows_codes_of_minifloats(browser: Browser, name: str, limit: float | None) -> None:
    values = [*getattr(anybit.formats, name)][: 3 if limit is None else 4]
    if limit is not None:
        values[3] = limit
    names = ["scale", "exponent_bitwidth", "mantissa_bitwidth", "exponent_bias", "max_val"]
    names = names[: len(values) + 1]
    pairs = zip(names, [0.5, *values], strict=True)
    tensors = [helper.make_tensor(key, TensorProto.FLOAT, [], [value]) for key, value in pairs]
    domain = "qonnx.custom_op.general"
    node = helper.make_node("FloatQuant", ["x", *names], ["y"], "q", domain=domain)
    x, y = (helper.make_tensor_value_info(key, TensorProto.FLOAT, [2]) for key in "xy")
    graph = helper.make_graph([node], "g", [x], [y], tensors)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    assert_same_as_summary(
        browser, helper.make_model(graph, opset_imports=imports).SerializeToString()
    )


ROLES = {
    Role.SCALE: [0.5],
    Role.IN_SCALE: [0.125],
    Role.ZERO_POINT: [1],
    Role.IN_BITWIDTH: [8],
    Role.EXPONENT_BITWIDTH: [4],
    Role.MANTISSA_BITWIDTH: [3],
    Role.EXPONENT_BIAS: [7],
    Role.LIMIT: [448],
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("flags", [0, 1])
@pytest.mark.parametrize("widths", [[3, 5], [5]])
def test_page_matches_summary_of_all_operators(
    browser: Browser, operator: str, flags: int, widths: list[int]
) -> None:
    declared = OPERATORS[operator]
    roles = ROLES | {Role.BITWIDTH: widths}
    tensors = []
    for declared_input in declared.inputs[1:]:
        integers = declared_input.domain.dtypes == ("int8", "uint8", "int32")
        kind = TensorProto.INT8 if integers else TensorProto.FLOAT
        values = roles[declared_input.role]
        tensors.append(helper.make_tensor(declared_input.name, kind, [len(values)], values))
    names = [declared_input.name for declared_input in declared.inputs]
    attributes = {
        attribute.onnx_name: flags
        for attribute in declared.attributes
        if isinstance(attribute.default, bool)
    }
    node = helper.make_node(
        declared.onnx_name, names, ["y"], "q", domain=declared.onnx_domain, **attributes
    )
    x_dtype = x_dtypes(declared)[0]
    result_dtype = declared.result_dtype
    y_dtype = x_dtype if result_dtype is None else result_dtype(declared.complete({}))
    x, y = (
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["rows", 2]
        )
        for name, dtype in ((names[0], x_dtype), ("y", y_dtype))
    )
    graph = helper.make_graph([node], "g", [x], [y], tensors)
    domains = (("", 20), (declared.onnx_domain, declared.version))
    imports = [helper.make_opsetid(*domain) for domain in domains]
    model = helper.make_model(graph, opset_imports=imports)
    assert_same_as_summary(browser, model.SerializeToString())


def proto(result: Any) -> bytes:
    import onnx_ir as ir

    return ir.to_proto(result.model).SerializeToString()


def test_page_refuses_broken_files(browser: Browser) -> None:
    """Truncate and damage a file at random: the page reads or refuses it, and throws no error."""
    whole = EXAMPLE.read_bytes()
    chance = random.Random(1)
    for _ in range(60):
        assert read_in_page(browser, whole[: chance.randrange(1, len(whole))]).startswith(
            ("refused", "{")
        )
        damaged = bytearray(whole)
        for _ in range(8):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        assert read_in_page(browser, bytes(damaged)).startswith(("refused", "{"))
    assert read_in_page(browser, b"").startswith("refused: this is not a readable ONNX file")
    assert read_in_page(browser, b"PK\x03\x04 and more").startswith(
        "refused: this is not a readable"
    )


def test_page_refuses_bombs(browser: Browser) -> None:
    graph = b""
    for _ in range(50):  # a graph in an attribute of a node of a graph
        graph = field(1, field(5, field(6, graph)))
    assert "nested" in read_in_page(browser, field(7, graph))
    assert "cut off" in read_in_page(browser, field(7, b"graph")[:-1])
    # A tensor that declares more elements than it has data for.
    large = TensorProto(dims=[2**40], data_type=1, name="scale", raw_data=b"1234")
    nodes = [helper.make_node("Quant", ["x", "scale", "z", "b"], ["y"], domain="onnx.brevitas")]
    graph = helper.make_graph(nodes, "g", [], [], [large])
    assert '"computed"' in read_in_page(browser, helper.make_model(graph).SerializeToString())
    circle = [
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Identity", ["b"], ["a"]),
        helper.make_node("DequantizeLinear", ["a", "s"], ["y"]),
    ]
    model = helper.make_model(helper.make_graph(circle, "g", [], []))
    assert read_in_page(browser, model.SerializeToString()).startswith("{")


def field(number: int, content: bytes) -> bytes:
    """Encode a protobuf message as a field of another."""
    length, size = b"", len(content)
    while size > 127:
        length, size = length + bytes([128 | size & 127]), size >> 7
    return bytes([8 * number + 2]) + length + bytes([size]) + content


def test_page_shows_dropped_file(browser: Browser) -> None:
    browser.open(PAGE)
    wait(browser)
    drop(browser, "digits.onnx", EXAMPLE.read_bytes())
    text = browser.value("document.getElementById('model').innerText")
    assert "9 quantizers" in text
    assert "6,570 in 6 tensors" in text
    assert "9 IntQuant, 3 Gemm, 2 Relu, 1 Flatten" in text
    assert "when the model runs: 3; folded when it is loaded (*): 6." in text
    rows = browser.value(
        "[...document.querySelectorAll('#quantizers tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent))"
    )
    assert rows[0][:7] == ["node", "operator", "quantizes", "tensor", "shape", "bits", "scale"]
    weight = ["weight_1_q", "IntQuant", "weight*", "weight_1", "[64, 64]", "4", "0.002..0.062"]
    assert weight in [row[:7] for row in rows]
    assert [row[8] for row in rows[:3]] == ["codes", "0..15", "-7..7"]
    assert len(rows) == 10
    assert browser.said == []


def test_page_refuses_files_that_are_not_models(browser: Browser) -> None:
    drop(browser, "letter.txt", b"Dear Sir or Madam,")
    refusal = browser.value("document.getElementById('unread').textContent")
    assert refusal.startswith("letter.txt: this is not a readable ONNX file: ")
    assert browser.value("document.getElementById('model').hidden")


def test_page_escapes_names(browser: Browser) -> None:
    name = "<img src=x onerror=alert(1)>\u202e"
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", [name], ["y"])],
            "g",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        )
    )
    drop(browser, "named.onnx", onnx.ModelProto.SerializeToString(model))
    text = browser.value("document.getElementById('header').innerText")
    assert "<img src=x onerror=alert(1)>\\u202e: float32[1]" in text
    assert browser.value("document.querySelectorAll('#model img').length") == 0
    assert browser.said == []


def test_page_truncates_long_names(browser: Browser) -> None:
    name = 100_000 * "x"
    model = helper.make_model(helper.make_graph([helper.make_node(name, [], [])], "g", [], []))
    drop(browser, "long.onnx", model.SerializeToString())
    text = browser.value("document.getElementById('model').innerText")
    assert "xxx..." in text
    assert len(text) < 20_000


def drop(browser: Browser, name: str, content: bytes) -> None:
    """Drop a file on the page, and wait until it is read."""
    browser.value("playground.model.taken = false")
    browser.value(
        "(() => { const data = new DataTransfer();"
        f"const text = atob('{base64.b64encode(content).decode()}');"
        "const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));"
        f"data.items.add(new File([bytes], {name!r}));"
        "document.body.dispatchEvent("
        "new DragEvent('drop', {bubbles: true, cancelable: true, dataTransfer: data})); })()"
    )
    wait(browser, "playground.model.taken")
