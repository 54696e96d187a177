# SPDX-License-Identifier: Apache-2.0
"""Files beside the C source: test, README, build files."""

import re
from dataclasses import asdict

from anybit.compiler.backends.c.self_test import emit_self_test
from anybit.compiler.backends.c.source import CSource
from anybit.compiler.backends.c.templates import read_version, render
from anybit.text import format_count

_BAR = 24
_MARKUP = re.compile(r"[^A-Za-z0-9_./: -]")


def list_files(name: str) -> tuple[str, ...]:
    """Return the names of the files of a network."""
    others = f"{name}_test.c", "README.md", "CMakeLists.txt", "library.properties"
    return f"{name}.c", f"{name}.h", *others


def emit_project(source: CSource, *, codes: bool, sha256: str, guarantees: str) -> dict[str, str]:
    """Return all files of a network, by their names.

    Args:
        source: The network.
        codes: Whether its inputs and outputs are codes.
        sha256: SHA-256 of the model's file; empty if unknown.
        guarantees: The number of layers per guarantee, as text.
    """
    name = source.name
    values = {
        "name": name,
        "NAME": name.upper(),
        "version": read_version(),
        "summary": f"{format_count(len(source.layers), 'layer')}, {source.macs} multiplications",
        "flash": source.constant_bytes,
        "ram": source.arena.size,
        "codes": codes,
        "sha256": sha256,
        "guarantees": guarantees,
        "call": _show_call(source),
        "rows": [
            asdict(layer) | {"name": _MARKUP.sub("_", layer.name), "bar": _draw(layer.ram, source)}
            for layer in source.layers
        ],
    }
    texts = [emit_self_test(source, codes=codes)]
    for template in ("README.md.j2", "CMakeLists.txt.j2", "library.properties.j2"):
        texts.append(render(template, **values))
    _, _, *names = list_files(name)
    return {**source.files, **{file: f"{text}\n" for file, text in zip(names, texts, strict=True)}}


def _draw(ram: int, source: CSource) -> str:
    filled = -(-ram * _BAR // max(source.arena.size, 1))
    return "#" * filled + "." * (_BAR - filled)


def _show_call(source: CSource) -> str:
    name, program = source.name, source.program
    if len(program.inputs) == len(program.outputs) == 1:
        return f"int status = {name}_run(in, out, arena);  /* types and sizes: {name}.h */"
    return f"int status = {name}_run(&in, &out, arena);  /* structs of pointers: {name}.h */"
