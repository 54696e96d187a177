# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can fix. Their messages are one line: where, what, and the remedy.

    AnybitError            any of these
      ModelError           a model that cannot be read, run or converted; also a ValueError
      DataError            arrays or files of data that do not fit; also a ValueError
      OptionError          an argument or option with an unsupported value; also a ValueError
      DependencyError      an optional package is missing; also an ImportError

The operators on arrays raise ValueError and TypeError, as NumPy does. A file that cannot be opened
raises OSError. On the command line all of these print `error: MESSAGE` and exit with status 2; any
other exception is a bug and shows a traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class AnybitError(Exception):
    """The base class of the errors that a user can fix."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ModelError(AnybitError, ValueError):
    """A model that cannot be read, run or converted."""


class DataError(AnybitError, ValueError):
    """Arrays, datasets or label files that cannot be read or do not fit the model."""


class OptionError(AnybitError, ValueError):
    """An argument of a function or an option of a command with an unsupported value."""


class DependencyError(AnybitError, ImportError):
    """An optional package that is missing, or the native library that cannot be loaded."""


@contextmanager
def prefix_errors(where: str) -> Iterator[None]:
    """Prefix the messages of errors with the place where they occurred; their class stays."""
    try:
        yield
    except AnybitError as error:
        raise type(error)(f"{where}{error}") from error
