# SPDX-License-Identifier: Apache-2.0
"""Speed of compiled networks for the README: from the tables of docs/performance.md."""

import re
from pathlib import Path

PERFORMANCE = Path(__file__).resolve().parent / "performance.md"

# The networks of one row that the README shows.
_NETWORKS = {
    "TFC_1W1A": "an MLP of 1 bit (TFC, 784-64-64-64-10)",
    "kwsmlp_w3a3": "an MLP of 3 bits (KWS, 490-256-256-256-12)",
    "cnv_1w1a": "a CNN of 1 bit (CNV, 32 x 32)",
    "CNV 2W2A": "the same of 2 bits",
    "MobileNetV1 W4A4": "MobileNetV1 of 4 bits, 224 x 224",
    "ResNet-18 W4A4": "ResNet-18 of 4 bits, 224 x 224",
    "ResNet-18 W8A8": "the same of 8 bits",
    "GEMV W4A8": "a product with 4096 x 4096 weights of 4 bits",
    "GEMV W1A1": "the same of 1 bit",
}
_LEVELS = {"AVX-512": "few_bits", "AVX2": "few_bits_avx2"}


def speed_table() -> str:
    """Return where it was measured, and a row per network: times as fast as float32 and as int8."""
    text = PERFORMANCE.read_text(encoding="utf-8")
    parts = {level: _part(text, marker) for level, marker in _LEVELS.items()}
    where = re.sub(r"Measured on [\d-]+: ", "", parts["AVX-512"].splitlines()[0]).rstrip(".")
    headings = [
        heading
        for level in _LEVELS
        for heading in (f"{level}: compiled", "x float32", "x int8, not exact")
    ]
    lines = [
        f"Compiled networks against ONNX Runtime, one row. {where}. With AVX2 alone, large CNNs of "
        "4 and 8 bits gain little, or are slower:",
        "",
        f"| network | {' | '.join(headings)} |",
        f"| --- {'| --- ' * len(headings)}|",
    ]
    rows = {level: _rows(part) for level, part in parts.items()}
    for network, words in _NETWORKS.items():
        cells = []
        for found in rows.values():
            floats, integers = found[network, "float32"], found[network, "int8"]
            cells += [floats[4], floats[5], integers[5]]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _part(text: str, marker: str) -> str:
    return (
        text.partition(f"<!-- {marker}:begin -->")[2].partition(f"<!-- {marker}:end -->")[0].strip()
    )


def _rows(part: str) -> dict[tuple[str, str], list[str]]:
    """Return the rows of batch 1 by network and peer."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
    return {(row[0], row[2]): row for row in rows if len(row) > 5 and row[1] == "1"}
