# SPDX-License-Identifier: Apache-2.0
"""Pages that need nothing else, for light and dark mode."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

_LIGHT = """
--paper:#ffffff;--ink:#1f2328;--faint:#59636e;--line:#d1d9e0;--bar:#0969da;--mark:#fff1e5;
--level0:#f0f2f5;--level1:#cfe3fb;--level2:#9cc7f5;--level3:#5aa0e8;--level4:#1f6fc4;--level5:#0a3d7a
"""
_DARK = """
--paper:#0d1117;--ink:#e6edf3;--faint:#9198a1;--line:#3d444d;--bar:#58a6ff;--mark:#3d2a17;
--level0:#1b2028;--level1:#12365c;--level2:#1a5490;--level3:#2f7fd0;--level4:#70b2f5;--level5:#d5eaff
"""
_STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}
body{{background:var(--paper);color:var(--ink);max-width:72rem;margin:2rem auto;padding:0 1rem;
overflow-wrap:anywhere;font:15px/1.5 system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}}
h1{{font-size:1.5rem}}h2{{font-size:1.15rem;margin-top:2rem}}
dl{{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}}dt{{color:var(--faint)}}
dd{{margin:0}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse}}
th,td{{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:break-word;max-width:18rem}}
th{{color:var(--faint);font-weight:600;white-space:nowrap}}
.number{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
svg{{display:block;width:100%;max-width:45rem;height:auto;margin:1rem 0}}
svg text{{font-size:12px;fill:var(--faint)}}.option{{white-space:nowrap}}
.bar{{fill:var(--bar)}}.axis{{stroke:var(--faint);fill:none}}
"""

_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]{0,24}(?![\w-])")


def worded(text: str) -> str:
    """Text, escaped, with options of commands whole: narrow screens break lines behind hyphens."""
    return _OPTION.sub(r'<span class="option">\g<0></span>', escape(text))


def document(title: str, body: Iterable[str], style: str = "", script: str = "") -> str:
    """A page of these parts, of which empty ones are left out. The title is escaped.

    No script runs in it but the one that is given.
    """
    allowed = f"script-src 'sha256-{_digest(script)}'; " if script else ""
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"{allowed}style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>"
    )
    end = [f"<script>{script}</script>"] if script else []
    return "\n".join([head, "<body>", *filter(None, body), *end, "</body>", "</html>", ""])


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def scrolled(inside: str, label: str) -> str:
    """What may be wider than the page: it scrolls, by keys as well."""
    start = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'
    return f"{start}{inside}</div>"


def table(
    rows: Sequence[Mapping[str, str]],
    numbers: Iterable[str],
    classes: Sequence[str] = (),
    anchors: str = "",
) -> str:
    """Rows by heading, all escaped; those of `numbers` stand at the right. There is one at least.

    `classes` are those of the rows, if they have any; `anchors` begin the names of theirs.
    """
    right = set(numbers)
    headings = [(name, ' class="number"' if name in right else "") for name in rows[0]]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in headings)
    lines = [f"<tr>{head}</tr>"]
    for index, row in enumerate(rows):
        cells = "".join(f"<td{kind}>{escape(row[name])}</td>" for name, kind in headings)
        kind = f' class="{classes[index]}"' if classes else ""
        kind += f' id="{anchors}{index}"' if anchors else ""
        lines.append(f"<tr{kind}>{cells}</tr>")
    inside = "\n".join(lines)
    return scrolled(f"<table>\n{inside}\n</table>", "table")
