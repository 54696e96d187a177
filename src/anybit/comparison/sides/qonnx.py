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

from anybit.errors import DependencyError
from anybit.onnx.graph.constants import Array


def run_qonnx(model: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run QONNX operators with QONNX, and standard operators with ONNX Runtime.

    Raises:
        DependencyError: QONNX is not installed, or cannot be imported.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        executor, wrappers, inference = (
            _import_module(name)
            for name in ("core.onnx_exec", "core.modelwrapper", "transformation.infer_shapes")
        )
        wrapper = wrappers.ModelWrapper(_fix_shapes(model, feeds)).transform(
            inference.InferShapes()
        )
        with _list_accepted_files(executor, model.ir_version or 8):
            context = executor.execute_onnx(wrapper, dict(feeds), return_full_exec_context=True)
    computed = {value.name for node in model.graph for value in node.outputs}
    return {name: np.asarray(array) for name, array in context.items() if name in computed}


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(f"qonnx.{name}")
    except ImportError as error:
        raise DependencyError(
            f"the runner qonnx needs the package qonnx, which cannot be imported ({error}); "
            "install it with pip install qonnx"
        ) from error


def _fix_shapes(model: ir.Model, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the model with the shapes of these inputs: QONNX runs fixed shapes only."""
    fixed = model.clone()
    for value in fixed.graph.inputs:
        if value.name is not None and value.name in feeds:
            value.shape = ir.Shape(feeds[value.name].shape)
    proto: onnx.ModelProto = ir.to_proto(fixed)
    # Shapes of intermediate tensors in the file may belong to other input sizes.
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


@contextmanager
def _list_accepted_files(executor: Any, ir_version: int) -> Iterator[None]:
    """Make QONNX write its one-node models in an IR version that ONNX Runtime reads.

    QONNX uses the newest version of the onnx package, which ONNX Runtime may not support. There is
    no setting: the function is replaced in this process while QONNX runs.
    """
    original = executor.qonnx_make_model
    executor.qonnx_make_model = partial(original, ir_version=ir_version)
    try:
        yield
    finally:
        executor.qonnx_make_model = original
