# SPDX-License-Identifier: Apache-2.0
"""Text direction: upright and upside-down words, drawn with the system's fonts."""

from pathlib import Path

import numpy as np
from _tasks import Array, Task, accuracy, batches, package_folder
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FONTS = Path("/usr/share/fonts/truetype")
_HEIGHT, _WIDTH = 48, 192
_CALIBRATION, _EVALUATION = 200, 600
_NOISE = 10.0


def task() -> Task:
    """Draw the words of both splits."""
    fonts = sorted([*FONTS.glob("dejavu/*.ttf"), *FONTS.glob("liberation*/*.ttf")])
    if not fonts:
        raise SystemExit("no DejaVu or Liberation fonts: apt-get install fonts-dejavu")
    random = np.random.default_rng(0)
    words = [_draw_word(random, fonts) for _ in range(_CALIBRATION + _EVALUATION)]
    x = np.stack([image for image, _ in words])
    y = np.array([label for _, label in words])
    folder = package_folder("rapidocr_onnxruntime") / "models"
    return Task(
        "direction",
        folder / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        batches({"x": x[:_CALIBRATION]}, 20),
        batches({"x": x[_CALIBRATION:]}, 20),
        accuracy(y[_CALIBRATION:]),
    )


def _draw_word(random: np.random.Generator, fonts: list[Path]) -> tuple[Array, int]:
    """Return a normalized image of a random word, and 1 if it is upside down."""
    letters = random.integers(0, 26, random.integers(3, 11))
    word = "".join(chr(ord("a") + letter) for letter in letters)
    word = word if random.random() < 0.6 else word.upper()
    font = ImageFont.truetype(str(fonts[random.integers(len(fonts))]), int(random.integers(12, 33)))
    box = font.getbbox(word)
    size = int(box[2] - box[0]) + 8, int(box[3] - box[1]) + 8
    dark, light = sorted(random.integers(0, 256, 2).tolist())
    image = Image.new("RGB", size, (int(light),) * 3)
    ImageDraw.Draw(image).text((4 - box[0], 4 - box[1]), word, font=font, fill=(int(dark),) * 3)
    label = int(random.random() < 0.5)
    image = image.rotate(180) if label else image
    image = image.filter(ImageFilter.GaussianBlur(float(random.uniform(0, 1.5))))
    width = min(_WIDTH, max(1, round(image.width * _HEIGHT / image.height)))
    pixels = np.asarray(image.resize((width, _HEIGHT)), np.float32)
    pixels = np.clip(pixels + random.normal(0, _NOISE, pixels.shape), 0, 255)
    x = np.zeros((3, _HEIGHT, _WIDTH), np.float32)
    x[:, :, :width] = (pixels.transpose(2, 0, 1) / 255 - 0.5) / 0.5
    return x, label
