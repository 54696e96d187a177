# SPDX-License-Identifier: Apache-2.0
"""`anybit.info` and `anybit info`: what a model holds."""

import io
import re
from typing import Any

import numpy as np
import onnx
import pytest
from nbits_models import NBits
from places import MODELS, needs_models
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from shell import Shell
from small_models import array, model, node, quantized_input, quantized_weight

import anybit
from anybit.cli._columns import joined, width
from anybit.errors import ModelError


def long_names(count: int = 3) -> onnx.ModelProto:
    """Quantizers one behind the other, whose names begin and end alike."""
    nodes = [
        node(
            "Quant",
            f"{'x' if place == 0 else f'stage{place - 1}'} s z b",
            "y" if place == count - 1 else f"stage{place}",
            name=f"/model/layers/with/a/long/common/path/block_{place}/quantizer",
        )
        for place in range(count)
    ]
    return model(nodes, {"s": 0.5, "z": 0, "b": 4})


def shown_at(shell: Shell, width: int, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """The output on a terminal of that width."""
    for name, value in {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    code, out, err = shell(*arguments)
    assert (code, err) == (0, "")
    return re.sub("\x1b\\[[0-9;]*m", "", out)


@pytest.mark.parametrize("style", ["qdq", "qcdq"])
def test_pairs_are_quantizers(style: str) -> None:
    proto, _ = quantized_weight()
    proto.graph.node.append(node("Quant", "y scale zeropt bitwidth", "out", name="last"))
    proto.graph.output[0].name = "out"
    found = anybit.info(anybit.convert(proto, to=style).model)
    assert [each.operator for each in found.quantizers] == ["QDQ", "QDQ"]
    weight, activation = found.quantizers
    assert (weight.role, weight.constant, weight.shape) == ("weight", True, "[4, 3]")
    assert (activation.role, activation.constant) == ("activation", False)
    assert (activation.bits, activation.codes) == ("3", "-4..3")
    assert activation.type == "int8"
    assert activation.scale is not None
    assert (activation.scale.smallest, activation.scale.granularity) == (0.25, "per-tensor")


def test_pairs_on_the_command_line(shell: Shell) -> None:
    converted = anybit.convert(quantized_input(), to="qdq")
    converted.save("pair.onnx")
    code, out, _ = shell("info", "pair.onnx")
    assert code == 0
    assert "QDQ int4" in out
    assert "need the operator library when the model runs: 0;" in out


def test_nodes_that_hold_constants_count() -> None:
    weight = np.ones((256, 4), np.float32)
    held = onnx.helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(weight))
    proto = model([held, node("MatMul", "w x", domain="")], inputs={"x": [4, 2]})
    found = anybit.info(proto)
    assert found.constant_bytes == weight.nbytes
    assert (found.parameters, found.weights) == (1024, {"w": "float32[256, 4]"})
    assert found.operators == {"Constant": 1, "MatMul": 1}


def test_parameters_are_weights() -> None:
    """Scales, zero-points, widths, shapes and single numbers are none."""
    proto, weight = quantized_weight()
    nodes = [
        node("Mul", "y half", "scaled", domain=""),
        node("Reshape", "scaled shape", "flat", domain=""),
    ]
    proto.graph.node.extend(nodes)
    proto.graph.output[0].name = "flat"
    for name, values in {"half": array(0.5), "shape": np.array([-1])}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    found = anybit.info(proto)
    assert (found.parameters, list(found.weights)) == (weight.size, ["weight"])


def test_codes_are_parameters() -> None:
    proto, weight = quantized_weight()
    assert anybit.info(anybit.convert(proto, to="qdq").model).parameters == weight.size


def test_a_model_without_quantizers_lists_its_weights(shell: Shell) -> None:
    weights = {f"w{place}": np.ones((4, 4), np.float32) for place in range(14)}
    names = ["x", *(f"h{place}" for place in range(13)), "y"]
    nodes = [
        node("MatMul", f"{names[place]} w{place}", names[place + 1], domain="", name=f"n{place}")
        for place in range(14)
    ]
    onnx.save(model(nodes, weights), "floats.onnx")
    code, out, _ = shell("info", "floats.onnx")
    assert code == 0
    assert "No quantizers. The weights:\n  w0: float32[4, 4]\n" in out
    assert "and 2 more (--json lists all)" in out


def test_one_wording_of_shapes(shell: Shell) -> None:
    proto = quantized_input()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    assert anybit.info(proto).inputs == {"x": "float32[rows, 4]"}
    assert [str(each) for each in anybit.load(proto).inputs] == ["x: float32[rows, 4]"]
    onnx.save(proto, "free.onnx")
    assert "x: float32[rows, 4]" in shell("info", "free.onnx")[1]


def test_names_are_whole_where_there_is_room(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = long_names()
    onnx.save(proto, "long.onnx")
    whole = [each.name for each in proto.graph.node]
    _, piped, _ = shell("info", "long.onnx")
    wide = shown_at(shell, 180, monkeypatch, "info", "long.onnx")
    narrow = shown_at(shell, 100, monkeypatch, "info", "long.onnx")
    assert all(name in piped and name in wide for name in whole)
    assert "each node begins with /model/layers/with/a/long/common/path/block_" in narrow
    for place in range(3):
        assert f" {place}/quantizer " in narrow


@needs_models
@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("name", ["cnv_1w1a", "mobilenet_w4a4", "qkeras_jettagging"])
def test_terminals(shell: Shell, monkeypatch: pytest.MonkeyPatch, width: int, name: str) -> None:
    out = shown_at(shell, width, monkeypatch, "info", str(MODELS / f"{name}.onnx"))
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    assert " bits " in out


@pytest.mark.parametrize(
    ("nodes", "constants", "bits", "codes"),
    [
        (node("BipolarQuant", "x s"), {"s": 1}, "1", "-1, 1"),
        (node("Quant", "x s z b"), {"s": 1, "z": 0, "b": array([2, 3, 4, 8])}, "2..8", ""),
        (node("DynamicQuantize", "x s", domain="anybit", dst="u8"), {"s": array([1])}, "8", ""),
        (
            node("FloatQuant", "x s e m b"),
            {"s": 1, "e": array([4, 5, 4, 4]), "m": 3, "b": 7},
            "e4..5 m3",
            "",
        ),
    ],
    ids=["sign", "per-channel", "integers", "floats-per-channel"],
)
def test_bits(nodes: Any, constants: dict[str, Any], bits: str, codes: str) -> None:
    opsets = {nodes.domain: 1}
    proto = model([nodes], constants, opsets=opsets)
    proto.graph.output[0].ClearField("type")  # that of DynamicQuantize follows from its attributes
    (found,) = anybit.info(proto).quantizers
    assert (found.bits, found.codes) == (bits, codes)


def test_bits_that_are_computed() -> None:
    inputs = {"x": [1, 4], "b": []}
    proto = model([node("Quant", "x s z b")], {"s": 1, "z": 0}, inputs=inputs)
    (found,) = anybit.info(proto).quantizers
    assert (found.bits, found.codes) == ("?", "")
    assert found.parameters["bitwidth"].granularity == "computed"


def test_text_as_a_scale() -> None:
    with pytest.raises(ModelError, match="must hold numbers to quantize with"):
        anybit.info(model([node("Quant", "x s z b")], {"s": np.array(["a"]), "z": 0, "b": 4}))


def test_the_source_is_not_changed() -> None:
    proto, _ = quantized_weight()
    before = proto.SerializeToString()
    anybit.info(proto)
    assert proto.SerializeToString() == before


def test_the_width_of_a_long_table_is_that_of_its_widest_rows() -> None:
    """rich takes longer to measure ten thousand rows than to print them."""
    rows = [{"node": "n" * (at % 40), "bits": str(at), "codes": "-8..7"} for at in range(5000)]
    measured = []

    def table(rows: list[dict[str, str]]) -> Table:
        measured.append(len(rows))
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*row.values())
        return table

    console = Console(width=80)
    found = width(rows, {"node"}, table, console)
    assert found == console.measure(table(rows), options=console.options.update(width=999)).maximum
    assert measured[0] <= 6


@pytest.mark.parametrize("names", [["first", "", "the third"], ["", "", ""], ["界", "x"]])
def test_rows_that_are_joined_look_as_if_they_were_not(names: list[str]) -> None:
    cells = [[Text(name), Text(str(at))] for at, name in enumerate(names)]
    printed = []
    for rows in (cells, [joined(cells)]):
        table = Table("name", "number", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for row in rows:
            table.add_row(*row)
        out = io.StringIO()
        Console(width=40, force_terminal=True, file=out).print(table)
        printed.append(out.getvalue())
    assert printed[0] == printed[1]


def test_rows_of_folded_names_stay_beside_each_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rows of one line each may be joined."""
    proto = long_names()
    for letter, each in zip("ABC", proto.graph.node, strict=True):
        each.name = letter * 80
    onnx.save(proto, "folded.onnx")
    lines = shown_at(shell, 60, monkeypatch, "info", "folded.onnx").splitlines()
    for letter in "ABC":
        found = [line for line in lines if letter * 3 in line]
        assert len(found) > 1
        assert [" 0.5 " in f"{line} " for line in found] == [True] + [False] * (len(found) - 1)


def test_info_names_operators_on_codes_and_the_command_that_replaces_them(shell: Shell) -> None:
    onnx.save(NBits().model(), "packed.onnx")
    code, out, _ = shell("info", "packed.onnx")
    assert code == 0
    assert (
        "No quantizers, but operators on codes (1 com.microsoft::MatMulNBits); anybit convert "
        "--to qonnx replaces those that it can. The weights:\n"
    ) in out
