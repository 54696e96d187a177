# SPDX-License-Identifier: Apache-2.0
"""File types: files of this system, labelled by their suffix."""

import json
from pathlib import Path

import numpy as np
from _tasks import Array, Task, accuracy, batches, package_folder

_FOLDERS = ("/usr", "/etc", "/opt")
_SUFFIXES = {
    "c": "c", "cpp": "cpp", "css": "css", "csv": "csv", "diff": "diff", "gif": "gif", "gz": "gzip",
    "h": "c", "html": "html", "ini": "ini", "jar": "jar", "java": "java", "js": "javascript",
    "json": "json", "lua": "lua", "m4": "m4", "md": "markdown", "npy": "npy", "npz": "npz",
    "pdf": "pdf", "php": "php", "pl": "perl", "png": "png", "pm": "perl", "py": "python",
    "pyc": "pythonbytecode", "rs": "rust", "rst": "rst", "sh": "shell", "so": "elf", "sql": "sql",
    "svg": "svg", "tcl": "tcl", "toml": "toml", "ttf": "ttf", "txt": "txt", "wav": "wav",
    "xml": "xml", "xz": "xz", "yaml": "yaml", "yml": "yaml", "zip": "zip",
}  # fmt: skip
_TYPES, _FILES_PER_TYPE, _CALIBRATION = 30, 60, 300


def task() -> Task:
    """Collect files of the most frequent types for both splits."""
    models = package_folder("magika") / "models" / "standard_v3_3"
    config = json.loads((models / "config.min.json").read_text())
    labels = config["target_labels_space"]
    by_type: dict[str, list[Path]] = {}
    for folder in _FOLDERS:
        for path in sorted(Path(folder).rglob("*.*")):
            label = _SUFFIXES.get(path.suffix[1:])
            if label in labels and path.is_file() and not path.is_symlink():
                by_type.setdefault(label, []).append(path)
    random = np.random.default_rng(0)
    frequent = sorted(by_type, key=lambda label: (-len(by_type[label]), label))[:_TYPES]
    rows, targets = [], []
    for label in sorted(frequent):
        paths = by_type[label]
        for index in random.permutation(len(paths))[:_FILES_PER_TYPE]:
            rows.append(_features(paths[index].read_bytes(), config))
            targets.append(labels.index(label))
    order = random.permutation(len(rows))
    x, y = np.stack(rows)[order], np.array(targets)[order]
    return Task(
        "magika",
        models / "model.onnx",
        batches({"bytes": x[:_CALIBRATION]}, 20),
        batches({"bytes": x[_CALIBRATION:]}, 20),
        accuracy(y[_CALIBRATION:]),
    )


def _features(content: bytes, config: dict[str, int]) -> Array:
    """Return the first and the last bytes without surrounding whitespace, padded."""
    block, padding = config["block_size"], config["padding_token"]
    first, last = content[:block].lstrip(), content[-block:].rstrip()
    x = np.full(config["beg_size"] + config["end_size"], padding, np.int32)
    begin = np.frombuffer(first[: config["beg_size"]], np.uint8)
    end = np.frombuffer(last[-config["end_size"] :], np.uint8)
    x[: len(begin)] = begin
    x[len(x) - len(end) :] = end
    return x
