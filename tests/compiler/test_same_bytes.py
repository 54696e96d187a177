# SPDX-License-Identifier: Apache-2.0
"""The table of docs/same_bytes.md: its digests are those of the networks, in every place."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import same_bytes


def test_same_bytes_page_has_digests_of_networks(tmp_path: Path) -> None:
    """Run two of the places; CI runs all."""
    same_bytes.write_networks(tmp_path)
    digests = same_bytes.compute_digests(same_bytes.evaluate, tmp_path)
    assert same_bytes.compute_digests(same_bytes.run_program, tmp_path) == digests
    expected = {name: digest[: same_bytes.DIGITS] for name, digest in digests.items()}
    assert same_bytes.read_page() == expected


def test_same_bytes_page_lists_all_places() -> None:
    tables = same_bytes.show_tables(same_bytes.read_page(), list(same_bytes.list_places(())))
    assert tables in same_bytes.PAGE.read_text("utf-8")


def test_same_bytes_reports_places_that_differ(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def change_last_bit(path: Path, x: np.ndarray) -> bytes:
        outputs = same_bytes.evaluate(path, x)
        return outputs[:-1] + bytes([outputs[-1] ^ 1])

    def lack(path: Path, x: np.ndarray) -> bytes:
        raise same_bytes.MissingError(f"no place for {path.name} of {len(x)} rows")

    runs = {same_bytes.REFERENCE: same_bytes.evaluate, "changed": change_last_bit, "absent": lack}
    places = {name: partial(same_bytes.compute_digests, run) for name, run in runs.items()}
    monkeypatch.setattr(same_bytes, "list_places", lambda pythons: places)
    monkeypatch.setattr("sys.argv", ["same_bytes.py", "--all"])
    with pytest.raises(SystemExit) as exit_info:
        same_bytes.main()
    assert exit_info.value.code == 1
    printed = capsys.readouterr().out
    assert "DIFFERS   changed" in printed
    assert printed.endswith("differs or is missing:\n  changed\n  absent\n")
