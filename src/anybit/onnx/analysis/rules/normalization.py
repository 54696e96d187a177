# SPDX-License-Identifier: Apache-2.0
"""BatchNormalization with constant parameters."""

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import MOST_CHANNELS, AbstractValue, from_interval
from anybit.onnx.analysis.mismatch import check_channels
from anybit.onnx.analysis.rules.elementwise import get_sources
from anybit.onnx.analysis.sums import exceeds_float32
from anybit.onnx.analysis.units import LOWEST_EXPONENT
from anybit.onnx.analysis.view import View, get_input
from anybit.onnx.graph.attributes import get_attribute

# Runtimes evaluate the formula in several ways; none deviates that much.
_MARGIN = 2.0**-20


def infer_batch_normalization(node: ir.Node, view: View) -> AbstractValue | None:
    """Return bounds of (x - mean) / sqrt(variance + epsilon) * scale + bias, per channel."""
    value = get_input(node, 0)
    x = view.get_abstract(value)
    arrays = [view.get_array(get_input(node, index)) for index in range(1, 5)]
    parameters = [parameter.astype(np.float64) for parameter in arrays if parameter is not None]
    if x is None or value is None or len(parameters) < 4 or not x.bounded:
        return None
    if get_attribute(node, "training_mode", 0) or not get_attribute(node, "spatial", 1):
        return None
    scale, bias, mean, variance = parameters
    axis = view.resolve_axis(value, 1)
    if len({parameter.shape for parameter in parameters}) > 1 or scale.ndim != 1:
        return None
    if not 0 < scale.size <= MOST_CHANNELS:
        return None
    spread = variance + get_attribute(node, "epsilon", 1e-5)
    if np.any(variance < 0) or np.any(spread <= 0):
        return None
    if not all(np.isfinite(parameter).all() for parameter in parameters):
        return None
    gain = scale / np.sqrt(spread)
    if x.axis is not None and (axis is None or x.axis != axis):
        x = x.merge_channels()
    check_channels(x.lowest, scale)
    ends = np.stack(np.broadcast_arrays(*((x_ - mean) * gain for x_ in (x.lowest, x.highest))))
    reach = np.maximum(np.abs(x.lowest), np.abs(x.highest))
    centered = reach + np.abs(mean)
    # The order of the multiplications is open.
    most = np.maximum(np.maximum(np.abs(gain), np.abs(scale)), np.maximum(1, 1 / np.sqrt(spread)))
    if exceeds_float32(2 * (centered * most + np.abs(bias))):
        return None
    wider = _MARGIN * (np.abs(gain) * centered + np.abs(bias) + 2.0**-100)
    wider = wider + 2.0 ** (LOWEST_EXPONENT + 1) * centered * most  # gains below normal numbers
    low, high = ends.min(axis=0) + bias - wider, ends.max(axis=0) + bias + wider
    if axis is None:
        low, high = low.min(), high.max()
    return from_interval(low, high, axis, nan=x.nan, sources=get_sources(value, x))
