# SPDX-License-Identifier: Apache-2.0
"""Instructions and sizes of generated C code, for networks of networks.py.

    python benchmarks/microcontrollers/peers.py FOLDER [NAME ...] [--target cortex_m4]

FOLDER holds the files of networks.py. The same emulators, compilers and options run all code:

* anybit, from NAME_VARIANT.onnx;
* emx-onnx-cgen, from NAME_w8a8.onnx as QDQ, and from NAME_float.onnx;
* bakenn, portable C, from the PyTorch module, with int8 inputs and outputs.

This needs PyTorch, the generators (`pip install emx-onnx-cgen bakenn`) and the packages that
tests/support/c_targets.py names. A generator that is not installed is left out.
"""

import argparse
import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from _architectures import NETWORKS
from _data import make_data
from rich.console import Console
from rich.table import Table

import anybit
from anybit.compiler.backends.c.source import emit_c

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from c_targets import TARGETS, Call, run_c

Code = tuple[dict[str, str], Call, bytes]
ROWS = 1
BAKENN_ROWS = 4  # it calibrates by loops in Python


def anybit_source(path: Path, x: np.ndarray, outputs: int) -> Code:
    """Return our code for a quantized ONNX file."""
    (program,) = anybit.compile(path).report.programs
    files = dict(emit_c(program, "net").files)
    signature = ("float", x[0].size, "float", outputs, "NET_ARENA_SIZE")
    return files, Call("net.h", "net_run", *signature), x.tobytes()


def emx(path: Path, x: np.ndarray, outputs: int) -> Code:
    """Return the code of emx-onnx-cgen for an ONNX file, with a function of our signature."""
    with TemporaryDirectory() as name:
        file = Path(name) / "net.c"
        limits = ["--large-weight-threshold", "0", "--large-temp-threshold", "0"]
        command = [sys.executable, "-m", "emx_onnx_cgen", "compile", str(path), str(file), *limits]
        subprocess.run([*command, "--model-name", "net"], check=True, capture_output=True)
        text = file.read_text(encoding="utf-8")
    sizes = "".join(f"[{size}]" for size in (1, *x.shape[1:]))
    header = "int net_run(const float *in, float *out, void *arena);\n"
    call = f"""#include "net.h"
void net(const float in{sizes}, float out[1][{outputs}]);
int net_run(const float *in, float *out, void *arena) {{
    (void)arena;
    net((const float (*){sizes[3:]})in, (float (*)[{outputs}])out);
    return 0;
}}
"""
    files = {"net.c": text, "call.c": call, "net.h": header}
    return files, Call("net.h", "net_run", "float", x[0].size, "float", outputs, 1), x.tobytes()


def bakenn(name: str, folder: Path, x: np.ndarray, outputs: int) -> Code:
    """Return the code of bakenn for a PyTorch module, with a function of our signature."""
    from bakenn import compile_torch_ptq, quantize_input

    network = NETWORKS[name]
    module = network.create()
    module.load_state_dict(torch.load(folder / f"{name}.pt"))
    rows = make_data(network, BAKENN_ROWS, 1)[0]
    with TemporaryDirectory() as created:
        compiled = compile_torch_ptq(
            module.eval(), rows[:1], [row[None] for row in rows], created, name=name
        )
        files = {path.name: path.read_text("utf-8") for path in Path(created).glob("*.[ch]")}
    channels_last = np.moveaxis(x, 1, -1) if x.ndim > 2 else x
    codes = np.concatenate([quantize_input(compiled.plan, row[None]) for row in channels_last])
    upper = f"BKNN_{name.upper()}"
    files["net.h"] = f"""#include "bknn_{name}.h"
int net_run(const int8_t *in, int8_t *out, void *arena);
"""
    files["call.c"] = f"""#include "net.h"
int net_run(const int8_t *in, int8_t *out, void *arena) {{
    bknn_{name}_infer({upper}_ARENA_SIZE ? (uint8_t *)arena : 0, in, out);
    return 0;
}}
"""
    arena = f"{upper}_ARENA_SIZE + 16u"
    call = Call("net.h", "net_run", "int8_t", x[0].size, "int8_t", outputs, arena)
    return files, call, codes.astype(np.int8).tobytes()


def codes_of(name: str, folder: Path) -> dict[str, Callable[[], Code]]:
    """Return functions that generate the code of a network, by generator."""
    x = np.load(folder / f"{name}.npz")["x"][:ROWS]
    outputs = NETWORKS[name].classes or x.shape[1]

    def emx_quantized() -> Code:
        with TemporaryDirectory() as converted:
            path = Path(converted) / "qdq.onnx"
            anybit.convert(folder / f"{name}_w8a8.onnx", to="qdq").save(path)
            return emx(path, x, outputs)

    codes: dict[str, Callable[[], Code]] = {}
    for path in sorted(folder.glob(f"{name}_w*.onnx")):
        variant = path.stem.removeprefix(f"{name}_")
        codes[f"anybit, {variant}"] = partial(anybit_source, path, x, outputs)
    if importlib.util.find_spec("emx_onnx_cgen"):
        codes["emx-onnx-cgen, QDQ"] = emx_quantized
        codes["emx-onnx-cgen, float32"] = lambda: emx(folder / f"{name}_float.onnx", x, outputs)
    if importlib.util.find_spec("bakenn"):
        codes["bakenn, int8"] = lambda: bakenn(name, folder, x, outputs)
    return codes


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=", ".join(NETWORKS))
    parser.add_argument("--target", default="cortex_m4", choices=TARGETS)
    parser.add_argument("--optimization", default="-O2")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    table = Table(title=f"{options.target}, {options.optimization}")
    for column in ("network", "generator", "instructions", "flash", "static RAM", "stack"):
        table.add_column(column, justify="left" if column in ("network", "generator") else "right")
    target = TARGETS[options.target]
    for name in options.names or NETWORKS:
        for generator, generate in codes_of(name, options.folder).items():
            files, call, rows = generate()
            try:
                done = run_c(files, call, rows, target, [options.optimization], warnings=())
            except RuntimeError as error:  # such as a stack that exceeds the memory
                table.add_row(name, generator, str(error).splitlines()[-1])
                continue
            numbers = (done.count // ROWS, done.flash, done.ram, done.stack)
            table.add_row(name, generator, *(f"{number:_}" for number in numbers))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
