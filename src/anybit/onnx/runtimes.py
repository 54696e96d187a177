# SPDX-License-Identifier: Apache-2.0
"""The runtimes that a model can be converted for: the form they take, and up to which opset."""

import re
from dataclasses import dataclass

import onnxruntime  # type: ignore[import-untyped]

from anybit.errors import OptionError
from anybit.onnx.forms import NEWEST_OPSET, Form

# From which version of ONNX Runtime on a model of an opset loads: as measured, so with gaps.
_ONNX_RUNTIME = (((1, 17), 20), ((1, 20), 21), ((1, 23), 23), ((1, 26), NEWEST_OPSET))
_LAST_MEASURED = (1, 31)

# Forms as measured (OpenVINO 2026.4), or those that ask for least (ONNX Runtime's web build).
_OTHERS = {"web": (Form.QCDQ, 20), "openvino": (Form.QDQ, 24), "any": (Form.QDQ, NEWEST_OPSET)}

NAMES = "onnxruntime, onnxruntime=1.20 (or another version), web, openvino or any"


@dataclass(frozen=True)
class Runtime:
    """What a conversion heeds of the runtime it is for.

    Attributes:
        form: The form that the runtime takes best.
        opset_limit: The newest opset that it loads.
        tried: Whether the installed ONNX Runtime is asked what it makes of the result.
        fenced: Whether it is ONNX Runtime, whose integer operators have to keep values.
    """

    form: Form
    opset_limit: int
    tried: bool
    fenced: bool


def runtime_named(name: str) -> Runtime:
    """The runtime of a name.

    Raises:
        OptionError: There is none of that name, or nothing is known of its version.
    """
    if name in _OTHERS:
        return Runtime(*_OTHERS[name], tried=False, fenced=name == "web")
    if name == "onnxruntime":
        return Runtime(Form.QDQ, NEWEST_OPSET, tried=True, fenced=True)
    version = re.fullmatch(r"onnxruntime=(\d+)\.(\d+)(\.\d+)?", name)
    if version is None:
        raise OptionError(f"the runtime must be {NAMES}, got {name!r}")
    wanted = int(version[1]), int(version[2])
    opsets = [opset for known, opset in _ONNX_RUNTIME if known <= wanted]
    newest = max(_LAST_MEASURED, _installed())
    if not opsets or wanted > newest:
        raise OptionError(
            f"the runtime must be onnxruntime=1.17 to {newest[0]}.{newest[1]}, the versions that "
            f"are known, got {name!r}; without a version it is the installed one"
        )
    return Runtime(Form.QDQ, opsets[-1], tried=True, fenced=True)


def _installed() -> tuple[int, int]:
    version = re.match(r"(\d+)\.(\d+)", onnxruntime.__version__)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def oldest_onnxruntime(opset: int) -> str:
    """The oldest version of ONNX Runtime that loads models of an opset, of those measured."""
    newest = _ONNX_RUNTIME[-1][0]
    version = next((known for known, newest in _ONNX_RUNTIME if opset <= newest), newest)
    return ".".join(map(str, version))
