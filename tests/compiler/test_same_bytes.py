# SPDX-License-Identifier: Apache-2.0
"""The table of docs/same_bytes.md: its digests are those of the networks, in every place."""

from pathlib import Path

import same_bytes


def test_same_bytes_page_has_digests_of_networks(tmp_path: Path) -> None:
    """Run two of the places; CI runs all."""
    same_bytes.write_networks(tmp_path)
    digests = same_bytes.compute_digests(same_bytes.evaluate, tmp_path)
    assert same_bytes.compute_digests(same_bytes.run_program, tmp_path) == digests
    expected = {name: digest[: same_bytes.DIGITS] for name, digest in digests.items()}
    assert same_bytes.read_page() == expected


def test_same_bytes_page_lists_all_places() -> None:
    text = same_bytes.PAGE.read_text("utf-8")
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == list(same_bytes.list_places(()))
    assert len({tuple(row[1:]) for row in rows[2:]}) == 1
