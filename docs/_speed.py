# SPDX-License-Identifier: Apache-2.0
"""How fast compiled networks are, for the README: from the table of docs/performance.md."""

import re
from pathlib import Path

PERFORMANCE = Path(__file__).resolve().parent / "performance.md"

# What the README has of the networks of one row.
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


def speed_table() -> str:
    """Where it was measured, and a row per network: times as fast as float32 and as int8."""
    text = PERFORMANCE.read_text(encoding="utf-8")
    begin, end = "<!-- few_bits:begin -->", "<!-- few_bits:end -->"
    part = text.partition(begin)[2].partition(end)[0].strip()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
    found = {(row[0], row[2]): row for row in rows if len(row) > 5 and row[1] == "1"}
    where = re.sub(r"Measured on [\d-]+: ", "", part.splitlines()[0]).rstrip(".")
    lines = [
        f"Compiled networks against ONNX Runtime, one row. {where}:",
        "",
        "| network | compiled | float32 | its int8, which is not exact |",
        "| --- | --- | --- | --- |",
    ]
    for network, words in _NETWORKS.items():
        floats, integers = found[network, "float32"], found[network, "int8"]
        lines.append(f"| {words} | {floats[4]} | {floats[5]} | {integers[5]} |")
    return "\n".join(lines)
