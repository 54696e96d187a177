# SPDX-License-Identifier: Apache-2.0
"""The text of a kernel as a function of Triton's."""

import functools
import linecache
from hashlib import sha256
from typing import Any

_ADD = """\
def add(first, second):
    return first + second
"""
_DIVIDE = """\
def divide(first, second):
    return tl.div_rn(first, second)
"""


@functools.cache
def compiled(name: str, text: str, interpret: bool) -> Any:
    """The kernel of that text. Triton keeps what it makes of it on disk, under a hash of the text.

    `interpret` is what Triton reads from the environment: whether the kernel is for the CPU.
    Raises ImportError where Triton is missing.
    """
    try:
        import triton
        import triton.language as tl
    except ImportError as error:
        raise ImportError(
            'kernels for GPUs need Triton; install it with pip install "anybit[triton]"'
        ) from error
    known = {
        "tl": tl,
        "add": triton.jit(_function("add", _ADD, {"tl": tl})),
        "divide": triton.jit(_function("divide", _DIVIDE, {"tl": tl})),
    }
    return triton.jit(_function(name, text, known))


def _function(name: str, text: str, known: dict[str, Any]) -> Any:
    """What the text defines. Triton reads the text again, where tracebacks look for it."""
    file = f"<anybit {name} {sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"__name__": __name__, **known}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]
