# SPDX-License-Identifier: Apache-2.0
"""Behaviour of an installed package without extras, also outside the source tree."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import numpy as np

import anybit


def test_operators_run_without_extras() -> None:
    x = np.array([0.5, 1.5, 99.0, -99.0], np.float32)
    assert anybit.int_quant(x, 0.5, 0, 4).tolist() == [0.5, 1.5, 3.5, -4.0]
    assert anybit.float_quant(x, 1, *anybit.formats.float4_e2m1fn).tolist() == [0.5, 1.5, 6, -6]
    assert anybit.bipolar_quant(x, 2).tolist() == [2, 2, 2, -2]
    assert anybit.trunc(x, 0.5, 0, 8, 2, 4).tolist() == [0, 0, 14, -16]
    codes = anybit.dynamic_quantize(x, [0.5])
    assert codes.tolist() == [1, 3, 127, -128]
    assert anybit.dynamic_dequantize(codes, [0.5]).tolist() == [0.5, 1.5, 63.5, -64]


def test_package_contains_onnxruntime_library() -> None:
    import anybit.onnxruntime

    assert Path(anybit.onnxruntime.library_path()).is_file()


def test_package_contains_page_template(tmp_path: Path) -> None:
    from onnx import parser

    source = (
        '<ir_version: 8, opset_import: ["": 13]> graph (float[2] x) => (float[2] y) {y = Relu(x)}'
    )
    anybit.inspect(parser.parse_model(source)).to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "<style>:root" in page
    assert "querySelectorAll" in page


def test_package_metadata_names_version() -> None:
    metadata = importlib.metadata.metadata("anybit")
    assert metadata["License-Expression"] == "Apache-2.0"
    licenses = metadata.get_all("License-File") or []
    assert {"LICENSE", "licenses/nanobind.txt"} <= set(licenses)
    assert metadata["Requires-Python"] == ">=3.11"
    assert "anybit" in {
        item.name for item in importlib.metadata.entry_points(group="console_scripts")
    }
    installed = {str(file) for file in importlib.metadata.files("anybit") or []}
    assert not any(name.endswith((".cpp", ".hpp")) for name in installed)


def test_command_line_starts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anybit", "--help"], capture_output=True, text=True, check=True
    )
    assert "run" in done.stdout
    assert "inspect" in done.stdout
