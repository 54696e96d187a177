# SPDX-License-Identifier: Apache-2.0
"""Target runtimes of conversion: their forms, and their newest opsets."""

import re
from dataclasses import dataclass

import onnxruntime  # type: ignore[import-untyped]

from anybit.errors import OptionError
from anybit.onnx.forms import NEWEST_OPSET, Form

# The first version of ONNX Runtime that loads each opset, as measured (with gaps).
_ONNX_RUNTIME = (((1, 17), 20), ((1, 20), 21), ((1, 23), 23), ((1, 26), NEWEST_OPSET))
_LAST_MEASURED = (1, 31)

# Forms as measured (OpenVINO 2026.4), or with the fewest requirements (ONNX Runtime's web build).
_OTHERS = {"web": (Form.QCDQ, 20), "openvino": (Form.QDQ, 24), "any": (Form.QDQ, NEWEST_OPSET)}

NAMES = "onnxruntime, onnxruntime=1.20 (or another version), web, openvino or any"


@dataclass(frozen=True)
class Runtime:
    """The properties of a target runtime.

    Attributes:
        form: The best form for the runtime.
        opset_limit: The newest opset that it loads.
        tried: Whether the result is run in the installed ONNX Runtime.
        fenced: Whether it is ONNX Runtime, whose integer operators need fences.
    """

    form: Form
    opset_limit: int
    tried: bool
    fenced: bool


def find_runtime(name: str) -> Runtime:
    """Return the runtime of a name.

    Raises:
        OptionError: The name is unknown, or its version was not measured.
    """
    if name in _OTHERS:
        return Runtime(*_OTHERS[name], tried=False, fenced=name == "web")
    if name == "onnxruntime":
        return Runtime(Form.QDQ, NEWEST_OPSET, tried=True, fenced=True)
    version = re.fullmatch(r"onnxruntime=(\d+)\.(\d+)(\.\d+)?", name)
    if version is None:
        raise OptionError(f"runtime={name!r} is unknown: use {NAMES}")
    requested = int(version[1]), int(version[2])
    opsets = [opset for release, opset in _ONNX_RUNTIME if release <= requested]
    newest = max(_LAST_MEASURED, _get_installed_version())
    if not opsets or requested > newest:
        raise OptionError(
            f"runtime={name!r} is unknown: use onnxruntime=1.17 to "
            f"onnxruntime={newest[0]}.{newest[1]}, or onnxruntime for the installed version"
        )
    return Runtime(Form.QDQ, opsets[-1], tried=True, fenced=True)


def _get_installed_version() -> tuple[int, int]:
    version = re.match(r"(\d+)\.(\d+)", onnxruntime.__version__)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def find_oldest_onnxruntime(opset: int) -> str:
    """Return the oldest version of ONNX Runtime that loads an opset, as measured."""
    last = _ONNX_RUNTIME[-1][0]
    version = next((release for release, limit in _ONNX_RUNTIME if opset <= limit), last)
    return ".".join(map(str, version))
