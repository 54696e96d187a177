# SPDX-License-Identifier: Apache-2.0
"""Write the generated parts of the documentation, or check that they are up to date.

    python docs/generate.py            writes
    python docs/generate.py --check    lists what differs, and exits with 1 if anything does

Generated are the operators' pages and pictures, stub files for editors, and the text between
markers of the form `<!-- NAME:begin -->` and `<!-- NAME:end -->` in hand-written files.
"""

import difflib
import re
import sys
from pathlib import Path

from _conversions import draw_conversion
from _figures import operator_figure, rounding_figure
from _journey import journey_figure
from _names import api_page, names_tables
from _overview import overview_figure
from _pages import operator_page, operator_table, rounding_modes, rounding_table
from _speed import speed_table
from _stubs import stubs
from _support import support_table

from anybit.ops import OPERATORS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def generated() -> dict[Path, str]:
    """Return the text of every file that is generated or has generated parts."""
    files = {DOCS / "images" / "rounding_modes.svg": rounding_figure(), **stubs()}
    files[DOCS / "images" / "compile.svg"] = journey_figure()
    files[DOCS / "images" / "overview.svg"] = overview_figure()
    for operator in OPERATORS:
        files[DOCS / "operators" / f"{operator.name}.md"] = operator_page(operator)
        files[DOCS / "images" / f"{operator.name}.svg"] = operator_figure(operator)
    files[DOCS / "images" / "convert_qdq.svg"] = draw_conversion()
    files[ROOT / "README.md"] = filled(ROOT / "README.md", {"compiled": speed_table()})
    files[DOCS / "index.md"] = filled(
        DOCS / "index.md",
        {"operators": operator_table(), "commands": install_command()},
    )
    files[DOCS / "names.md"] = filled(DOCS / "names.md", names_tables())
    files[DOCS / "api" / "anybit.rst"] = api_page()
    files[DOCS / "convert.md"] = filled(DOCS / "convert.md", {"support": support_table()})
    files[DOCS / "rounding_modes.md"] = filled(
        DOCS / "rounding_modes.md", {"modes": rounding_modes(), "table": rounding_table()}
    )
    return files


def install_command() -> str:
    """Return the install command of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n.*?^```$", text, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "\npip install . && anybit run" in block)


def filled(path: Path, parts: dict[str, str]) -> str:
    """Return the text of a file with each part between its markers."""
    text = path.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{path} must have the markers {begin} and {end} once")
        pattern = f"{re.escape(begin)}.*{re.escape(end)}"
        text = re.sub(pattern, lambda _, new=f"{begin}\n{part}\n{end}": new, text, flags=re.DOTALL)
    return text


def differences() -> list[str]:
    """Return one line per outdated file: its name and the number of lines that differ."""
    report = []
    for path, expected in generated().items():
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present == expected:
            continue
        lines = difflib.unified_diff(present.splitlines(), expected.splitlines(), lineterm="", n=0)
        changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
        report.append(f"{path.relative_to(ROOT)}: {len(changed)} lines, first {changed[:2]}")
    return report


def main() -> None:
    if "--check" in sys.argv[1:]:
        stale = differences()
        if stale:
            print(*stale, "run python docs/generate.py", sep="\n")
        sys.exit(bool(stale))
    for path, text in generated().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
