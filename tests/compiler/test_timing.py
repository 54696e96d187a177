# SPDX-License-Identifier: Apache-2.0
"""Times of layers and of whole runs, beside those of the float model."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from text_models import QUANTIZED, parse, parse_lines

import anybit
from anybit.compiler.report import Report, Seconds, Speed
from anybit.compiler.timing import _assign_instructions, time_layers
from anybit.inspection import report_compilation, text
from anybit.text import format_duration

MIXED = """
graph (float[ROWS, 4] x) => (float[ROWS, 4] y)
<float one = {1}, float none = {0}, float four = {4}>
{
  wq = IntQuant(w, one, none, four)
  float = MatMul(x, wq)
  fq = IntQuant(float, one, none, four)
  a = MatMul(fq, wq)
  rectified = Relu(a)
  aq = IntQuant(rectified, one, none, four)
  y = MatMul(aq, wq)
}
"""


def mixed(rows: str) -> onnx.ModelProto:
    constants = {"w": np.eye(4, dtype=np.float32)}
    return parse(MIXED.replace("ROWS", rows), constants, opset=13, version=1)


@pytest.mark.parametrize("rows", ["N", "8"])
def test_timing_measures_layers(rows: str) -> None:
    model = mixed(rows)
    kept = model.SerializeToString()
    compiled = anybit.compile(model)
    first, *others = time_layers(compiled.report, model).layers
    assert first.guarantee is None
    assert first.seconds is None
    assert first.float_seconds is not None
    assert len(others) == 2
    for layer in others:
        assert layer.seconds is not None
        assert layer.float_seconds is not None
        assert layer.seconds > 0
        assert layer.float_seconds >= 0
    assert model.SerializeToString() == kept


def test_timing_assigns_quantizers_to_their_layer() -> None:
    constants = {**QUANTIZED, "w": np.eye(4, dtype=np.float32), "two": 2.0}
    proto = parse_lines(
        "q = Quant(x, s, z, b)\nc = MatMul(q, w)\na = Quant(c, one, z, b)\n"
        "e = Quant(c, two, z, b)\nd1 = MatMul(a, w)\nd2 = MatMul(e, w)\ny = Add(d1, d2)",
        constants,
        (4,),
    )
    (program,) = anybit.compile(proto).report.programs
    kinds = [type(item).__name__ for item in program.instructions]
    assert kinds == ["Quantize", "Product", "Quantize", "Quantize", "Product", "Product"]
    owners = _assign_instructions(program, {1: "c", 4: "d1", 5: "d2"})
    assert owners == {1: "c", 2: "c", 3: "c", 4: "d1", 5: "d2"}


def test_compile_time_reports_all_peers() -> None:
    report = anybit.compile(mixed("N"), time=True).report
    assert report.speed is not None
    assert list(report.speed.peers) == [
        "float network without quantizers",
        "static int8 (ONNX Runtime)",
        "quantized graph",
    ]
    sides = report.to_json()["speed"]
    for side in ("compiled", "float_model", "static_int8", "quantized_graph"):
        assert sides[side].keys() == {"one_thread", "default"}
        assert min(sides[side].values()) > 0
    assert any(layer.seconds for layer in report.layers)
    assert "x as fast as the float network without quantizers in ONNX Runtime" in report.whole
    assert report.speed.note.endswith("name it with --float")
    silent = anybit.compile(mixed("N")).report
    assert (silent.speed, silent.whole, silent.to_json()["speed"]) == (None, "", None)


def speed(compiled: float, float_model: float | None, quantized_graph: float) -> Speed:
    floats = None if float_model is None else Seconds(float_model, float_model)
    graph = Seconds(quantized_graph, quantized_graph)
    return Speed(Seconds(compiled, compiled), graph, floats, float_name="float model m.onnx")


@pytest.mark.parametrize(
    ("measured", "slower"),
    [
        (speed(1e-3, 2e-3, 4e-3), False),
        (speed(1e-3, 0.95e-3, 4e-3), False),
        (speed(1e-3, 0.5e-3, 4e-3), True),
        (speed(1e-3, 2e-3, 0.5e-3), False),
        (speed(1e-3, None, 0.5e-3), True),
    ],
)
def test_speed_compares_with_float_model_first(measured: Speed, slower: bool) -> None:
    whole = Report((), (), measured).whole
    assert measured.is_slower == slower
    first = "quantized graph" if measured.float_model is None else "float model m.onnx"
    assert whole.startswith(f"slower than the {first}: 1 ms per row") == slower
    assert str(measured) in whole


def test_speed_rows_have_times_and_ratios() -> None:
    rows = speed(1e-3, 2.5e-3, 4e-3).rows()
    assert [row["one row"] for row in rows] == ["compiled", "float model m.onnx", "quantized graph"]
    assert [row["1 thread"] for row in rows] == ["1 ms", "2.5 ms (2.5 x)", "4 ms (4 x)"]


def test_table_rows_add_up_to_whole_run() -> None:
    report = anybit.compile(mixed("N"), time=True).report
    table = text.make_layer_rows(report_compilation(report, "m"))
    assert [row["layer"] for row in table[-2:]] == ["between layers", "3 layers"]
    assert report.speed is not None
    assert table[-1]["time"] == format_duration(report.speed.compiled.one_thread)
    assert table[-1]["float time"] == format_duration(report.speed.quantized_graph.one_thread)
    assert all(row["time"] for row in table)


def test_report_names_remedy_for_slow_model() -> None:
    slow = speed(1e-3, 0.5e-3, 4e-3)
    whole = anybit.compile(mixed("N")).report
    one = replace(whole, layers=whole.compiled, programs=whole.programs[:1], speed=slow)
    assert one.whole.endswith("; quantize with --integer-only, or run the float model m.onnx")
    two = replace(one, programs=whole.programs[:1] * 2)
    assert "--integer-only" in two.whole
    middle = replace(two, is_integer_only=True).whole
    assert middle.startswith("slower than the float model m.onnx")
    assert "--integer-only" not in middle
    first = whole.compiled[0]
    rows = replace(first, layer=replace(first.layer, dynamic=True))
    dynamic = replace(two, layers=(*two.layers, rows)).whole
    assert "quantize with data and static activations" in dynamic
    assert "--integer-only" not in dynamic
    free = replace(first, layer=replace(first.layer, macs=None), guarantee=None)
    unknown = replace(two, layers=(*two.layers, free), has_dynamic_sizes=True)
    assert "--shape" in unknown.whole
    assert "--integer-only" not in unknown.whole
    fixed = replace(one, layers=(*one.layers, free))
    assert fixed.whole.endswith("; quantize with --integer-only, or run the float model m.onnx")


@pytest.mark.parametrize("bits", [7, 8])
def test_report_names_weights_for_cpus_that_widen_bytes(level: str, bits: int) -> None:
    most = 2 ** (bits - 1) - 1
    weights = np.random.default_rng(0).integers(-most, most, (16, 16), endpoint=True) / 4
    constants = {**QUANTIZED, "w": weights.astype(np.float32)}
    model = parse_lines("q = Quant(x, s, z, b8)\ny = MatMul(q, w)", constants, (16,))
    report = time_layers(anybit.compile(model).report, model)
    has_dots = level in ("avxvnni", "avx512vnni", "avx512vpopcnt", "amx", "dotprod")
    assert report.widens_bytes == (bits == 8 and not has_dots)
    slow = replace(report, speed=speed(1e-3, 0.5e-3, 4e-3)).whole
    assert ("--weights int7" in slow) == report.widens_bytes
