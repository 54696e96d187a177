# SPDX-License-Identifier: Apache-2.0
"""Formatting of names, numbers, sizes and shapes for messages, tables and pages."""

from collections.abc import Iterable


def escape_name(name: str) -> str:
    """Return a name with unprintable characters escaped: terminals would obey some of them."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def shorten_name(name: str, longest: int = 60) -> str:
    """Return a name to show; of a long name both ends, since layers may differ in either."""
    if len(name) <= longest and len(escape_name(name)) <= longest:
        return escape_name(name)
    end = (longest - len("...")) // 2
    return f"{escape_name(name[:end])[:end]}...{escape_name(name[-end:])[-end:]}"


def describe_os_error(error: OSError) -> str:
    """Return the error of the system for a file, with its name, in one line."""
    words = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
    return f"{error.filename}: {words}" if error.filename else str(words or error)


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun: "1 node", "2 nodes"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def join_names(names: Iterable[str], most: int = 8) -> str:
    """Return names joined by commas, and the number of those after the first `most`."""
    names = list(names)
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def format_amount(count: int | None) -> str:
    """Return a number in three digits with a unit of thousands: "59.5 M"; "?" for None."""
    if count is None:
        return "?"
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def format_bytes(count: int) -> str:
    """Return a number of bytes in the largest unit that fits: "4.5 MiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def format_percent(share: float) -> str:
    """Return a share in per cent, never rounded to 0 or 100."""
    value = 100 * share
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.3g} %"


def format_duration(seconds: float) -> str:
    """Return a time in three digits: "1.23 s", "45.6 ms", "0.789 us"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def format_shape(shape: Iterable[int | str | None] | None) -> str:
    """Return a shape with its names: "[1, 3, height, ?]"; "[...]" without a rank."""
    if shape is None:
        return "[...]"
    return f"[{', '.join('?' if size in (None, '') else str(size) for size in shape)}]"


def format_tensor_type(dtype: object, shape: Iterable[int | str | None] | None) -> str:
    """Return a type and a shape: "float32[1, 3, height, ?]"."""
    return f"{dtype}{format_shape(shape)}"
