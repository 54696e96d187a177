# SPDX-License-Identifier: Apache-2.0
"""Further tasks without labels: speech, pitch, text detection and digits, on generated inputs."""

from pathlib import Path

import numpy as np
from _direction import task as make_direction
from _tasks import Array, Feeds, Task, batches, package_folder

_EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def no_score(outputs: Array) -> float:
    """Return NaN: the task has no labels."""
    return float("nan")


def make_tone(random: np.random.Generator, samples: int) -> Array:
    """Return a vibrating tone with harmonics, an envelope and noise, at 16 kHz."""
    time = np.arange(samples) / 16000
    pitch = random.uniform(70, 400) * (1 + 0.03 * np.sin(2 * np.pi * random.uniform(3, 7) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / 16000
    amplitudes = random.uniform(0, 1, 8) / np.arange(1, 9)
    tone = sum(a * np.sin(k * phase) for k, a in enumerate(amplitudes, 1))
    envelope = np.clip(np.sin(2 * np.pi * random.uniform(0.5, 3) * time) + 0.5, 0, 1)
    noise = random.normal(0, random.uniform(0.001, 0.1), samples)
    return (random.uniform(0.05, 0.5) * tone * envelope + noise).astype(np.float32)


def make_speech() -> Task:
    """Make voice activity detection (Silero, MIT) with a carried state of zeros."""
    random = np.random.default_rng(1)
    feeds: list[Feeds] = [
        {
            "input": make_tone(random, 576)[None],
            "state": np.zeros((2, 1, 128), np.float32),
            "sr": np.array(16000, np.int64),
        }
        for _ in range(300)
    ]
    model = package_folder("silero_vad") / "data" / "silero_vad_16k_op15.onnx"
    return Task("speech", model, feeds[:150], feeds[150:], no_score)


def make_pitch() -> Task:
    """Make pitch estimation (SwiftF0, MIT)."""
    random = np.random.default_rng(2)
    feeds: list[Feeds] = [{"audio": make_tone(random, 8000)[None]} for _ in range(96)]
    model = package_folder("swift_f0") / "model.onnx"
    return Task("pitch", model, feeds[:48], feeds[48:], no_score)


def make_detector() -> Task:
    """Make text detection (PP-OCRv4, Apache-2.0): pages of six drawn words."""
    words = make_direction()
    images = np.concatenate([batch["x"] for batch in words.calibration + words.evaluation])
    pages = images[: len(images) // 6 * 6].reshape(-1, 2, 3, 3, 48, 192)
    pages = pages.transpose(0, 3, 2, 4, 1, 5).reshape(len(pages), 3, 144, 384)
    pages = np.pad(pages, ((0, 0), (0, 0), (0, 16), (0, 0)))
    model = package_folder("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_det_infer.onnx"
    return Task(
        "detector", model, batches({"x": pages[:48]}, 4), batches({"x": pages[48:96]}, 4), no_score
    )


def make_digits() -> Task:
    """Make the digits of scikit-learn, the example of this repository."""
    x = np.load(_EXAMPLES / "digits.npz")["x"]
    model = _EXAMPLES / "digits_float.onnx"
    return Task("digits", model, [{"x": x[:128]}], [{"x": x[128:]}], no_score)
