# SPDX-License-Identifier: Apache-2.0
"""Transformers of PyTorch with random weights, as exported to ONNX.

`TRANSFORMERS` maps names to functions that return a module, its example inputs by name, and the
axes of these whose sizes are dynamic.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

Cache = tuple[Tensor, Tensor]
GPT_LAYERS, GPT_WIDTH, GPT_HEADS, GPT_TOKENS = 4, 256, 8, 1000


class Attention(nn.Module):
    """Attention with heads, written with products, and with a cache if one is given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.last = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache]:
        rows, tokens, width = x.shape
        query, key, value = (
            layer(x).reshape(rows, tokens, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        if past is not None:
            key, value = (torch.cat(pair, 2) for pair in zip(past, (key, value), strict=True))
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        if past is not None:
            place = torch.arange(key.shape[2])
            seen = place[None] <= place[key.shape[2] - tokens :, None]
            scores = scores.masked_fill(~seen, -1e9)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, tokens, width)
        return self.last(mixed), (key, value)


class Block(nn.Module):
    """Attention and two layers, each after a layer normalization and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, past: Cache | None = None) -> tuple[Tensor, Cache]:
        y, cache = self.attention(self.norms[0](x), past)
        x = x + y
        return x + self.layers(self.norms[1](x)), cache


class VitTiny(nn.Module):
    """ViT-tiny: 12 blocks of 192 channels on 196 patches and a class token."""

    def __init__(self, width: int = 192, heads: int = 3, depth: int = 12) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x, _ = block(x)
        scores: Tensor = self.last(self.norm(x)[:, 0])
        return scores


class Gpt(nn.Module):
    """GPT of 4 blocks with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(GPT_TOKENS, GPT_WIDTH),
            nn.Embedding(512, GPT_WIDTH),
        )
        self.blocks = nn.ModuleList(Block(GPT_WIDTH, GPT_HEADS) for _ in range(GPT_LAYERS))
        self.norm, self.last = nn.LayerNorm(GPT_WIDTH), nn.Linear(GPT_WIDTH, GPT_TOKENS)

    def forward(self, ids: Tensor, places: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        x, caches = self.tokens(ids) + self.positions(places), list[Tensor]()
        for number, block in enumerate(self.blocks):
            x, cache = block(x, (past[2 * number], past[2 * number + 1]))
            caches += cache
        return self.last(self.norm(x)), *caches


class Conformer(nn.Module):
    """Conformer block: half layers, attention, a gated depthwise convolution, half layers."""

    def __init__(self, width: int = 144, heads: int = 4, kernel: int = 31) -> None:
        super().__init__()
        self.halves = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(),
                nn.Linear(4 * width, width),
            )
            for _ in range(2)
        )  # fmt: skip
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.attention = Attention(width, heads)
        self.gate, self.mix = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.halves[0](x)
        x = x + self.attention(self.norms[0](x))[0]
        y = functional.glu(self.gate(self.norms[1](x)), -1).transpose(1, 2)
        x = x + self.mix(functional.silu(self.conv(y)).transpose(1, 2))
        x = x + 0.5 * self.halves[1](x)
        y: Tensor = self.norms[2](x)
        return y


@dataclass(frozen=True)
class Transformer:
    """A module, the inputs that it is exported with, and dynamic axes of these.

    Attributes:
        module: The module.
        inputs: Its inputs by name.
        dynamic: Names of dynamic axes by input.
        sizes: Sizes of dynamic axes that are measured, by title.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, int]] = field(default_factory=lambda: {"": {}})

    def feeds(self, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Return inputs whose dynamic axes have some sizes."""
        feeds = {}
        for name, x in self.inputs.items():
            shape = list(x.shape)
            for axis, symbol in self.dynamic.get(name, {}).items():
                shape[axis] = sizes[symbol]
            array = np.random.default_rng(0).standard_normal(shape)
            if not x.is_floating_point():
                array = np.broadcast_to(np.arange(shape[-1]), shape)
            feeds[name] = np.ascontiguousarray(array, x.numpy().dtype)
        return feeds


def vit_tiny() -> Transformer:
    """ViT-tiny on one image."""
    return Transformer(VitTiny(), {"image": torch.randn(1, 3, 224, 224)})


def gpt() -> Transformer:
    """GPT with a cache: one token after 128, and 64 tokens at once."""
    shape = 1, GPT_HEADS, 16, GPT_WIDTH // GPT_HEADS
    past = {f"past{i}": torch.randn(shape) for i in range(2 * GPT_LAYERS)}
    ids = torch.arange(4)[None]
    return Transformer(
        Gpt(),
        {"ids": ids, "places": ids, **past},
        {"ids": {1: "tokens"}, "places": {1: "tokens"}, **{key: {2: "past"} for key in past}},
        {
            "one token": {"tokens": 1, "past": 128},
            "64 tokens": {"tokens": 64, "past": 1},
        },
    )


def conformer() -> Transformer:
    """Conformer block on 200 frames."""
    return Transformer(Conformer(), {"x": torch.randn(1, 200, 144)})


TRANSFORMERS: dict[str, Callable[[], Transformer]] = {
    function.__name__: function for function in (vit_tiny, gpt, conformer)
}


def export_transformer(name: str, path: Path, *, seed: int = 0) -> Transformer:
    """Export a transformer, and return it."""
    torch.manual_seed(seed)
    transformer = TRANSFORMERS[name]()
    dims = {
        axis: torch.export.Dim(axis, max=400)
        for axes in transformer.dynamic.values()
        for axis in axes.values()
    }
    dynamic = [
        {place: dims[axis] for place, axis in transformer.dynamic.get(name, {}).items()}
        for name in transformer.inputs
    ]
    shapes = None
    if dims:
        positional = sum(not key.startswith("past") for key in transformer.inputs)
        shapes = (*dynamic[:positional], tuple(dynamic[positional:]))
    program = torch.onnx.export(
        transformer.module.eval(),
        tuple(transformer.inputs.values()),
        input_names=list(transformer.inputs),
        dynamic_shapes=shapes,
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise RuntimeError(f"{name} was not exported")
    program.save(path)
    return transformer
