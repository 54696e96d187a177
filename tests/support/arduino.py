# SPDX-License-Identifier: Apache-2.0
"""Sketches for Arduino compiled for an ATmega328P with a stub of the core, and run in simavr."""

import subprocess
from pathlib import Path

from c_targets import PLATFORMS, TARGETS, simavr_run

RAM = 2048

# `loop` runs as often as `delay` allows; `Serial` prints to the emulator.
STUB = """
#include <stdint.h>
#include <stdio.h>

extern "C" void platform_put(char character);

struct Printer {
  void begin(long) {}
  void println(int number) {
    char text[8];
    snprintf(text, sizeof text, "%d\\n", number);
    for (char* at = text; *at; at++) platform_put(*at);
  }
};
static Printer Serial;
void delay(unsigned long);
"""
CORE = """
extern "C" void platform_exit(void);
void setup();
void loop();
static int calls;
void delay(unsigned long) { calls++; }
int main() {
  setup();
  while (calls < CALLS) loop();
  platform_exit();
}
"""


def run_sketch(sketch: Path, library: Path, folder: Path, calls: int) -> tuple[list[int], int]:
    """Compile a sketch with a library; run `loop` a number of times.

    Args:
        sketch: File of the sketch.
        library: Folder of its library; all its C files are compiled.
        folder: Folder with other headers of the sketch, for the program.
        calls: Number of calls of `loop`.

    Returns:
        The printed numbers and the bytes of static data in RAM.
    """
    (folder / "Arduino.h").write_text(STUB, "utf-8")
    (folder / "core.cpp").write_text(CORE, "utf-8")
    compiler = [*TARGETS["atmega"].compiler, "-Os", "-DARDUINO=10819", f"-DCALLS={calls}"]
    compiler += ["-I", str(folder), "-I", str(library), "-I", str(PLATFORMS)]
    cpp = ["-x", "c++", "-std=gnu++11", "-include", "Arduino.h"]
    objects = []
    sources = [*library.glob("*.c"), PLATFORMS / "atmega.c", folder / "core.cpp", sketch]
    for source in sources:
        objects.append(str(folder / f"{source.stem}_{source.suffix[1:]}.o"))
        language = [] if source.suffix == ".c" else cpp
        subprocess.run([*compiler, *language, "-c", str(source), "-o", objects[-1]], check=True)
    program = str(folder / "sketch.elf")
    subprocess.run([*compiler, *objects, "-o", program], check=True)
    sizes = subprocess.check_output([TARGETS["atmega"].size, program], text=True).split("\n")[1]
    _, data, bss, *_ = map(int, sizes.split()[:3])
    printed = subprocess.check_output([simavr_run(), program], text=True).splitlines()
    return [int(line) for line in printed if line.isdigit()], data + bss
