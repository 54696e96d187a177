# SPDX-License-Identifier: Apache-2.0
"""Selection of regions by measured times."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from text_models import parse

import anybit
from anybit.compiler import pipeline, region_timing
from anybit.compiler.selection import Left, LeftRegion, Measure, select_regions
from anybit.inspection import report_compilation

TWO_REGIONS = """
graph (float[N, 4] x) => (float[N, 4] y)
<float one = {1}, float none = {0}, float four = {4}>
{
  wq = IntQuant(w, one, none, four)
  xq = IntQuant(x, one, none, four)
  first = MatMul(xq, wq)
  likely = Softmax(first)
  scaled = Mul(likely, seven)
  fq = IntQuant(scaled, one, none, four)
  second = MatMul(fq, wq)
  y = Softmax(second)
}
"""


def two_regions() -> onnx.ModelProto:
    constants = {"w": np.eye(4, dtype=np.float32), "seven": np.float32(7)}
    return parse(TWO_REGIONS, constants, opset=13, version=1)


def measured(seconds: Callable[[Left], float]) -> Measure:
    return lambda candidates: [seconds(left) for left in candidates]


def added(costs: Mapping[int, float]) -> Measure:
    """Return times in which every region costs that much more than its float nodes."""
    return measured(lambda left: 10 + sum(cost for n, cost in costs.items() if n not in left))


def test_select_regions_leaves_slow_ones() -> None:
    left = select_regions(4, added({0: -2, 1: 3, 2: -1, 3: 0.5}))
    assert left == {1: pytest.approx(3), 3: pytest.approx(0.5)}


def test_select_regions_ignores_noise() -> None:
    assert select_regions(2, added({0: 0.1, 1: 0.0})) == {}


def test_select_regions_leaves_all_where_pairs_pay_together_only() -> None:
    seconds = {0: 10.0, 1: 11.0, 2: 7.0}
    assert select_regions(2, measured(lambda left: seconds[len(left)])) == {0: 1.5, 1: 1.5}
    alone = {0: 10.0, 1: 8.0, 2: 9.0}
    assert select_regions(2, measured(lambda left: alone[len(left)])) == {0: 2.0}


def test_select_regions_measures_each_region_against_the_last_choice() -> None:
    requests: list[Sequence[Left]] = []

    def measure(candidates: Sequence[Left]) -> list[float]:
        requests.append(candidates)
        return [10.0 - (0 in left) for left in candidates]

    assert select_regions(2, measure) == {0: 1.0}
    assert requests == [*[[frozenset(), {0}]] * 2, [{0}, {0, 1}]]


def test_select_regions_leaves_what_is_slower_twice() -> None:
    times = iter([(10.0, 1.0), (10.0, 10.0), (10.0, 8.0), (10.0, 9.0), (1.0, 1.0)])
    assert select_regions(2, lambda _: next(times)) == {1: 1.0}


@pytest.mark.parametrize(
    ("seconds", "float_seconds", "ratio"),
    [(1e-3, 4e-4, "0.4"), (1e-3, 0.0, "less than 0.1"), (2e-6, 1.96e-6, "0.98")],
)
def test_left_region_names_ratio(seconds: float, float_seconds: float, ratio: str) -> None:
    reason = LeftRegion(("a",), seconds, float_seconds).reason
    assert reason == f"left in float32: {ratio} x as fast as ONNX Runtime here"


@pytest.fixture
def fake_times(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[int, float]], None]:
    """Return a function that lets regions cost more than their float nodes."""

    def install(costs: Mapping[int, float]) -> None:
        times = region_timing._RegionTimes
        real = added(costs)

        def measure(self: region_timing._RegionTimes, candidates: Sequence[Left]) -> list[float]:
            for left in candidates:
                self._make_call(left)()
            return list(real(candidates))

        monkeypatch.setattr(times, "measure", measure)
        monkeypatch.setattr(times, "profile", lambda _: dict.fromkeys(range(2), 5.0))
        monkeypatch.setattr(pipeline, "add_times", lambda compiled, *_: compiled.report)

    return install


@pytest.mark.parametrize("costs", [{}, {0: 3.0}, {1: 3.0}, {0: 3.0, 1: 2.0}])
def test_compile_leaves_slow_regions(
    fake_times: Callable[[Mapping[int, float]], None], costs: Mapping[int, float]
) -> None:
    fake_times(costs)
    model = two_regions()
    compiled = anybit.compile(model, time=True)
    report = compiled.report
    assert len(report.programs) == 2 - len(costs)
    assert [region.layers for region in report.left] == [
        ("first", "second")[number : number + 1] for number in costs
    ]
    reasons = {layer.name: layer.reason for layer in report.layers if not layer.guarantee}
    assert reasons == {
        ("first", "second")[number]: f"left in float32: {1 - cost / 5:.2g} x as fast as ONNX "
        "Runtime here"
        for number, cost in costs.items()
    }
    places = [layer.place for layer in report.layers if layer.guarantee]
    assert places == [(number, 1) for number in range(2 - len(costs))]
    record = report_compilation(report, "m").to_json()["compilation"]
    assert record["left_in_float"] == [
        {
            "layers": [("first", "second")[number]],
            "seconds": 5.0,
            "float_seconds": 5.0 - cost,
            "ratio": pytest.approx(1 - cost / 5),
        }
        for number, cost in costs.items()
    ]
    x = np.random.default_rng(0).standard_normal((8, 4), dtype=np.float32) * 4
    expected = anybit.load(model).run(x)["y"]
    np.testing.assert_array_equal(compiled.run(x)["y"], expected)


def test_compile_measures_regions_of_whole_networks(
    fake_times: Callable[[Mapping[int, float]], None],
) -> None:
    model = two_regions()
    model.graph.output[0].name = "first"
    del model.graph.node[3:]
    fake_times({})
    assert anybit.compile(model, time=True).session_model is None
    fake_times({0: 4.0})
    compiled = anybit.compile(model, time=True)
    assert compiled.session_model is not None
    assert compiled.report.programs == ()
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(compiled.run(x)["first"], anybit.load(model).run(x)["first"])


def test_measure_regions_does_not_change_the_model() -> None:
    model = pipeline.prepare_for_analysis(two_regions())
    parts = pipeline.find_regions(model, pipeline.Guarantee.BOUNDED)
    names = [str(node.name) for node in model.graph]
    left = region_timing.measure_regions(
        model, parts.regions, parts.pairs, parts.codes, two_regions()
    )
    assert set(left) <= set(parts.regions)
    assert [str(node.name) for node in model.graph] == names
