# SPDX-License-Identifier: Apache-2.0
"""Outputs of converted models; a file that several forms share runs once."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from ort_backend import BY_NAME

from anybit.onnx.conversion import Conversion
from anybit.onnx.forms import Form
from anybit.onnx.library import register_domains

Answer = TypeVar("Answer")

_ANSWERS: dict[tuple[object, bytes], object] = {}


def run_cached(
    identity: object, file: bytes, feeds: Mapping[str, np.ndarray], answer: Callable[[], Answer]
) -> Answer:
    """Return the cached result of a file and its inputs; `identity` names the rest of the key."""
    digest = hashlib.blake2b(file)
    for name in sorted(feeds):
        array = feeds[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    key = identity, digest.digest()
    if key not in _ANSWERS:
        _ANSWERS[key] = answer()
    return _ANSWERS[key]  # type: ignore[return-value]


LEVELS = {
    "as it stands": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "optimized": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
EVERY_LEVEL = LEVELS | {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}


def session_options(level: str, *, library_for: bytes | None = None) -> onnxruntime.SessionOptions:
    """Return exact session options; a file adds our operators of the domains it names."""
    made = onnxruntime.SessionOptions()
    made.graph_optimization_level = EVERY_LEVEL[level]
    made.log_severity_level = 4
    made.intra_op_num_threads = 1
    made.add_session_config_entry("session.disable_quant_qdq", "1")
    if library_for is not None:
        register_domains(made, library_for)
    return made


def sessions(form: Form, file: bytes, level: str) -> Iterator[tuple[str, Any]]:
    """Return the sessions to run a form in: with our library where the form needs it."""
    for library in {Form.QONNX: (True,), Form.PORTABLE: (False, True)}.get(form, (False,)):
        made = onnxruntime.InferenceSession(
            file,
            session_options(level, library_for=file if library else None),
            ["CPUExecutionProvider"],
        )
        yield "with the library" if library else "", made


def run(session: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a session, and return the outputs by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def run_all(
    form: Form, file: bytes, level: str, feeds: Mapping[str, np.ndarray]
) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Return the outputs by name, for every way to run the form."""
    runtime = level, form if form in (Form.QONNX, Form.PORTABLE) else "without the library"
    return run_cached(
        runtime,
        file,
        feeds,
        lambda: [(library, run(made, feeds)) for library, made in sessions(form, file, level)],
    )


def check_once(form: Form, converted: Conversion) -> onnx.ModelProto:
    """Return the model after checking it with ONNX and against the promises of its form."""
    proto = ir.to_proto(converted.model)
    file = proto.SerializeToString()
    ours = {operator.onnx_domain for operator in BY_NAME.values()}
    with_ours = form in (Form.QONNX, Form.PORTABLE)
    check = partial(onnx.checker.check_model, full_check=True, check_custom_domain=with_ours)
    run_cached(("the checker", with_ours), file, {}, lambda: check(file))
    domains = {item.domain for item in converted.model.graph.all_nodes()} | {
        item.domain for item in proto.opset_import
    }
    assert domains <= {"", *(ours if with_ours else ())}
    assert bool(proto.functions) <= (form is Form.PORTABLE)
    return proto
