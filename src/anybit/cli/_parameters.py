# SPDX-License-Identifier: Apache-2.0
"""Names of Python parameters in error messages, as options of the command line.

The library names parameters as Python writes them: `integer_only=True`, `weights='int4'`,
`layers['head']`, `target must be one of ...`. One rule turns these into options, so that no message
needs two forms.
"""

import re

_OPTIONS = {
    "layers": "layer",
    "states": "state",
    "runtime": "for",
    "input_ranges": "input-range",
    "runner": "with",
}
"""Options with another name than their parameter."""

_PARAMETERS = (
    *("weights", "activations", "layers", "keep", "outputs", "states", "scales", "integer_only"),
    *("target", "budget", "effort", "cache", "fail_below", "data", "labels", "metric", "engine"),
    *("to", "runtime", "runner", "guarantee", "io", "layout", "input_ranges"),
)
_WRITTEN = re.compile(
    rf"(?<![\w-])({'|'.join(_PARAMETERS)})"
    r"""(?:=True\b|=(?!\S)|(=)|\[('[^']*'|"[^"]*")\]|(?= must be one of ))"""
)


def name_options(message: str) -> str:
    """Return a message with options in place of Python parameters.

    >>> name_options("layers['head']: no layer matches; use integer_only=True")
    "--layer 'head': no layer matches; use --integer-only"
    """
    return _WRITTEN.sub(_name_option, message)


def _name_option(match: re.Match[str]) -> str:
    name, equals, key = match.groups()
    option = f"--{_OPTIONS.get(name, name).replace('_', '-')}"
    return f"{option} {key or ''}" if equals or key else option
