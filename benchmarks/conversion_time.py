# SPDX-License-Identifier: Apache-2.0
"""Time of `anybit.convert` relative to QONNX's own converter.

Every form of `anybit.convert` and QONNX's QuantToQCDQ are timed in turns, from the file to the
converted model in memory. QONNX gets the file without the clean-up recommended by its
documentation, which takes longer than the conversion. The last column lists the operators that it
leaves. Models that need a newer opset spend much of their time in onnxscript's version converter.
"""

import warnings
from pathlib import Path

from _measure import arguments, best_times, machine, models_folder, show, versions

import anybit
from anybit.onnx.conversion import Form

QUANTIZER_DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")


def convert_by_qonnx(path: Path) -> object:
    """Convert a model by QONNX to Clip between QuantizeLinear and DequantizeLinear."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.qonnx_to_qcdq import QuantToQCDQ

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old opsets and domains, once per run
        return ModelWrapper(str(path)).transform(QuantToQCDQ())


def qonnx_coverage(path: Path) -> str:
    """Return the quantizers that QONNX leaves in the model, or why it fails."""
    try:
        model = convert_by_qonnx(path)
    except Exception as error:  # third-party code raises any class
        return f"no: {type(error).__name__}"
    nodes = model.graph.node  # type: ignore[attr-defined]
    quantizers = sorted({node.op_type for node in nodes if node.domain in QUANTIZER_DOMAINS})
    return f"leaves {', '.join(quantizers)}" if quantizers else "all"


def row(path: Path, rounds: int) -> tuple[str, ...]:
    """Time all conversions of one model."""
    calls = {form.value: lambda form=form: anybit.convert(path, to=form) for form in Form}
    coverage = qonnx_coverage(path)
    if not coverage.startswith("no: "):
        calls["QONNX"] = lambda: convert_by_qonnx(path)
    times = best_times(calls, rounds, at_least=0)
    ratio = f"{times['QONNX'] / times['qcdq']:.1f}" if "QONNX" in times else "-"
    cells = [f"{1e3 * times[name]:.1f} ms" if name in times else "-" for name in (*Form, "QONNX")]
    return path.stem, *cells, ratio, coverage


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "models", nargs="*", type=Path, help="models (default: all in ANYBIT_TEST_MODELS)"
    )
    options = parser.parse_args()
    print(f"{machine()}; {versions('anybit', 'onnx', 'onnx-ir', 'onnxscript', 'qonnx')}")
    rows = [
        row(path, options.rounds)
        for path in options.models or sorted(models_folder().glob("*.onnx"))
    ]
    columns = ("model", *Form, "QONNX", "times faster (qcdq)", "QONNX converts")
    show("From the file to the converted model", columns, rows, options.markdown)


if __name__ == "__main__":
    main()
