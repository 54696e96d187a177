# SPDX-License-Identifier: Apache-2.0
"""Templates of C code."""

from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from anybit.compiler.backends.c.expressions import FILTERS, FUNCTIONS

if TYPE_CHECKING:
    from jinja2 import Environment


def render(name: str, /, **values: Any) -> str:
    """Return the text of a template."""
    return _environment().get_template(name).render(**values).strip("\n")


def read_version() -> str:
    """Return the version of this package."""
    return version("anybit")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(
            lambda name: (files(__package__) / "templates" / name).read_text("utf-8")
        ),
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        optimized=False,
    )
    environment.filters.update(FILTERS)
    environment.globals.update(FUNCTIONS)
    return environment
