# SPDX-License-Identifier: Apache-2.0
"""The harness that runs C on hosts and emulated microcontrollers."""

import numpy as np
import pytest
from c_targets import TARGETS, Call, RunResult, run_c

OUTPUTS, INPUTS = 5, 48
RANDOM = np.random.default_rng(0)
WEIGHTS = RANDOM.integers(-128, 128, (OUTPUTS, INPUTS), np.int8)
X = RANDOM.integers(-128, 128, (3, INPUTS), np.int8)
DENSE = Call("dense.h", "dense_run", "int8_t", INPUTS, "int32_t", OUTPUTS, INPUTS)
FILES = {
    "dense.h": """#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
int dense_run(const int8_t *in, int32_t *out, void *arena);
#ifdef __cplusplus
}
#endif
""",
    "dense.c": f"""#include "dense.h"
static const int8_t weights[{OUTPUTS}][{INPUTS}] = {{
{",".join("{" + ",".join(map(str, row)) + "}" for row in WEIGHTS.tolist())}}};
int dense_run(const int8_t *in, int32_t *out, void *arena) {{
    int8_t *copy = (int8_t *)arena;
    for (int i = 0; i < {INPUTS}; i++) {{
        copy[i] = in[i];
    }}
    for (int o = 0; o < {OUTPUTS}; o++) {{
        int32_t sum = 0;
        for (int i = 0; i < {INPUTS}; i++) {{
            sum += (int32_t)copy[i] * weights[o][i];
        }}
        out[o] = sum;
    }}
    return 0;
}}
""",
}
LOOP = """#include "loop.h"
int loop_run(const uint8_t *in, uint8_t *out, void *arena) {
    unsigned count = (unsigned)in[0] * 1000u;
    (void)arena;
    while (count) {
        __asm__ volatile("" : "+r"(count));
        count--;
    }
    out[0] = in[0];
    return 0;
}
"""


def run_on(name: str, files: dict[str, str], call: Call, x: np.ndarray, *flags: str) -> RunResult:
    if reason := TARGETS[name].missing:
        pytest.skip(reason)
    return run_c(files, call, x.tobytes(), TARGETS[name], flags or ("-O2",))


@pytest.mark.parametrize("name", TARGETS)
def test_dense_layer_has_same_bytes_on_every_target(name: str) -> None:
    result = run_on(name, FILES, DENSE, X)
    expected = X.astype(np.int32) @ WEIGHTS.astype(np.int32).T
    np.testing.assert_array_equal(np.frombuffer(result.outputs, np.int32).reshape(3, -1), expected)
    if TARGETS[name].has_stack:
        assert WEIGHTS.nbytes < result.flash < WEIGHTS.nbytes + 1500
        assert result.ram == (WEIGHTS.nbytes if name == "atmega" else 0)
        multiplications = len(X) * WEIGHTS.size
        assert 0.9 * multiplications < result.count < 90 * multiplications
        assert 8 <= result.stack < 400


@pytest.mark.parametrize("name", [name for name in TARGETS if TARGETS[name].has_stack])
def test_count_grows_with_length_of_loop(name: str) -> None:
    """Run loops of 10 000 and 60 000 turns: 2 or 3 instructions a turn, 4 cycles on AVR."""
    files = {"loop.h": "#include <stdint.h>\n", "loop.c": LOOP}
    files["loop.h"] += "int loop_run(const uint8_t *in, uint8_t *out, void *arena);\n"
    call = Call("loop.h", "loop_run", "uint8_t", 1, "uint8_t", 1, 1)
    short, long = (run_on(name, files, call, np.array([n], np.uint8)).count for n in (10, 60))
    turns = (long - short) / 50_000
    assert turns == pytest.approx(round(turns), abs=0.002)
    assert 2 <= round(turns) <= 6


def test_errors_name_what_failed() -> None:
    if reason := TARGETS["sanitizers"].missing:
        pytest.skip(reason)
    wrong = {**FILES, "dense.c": FILES["dense.c"].replace(f"i < {INPUTS}", f"i <= {INPUTS}")}
    with pytest.raises(RuntimeError, match=r"overflow|out of bounds"):
        run_on("sanitizers", wrong, DENSE, X)
    with pytest.raises(RuntimeError, match="conversion"):
        run_on(
            "gcc",
            {**FILES, "dense.c": FILES["dense.c"].replace("int32_t sum", "int8_t sum")},
            DENSE,
            X,
        )
    failing = FILES["dense.c"].replace("return 0", "return 3")
    with pytest.raises(RuntimeError, match="status 3"):
        run_on("gcc", {**FILES, "dense.c": failing}, DENSE, X)
