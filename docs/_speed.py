# SPDX-License-Identifier: Apache-2.0
"""Speed table of the README, from the tables of docs/performance.md."""

import re
from pathlib import Path

PERFORMANCE = Path(__file__).resolve().parent / "performance.md"

# Networks of the README, by their names in performance.md.
_NETWORKS = {
    "TFC_1W1A": "MLP, 1 bit (TFC, 784-64-64-64-10)",
    "kwsmlp_w3a3": "MLP, 3 bits (KWS, 490-256-256-256-12)",
    "cnv_1w1a": "CNN, 1 bit (CNV, 32 x 32)",
    "CNV 2W2A": "CNN, 2 bits (CNV, 32 x 32)",
    "MobileNetV1 W4A4": "MobileNetV1, 4 bits, 224 x 224",
    "ResNet-18 W4A4": "ResNet-18, 4 bits, 224 x 224",
    "ResNet-18 W8A8": "ResNet-18, 8 bits, 224 x 224",
    "GEMV W4A8": "matrix-vector product, 4096 x 4096 weights of 4 bits",
}
_LEVELS = ("AVX-512", "AVX2")


def speed_table() -> str:
    """Return the compiled table: speed relative to float32 and int8, one row per network."""
    text = PERFORMANCE.read_text(encoding="utf-8")
    part = (
        text.partition("<!-- few_bits:begin -->")[2].partition("<!-- few_bits:end -->")[0].strip()
    )
    measured = " ".join(part.partition("\n\n")[0].splitlines())
    machine = re.sub(r"Measured on [\d-]+: ", "", measured)
    headings = [f"{level}: over {peer}" for level in _LEVELS for peer in ("float32", "int8")]
    lines = [
        "Speedup of `anybit.compile` over ONNX Runtime for one input row, on a CPU with AVX-512, "
        "and on one with AVX2 alone. *float32* is a float network of the same shape, "
        "*int8* the runtime's fastest 8-bit form, which is not bit-exact:",
        "",
        f"| network | {' | '.join(headings)} |",
        "|---" + "|---" * len(headings) + "|",
    ]
    speedups = _speedups(part)
    for network, words in _NETWORKS.items():
        ratios = [f"{ratio} x" for ratio in speedups[network]]
        lines.append(f"| {words} | {' | '.join(ratios)} |")
    lines += [
        "",
        "Networks of 8 bits are about as fast as int8. Small float networks (under 1 ms) gain "
        "mainly from `quantize --integer-only`; some do not gain: see "
        f"[float networks](docs/performance.md#float-networks). Machines: {machine}",
    ]
    return "\n".join(lines)


def _speedups(part: str) -> dict[str, list[str]]:
    """Return the speedups over float32 and int8 on both levels, of batch 1, by network."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
    return {row[0]: row[3:5] + row[6:] for row in rows if len(row) == 8 and row[1] == "1"}
