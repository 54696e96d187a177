# SPDX-License-Identifier: Apache-2.0
"""How long does converting a network take?

Each form of `anybit.convert`, and QONNX's own converter to Clip between QuantizeLinear and
DequantizeLinear where it takes the model, in turns, from the file to the converted model in memory.
QONNX's gets the file as it is, without the clean-up that its documentation asks for and that takes
longer than the conversion. It leaves what it cannot convert, which is told beside its time. Models
that need a newer opset have a large part of their time in onnxscript's version converter.
"""

import warnings
from pathlib import Path

from _measure import arguments, best_times, machine, models_folder, show, versions

import anybit
from anybit.onnx.conversion import Form

OURS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")


def converted_by_qonnx(path: Path) -> object:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.qonnx_to_qcdq import QuantToQCDQ

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old opsets and domains, once per run
        return ModelWrapper(str(path)).transform(QuantToQCDQ())


def left_by_qonnx(path: Path) -> str:
    """What its result still has of its own operators, or why there is no result."""
    try:
        model = converted_by_qonnx(path)
    except Exception as error:  # any class: it is another project's
        return f"no: {type(error).__name__}"
    left = sorted({node.op_type for node in model.graph.node if node.domain in OURS})  # type: ignore[attr-defined]
    return f"leaves {', '.join(left)}" if left else "all"


def row(path: Path, rounds: int) -> tuple[str, ...]:
    calls = {form.value: lambda form=form: anybit.convert(path, to=form) for form in Form}
    theirs = left_by_qonnx(path)
    if not theirs.startswith("no: "):
        calls["QONNX"] = lambda: converted_by_qonnx(path)
    times = best_times(calls, rounds, at_least=0)
    ratio = f"{times['QONNX'] / times['qcdq']:.1f}" if "QONNX" in times else "-"
    cells = [f"{1e3 * times[name]:.1f} ms" if name in times else "-" for name in (*Form, "QONNX")]
    return path.stem, *cells, ratio, theirs


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("models", nargs="*", type=Path, help="default: all in ANYBIT_TEST_MODELS")
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
