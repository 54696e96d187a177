# SPDX-License-Identifier: Apache-2.0
"""BatchNormalization with constant parameters."""

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.carriers import MOST_CHANNELS, Carrier, of_interval
from anybit.onnx.analysis.mismatch import check_channels
from anybit.onnx.analysis.rules.elementwise import sources_of
from anybit.onnx.analysis.sums import beyond_float32
from anybit.onnx.analysis.units import LOWEST_EXPONENT
from anybit.onnx.analysis.view import View, given
from anybit.onnx.graph.attributes import attribute_of

# Runtimes write the formula in several ways; none is so far off.
_MARGIN = 2.0**-20


def batch_normalization(node: ir.Node, view: View) -> Carrier | None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, per channel: bounds only."""
    value = given(node, 0)
    x = view.carrier(value)
    arrays = [view.array(given(node, index)) for index in range(1, 5)]
    known = [each.astype(np.float64) for each in arrays if each is not None]
    if x is None or value is None or len(known) < 4 or not x.bounded:
        return None
    if attribute_of(node, "training_mode", 0) or not attribute_of(node, "spatial", 1):
        return None
    scale, bias, mean, variance = known
    axis = view.axis(value, 1)
    if len({each.shape for each in known}) > 1 or scale.ndim != 1:
        return None
    if not 0 < scale.size <= MOST_CHANNELS:
        return None
    spread = variance + attribute_of(node, "epsilon", 1e-5)
    if np.any(variance < 0) or np.any(spread <= 0):
        return None
    if not all(np.isfinite(each).all() for each in known):
        return None
    gain = scale / np.sqrt(spread)
    if x.axis is not None and (axis is None or x.axis != axis):
        x = x.whole()
    check_channels(x.lowest, scale)
    ends = np.stack(np.broadcast_arrays(*((x_ - mean) * gain for x_ in (x.lowest, x.highest))))
    reach = np.maximum(np.abs(x.lowest), np.abs(x.highest))
    centered = reach + np.abs(mean)
    # Of whatever is multiplied first, in whichever order.
    most = np.maximum(np.maximum(np.abs(gain), np.abs(scale)), np.maximum(1, 1 / np.sqrt(spread)))
    if beyond_float32(2 * (centered * most + np.abs(bias))):
        return None
    wider = _MARGIN * (np.abs(gain) * centered + np.abs(bias) + 2.0**-100)
    wider = wider + 2.0 ** (LOWEST_EXPONENT + 1) * centered * most  # gains below normal numbers
    low, high = ends.min(axis=0) + bias - wider, ends.max(axis=0) + bias + wider
    if axis is None:
        low, high = low.min(), high.max()
    return of_interval(low, high, axis, nan=x.nan, sources=sources_of(value, x))
