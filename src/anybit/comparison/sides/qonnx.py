# SPDX-License-Identifier: Apache-2.0
"""QONNX's executor as a runner."""

import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from anybit.comparison.arrays import Array
from anybit.errors import DependencyError


def run_qonnx(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Every node by QONNX's own operators, or by ONNX Runtime if it is a standard one.

    Raises:
        DependencyError: QONNX is not installed, or cannot be imported.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        executor, wrappers, inference = (
            _module(name)
            for name in ("core.onnx_exec", "core.modelwrapper", "transformation.infer_shapes")
        )
        wrapper = wrappers.ModelWrapper(_proto(model, feeds)).transform(inference.InferShapes())
        with _accepted_files(executor, model.ir_version or 8):
            context = executor.execute_onnx(wrapper, dict(feeds), return_full_exec_context=True)
    made = {value.name for node in model.graph for value in node.outputs}
    return {name: np.asarray(array) for name, array in context.items() if name in made}


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"qonnx.{name}")
    except ImportError as error:
        raise DependencyError(
            f"the runner qonnx needs the package qonnx, which cannot be imported ({error}); "
            "install it with pip install qonnx"
        ) from error


def _proto(model: ir.Model, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with the sizes of these inputs: QONNX runs fixed shapes only."""
    fixed = model.clone()
    for value in fixed.graph.inputs:
        if value.name is not None and value.name in feeds:
            value.shape = ir.Shape(feeds[value.name].shape)
    proto: onnx.ModelProto = ir.to_proto(fixed)
    # What the file says of shapes inside may be about other sizes.
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


@contextmanager
def _accepted_files(executor: Any, ir_version: int) -> Iterator[None]:
    """Let QONNX write its models of one node in a version of the format that the runtime reads.

    It writes them in the newest that the onnx package has, and that is often newer than the
    runtime's. There is no setting; its function is replaced while it runs, in this process.
    """
    original = executor.qonnx_make_model
    executor.qonnx_make_model = partial(original, ir_version=ir_version)
    try:
        yield
    finally:
        executor.qonnx_make_model = original
