# SPDX-License-Identifier: Apache-2.0
"""A small quantized network of the kind of MobileNetV3, as PyTorch exports them."""

import numpy as np
import onnx
from text_models import QUANTIZED, parse_lines


def mobile_net() -> onnx.ModelProto:
    """Return a stem, two inverted residuals with squeeze and excite, and a classifier."""
    lines, constants = (
        ["stem = Quant(x, s, z, b8)"],
        {**QUANTIZED, "s": 0.03, "axes": np.array([2, 3])},
    )
    random = np.random.default_rng(0)

    def conv(x: str, y: str, outer: int, inner: int, size: int = 1, options: str = "") -> None:
        w = random.integers(-127, 128, (outer, inner, size, size)) * np.float32(0.01)
        constants[f"{y}_w"] = w.astype(np.float32)
        constants[f"{y}_b"] = random.normal(0, 0.1, outer).astype(np.float32)
        lines.append(f"{y} = Conv({x}, {y}_w, {y}_b) {options}")
        lines.append(f"{y}_q = Quant({y}, s, z, b8)")

    def activated(x: str, kind: str) -> str:
        lines.extend((f"{x}_a = {kind}({x}_q)", f"{x}_aq = Quant({x}_a, s, z, b8)"))
        return f"{x}_aq"

    conv("stem", "c0", 8, 3, 3, "pads=[1,1,1,1] strides=[2,2]")
    x = activated("c0", "HardSwish")
    for block in ("m", "n"):
        conv(x, f"{block}1", 16, 8)
        y = activated(f"{block}1", "HardSwish")
        conv(y, f"{block}2", 16, 1, 3, "pads=[1,1,1,1] group=16")
        y = activated(f"{block}2", "HardSwish")
        lines.append(f"{block}3 = ReduceMean({block}2_a, axes)")
        lines.append(f"{block}3_q = Quant({block}3, s, z, b8)")
        conv(f"{block}3_q", f"{block}4", 4, 16)
        conv(activated(f"{block}4", "Relu"), f"{block}5", 16, 4)
        gate = activated(f"{block}5", "HardSigmoid")
        lines.append(f"{block}6 = Mul({gate}, {y})")
        lines.append(f"{block}6_q = Quant({block}6, s, z, b8)")
        conv(f"{block}6_q", f"{block}7", 8, 16)
        lines.append(f"{block}8 = Add({block}7_q, {x})")
        lines.append(f"{block}8_q = Quant({block}8, s, z, b8)")
        x = f"{block}8_q"
    lines += [f"p = GlobalAveragePool({x})", "p_q = Quant(p, s, z, b8)", "f = Flatten(p_q)"]
    lines.append("y = Gemm(f, g_w)")
    constants["g_w"] = random.integers(-127, 128, (8, 10)).astype(np.float32) * np.float32(0.01)
    proto = parse_lines("\n".join(lines), constants, (3, 16, 16))
    proto.opset_import[0].version = 18
    return proto
