# SPDX-License-Identifier: Apache-2.0
"""Quality thresholds: parsing and failures."""

import numpy as np
import pytest
from pass_checks import random
from small_models import model, node

import anybit
from anybit import OptionError
from anybit.metrics.output_quality import OutputQuality
from anybit.metrics.quality import QualityMetrics
from anybit.metrics.thresholds import QualityThresholds, parse_thresholds


@pytest.mark.parametrize(
    ("words", "sqnr", "agreement"),
    [
        ("10dB", 10, None),
        ("-3.5 db", -3.5, None),
        ("0dB", 0, None),
        ("95%", None, 0.95),
        ("0%", None, 0),
        ("100 %", None, 1),
        (" 12dB , 99.5% ", 12, 0.995),
        ("99%,12dB", 12, 0.99),
        ("none", None, None),
        ("0", None, None),
    ],
)
def test_parse_thresholds_checks_only_named_figures(
    words: str, sqnr: float | None, agreement: float | None
) -> None:
    assert parse_thresholds(words) == QualityThresholds(sqnr, agreement, named=True)


def test_parse_thresholds_has_defaults() -> None:
    assert parse_thresholds(None) == QualityThresholds(10.0, 0.9, named=False)
    assert parse_thresholds(None, has_data=False) == parse_thresholds(None)
    assert parse_thresholds("none", has_data=False) == parse_thresholds("none")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "give an SQNR"),
        ("10", "'10': give an SQNR"),
        ("10dB 90%", "give an SQNR"),
        ("10dBm", "give an SQNR"),
        ("nandB", "give an SQNR"),
        ("1e3dB", "give an SQNR"),
        ("9" * 400 + "dB", "between -300 dB and 300 dB"),
        ("301dB", "between -300 dB and 300 dB"),
        ("101%", "between 0 % and 100 %"),
        ("-1%", "between 0 % and 100 %"),
        ("10dB,20dB", "dB is given twice"),
        ("10%,20%", "% is given twice"),
        ("10dB,", "give an SQNR"),
    ],
)
def test_parse_thresholds_rejects_other_text(words: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"fail_below=.*{message}"):
        parse_thresholds(words)


def test_parse_thresholds_needs_data() -> None:
    with pytest.raises(OptionError, match="fail_below='20dB': the check needs data"):
        parse_thresholds("20dB", has_data=False)
    with pytest.raises(OptionError, match="fail_below=10 is not a text"):
        parse_thresholds(10)  # type: ignore[arg-type]


def verdict(
    sqnr: float | None, agreement: float | None, words: str | None, logits: float | None = None
) -> QualityMetrics:
    limits = parse_thresholds(words)
    return QualityMetrics(
        sqnr, agreement, 40, seen=False, logits_agreement=logits, thresholds=limits
    )


@pytest.mark.parametrize(
    ("result", "failures"),
    [
        (verdict(10.0, 0.9, None), []),
        (verdict(7.9, None, None), ["SQNR 7.9 dB is below 10 dB"]),
        (verdict(9.96, None, None), ["SQNR 9.96 dB is below 10 dB"]),
        (verdict(np.nextafter(10, 0), None, None), ["SQNR 9.999999999999998 dB is below 10 dB"]),
        (verdict(-np.inf, None, None), ["SQNR -inf dB is below 10 dB"]),
        (verdict(np.inf, 1.0, "300dB,100%"), []),
        (verdict(30.0, 0.8999, None), ["agreement 89.99 % is below 90 %"]),
        (
            verdict(2.0, 0.5, "10dB, 95%"),
            ["SQNR 2.0 dB is below 10 dB", "agreement 50.0 % is below 95 %"],
        ),
        (verdict(2.0, 0.5, "none"), []),
        (verdict(2.0, 0.96, "95%"), []),
        (verdict(12.0, 0.5, "12dB"), []),
        (verdict(12.0, None, None, 0.5), []),
        (verdict(12.0, None, "12dB", 0.5), []),
        (verdict(12.0, None, "90%", 0.5), ["same arg max 50.0 % is below 90 %"]),
        (verdict(12.0, 0.4, "90%", 0.5), ["agreement 40.0 % is below 90 %"]),
        (verdict(12.0, None, "90%"), ["no output has a figure to check"]),
        (verdict(None, 1.0, "10dB"), ["no output has a figure to check"]),
        (verdict(None, 1.0, "10dB,90%"), []),
        (verdict(None, None, None), ["no output has a figure to check"]),
        (verdict(None, None, "none"), []),
    ],
)
def test_failures_name_figures_below_thresholds(
    result: QualityMetrics, failures: list[str]
) -> None:
    assert list(result.failures) == failures
    assert result.passed == (not failures)


def test_failures_name_the_worst_output() -> None:
    outputs = (
        OutputQuality("boxes", "float", 30.0, 0.99, None),
        OutputQuality("scores", "float", 2.0, 0.6, None),
        OutputQuality("labels", "exact", None, None, 0.5),
    )
    result = QualityMetrics(2.0, 0.5, 40, seen=False, outputs=outputs)
    assert result.failures == (
        "SQNR 2.0 dB of scores is below 10 dB",
        "agreement 50.0 % of labels is below 90 %",
    )


def test_quantize_checks_thresholds() -> None:
    proto = model([node("MatMul", "x w", domain="")], {"w": random(8, 5)}, inputs={"x": ["n", 8]})
    data = random(40, 8, seed=1)
    result = anybit.quantize(proto, data, effort="fast")
    assert result.verdict is not None
    assert result.verdict.passed
    assert result.verdict.sqnr is not None
    limit = result.verdict.sqnr + 1
    strict = anybit.quantize(proto, data, effort="fast", fail_below=f"{limit:.3f}dB")
    assert strict.verdict is not None
    assert not strict.verdict.passed
    assert strict.verdict.sqnr == result.verdict.sqnr
    record = strict.to_json()["verdict"]
    assert record["failures"] == list(strict.verdict.failures)
    assert record["passed"] is False
    assert record["thresholds"]["sqnr"] == pytest.approx(limit, abs=1e-3)
    assert record["outputs"][0]["name"] == "y"
    with pytest.raises(OptionError, match="fail_below="):
        anybit.quantize(proto, data, fail_below="good")
