# SPDX-License-Identifier: Apache-2.0
"""Speed of generated C code on this machine, relative to ONNX Runtime.

    python benchmarks/microcontrollers/hosts.py FOLDER [NAME ...] [--variants w8a8,w4a8]

FOLDER holds the files of networks.py. The contestants take turns on one thread and one row; the
shortest time of a call counts:

* generated C, compiled by `gcc -O3` and by `gcc -O3 -march=native`;
* ONNX Runtime with IO binding, float32: NAME_float.onnx; and int8: the same, quantized by
  `quantize_static` to QDQ with uint8 activations and scales per channel. NAME_w8a8.onnx as QDQ
  would be slower: it has clips that ONNX Runtime computes in floats.

Outputs of C are compared with those of the compiled model, to the byte. Ratios above 1 say that C
is faster. This needs gcc and ONNX Runtime.
"""

import ctypes
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

import anybit
from anybit.compiler.backends.c.source import emit_c

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _calibration_rows import CalibrationRows
from _measure import Call, arguments, best_times, machine, show, versions
from _sessions import bound_run

COMPILERS = {"-O3": ("-O3",), "-O3 native": ("-O3", "-march=native")}
PEERS = ("int8", "float32")
COLUMNS = (
    *("network", *(f"C {name}" for name in COMPILERS), *PEERS),
    *(f"{name} over {peer}" for name in COMPILERS for peer in PEERS),
    "equal",
)


class HostCode:
    """Generated C code as a library of this machine.

    Attributes:
        x: Inputs of a call.
        y: Outputs of the last call.
    """

    def __init__(self, source: dict[str, str], options: tuple[str, ...], x: np.ndarray, y: int):
        self.x, self.y = np.ascontiguousarray(x), np.zeros(y, np.float32)
        with TemporaryDirectory() as name:
            folder = Path(name)
            for file, text in source.items():
                (folder / file).write_text(text, encoding="utf-8")
            # The header has the size of the arena.
            size = '\n#include "net.c"\nunsigned long size(void) { return NET_ARENA_SIZE; }\n'
            (folder / "library.c").write_text(size, encoding="utf-8")
            command = ["gcc", "-std=c99", "-shared", "-fPIC", *options, "library.c"]
            subprocess.run([*command, "-o", "net.so"], cwd=folder, check=True)
            library = ctypes.CDLL(str(folder / "net.so"))
        library.size.restype = ctypes.c_ulong
        self._arena = np.zeros(library.size() // 4 + 1, np.int32)
        self._run = library.net_run
        buffers = (self.x, self.y, self._arena)
        self._pointers = [ctypes.c_void_p(buffer.ctypes.data) for buffer in buffers]

    def run(self) -> None:
        """Compute the outputs of the inputs."""
        if self._run(*self._pointers):
            raise ValueError("the code refuses its input")


def make_peers(path: Path, x: np.ndarray) -> dict[str, Call]:
    """Return a run of each form of ONNX Runtime for a float network."""
    with TemporaryDirectory() as folder:
        quantized = Path(folder) / "int8.onnx"
        options = {"quant_format": QuantFormat.QDQ, "activation_type": QuantType.QUInt8}
        quantize_static(path, quantized, CalibrationRows(x), per_channel=True, **options)
        models = {"int8": onnx.load(quantized), "float32": onnx.load(path)}
    return {name: bound_run(model, x[:1]) for name, model in models.items()}


def measure(folder: Path, name: str, variant: str, rounds: int) -> tuple[str, ...]:
    """Return the row of a network: microseconds of all contestants, and ratios."""
    path = folder / f"{name}_{variant}.onnx"
    rows = np.load(folder / f"{name}.npz")["x"]
    x = rows[:1]
    compiled = anybit.compile(path)
    (expected,) = compiled.run(x).values()
    (program,) = compiled.report.programs
    files = dict(emit_c(program, "net").files)
    codes = {
        compiler: HostCode(files, options, x, expected.size)
        for compiler, options in COMPILERS.items()
    }
    calls: dict[str, Call] = {compiler: code.run for compiler, code in codes.items()}
    times = best_times({**calls, **make_peers(folder / f"{name}_float.onnx", rows)}, rounds, 0.05)
    equal = all(code.y.tobytes() == expected.tobytes() for code in codes.values())
    return (
        *(f"{name} {variant}", *(f"{times[key] * 1e6:.1f} us" for key in (*codes, *PEERS))),
        *(f"{times[peer] / times[compiler]:.2f}" for compiler in codes for peer in PEERS),
        "yes" if equal else "no",
    )


def main() -> None:
    """Print a table."""
    parser = arguments(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="networks (default: all in FOLDER)")
    parser.add_argument("--variants", default="w8a8", help="comma-separated (default: %(default)s)")
    options = parser.parse_args()
    present = sorted(path.stem for path in options.folder.glob("*.npz"))
    rows = [
        measure(options.folder, name, variant, options.rounds)
        for name in options.names or present
        for variant in options.variants.split(",")
    ]
    packages = versions("onnxruntime", "numpy")
    show(f"{machine()}; {packages}", COLUMNS, rows, options.markdown)


if __name__ == "__main__":
    main()
