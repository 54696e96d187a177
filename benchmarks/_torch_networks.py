# SPDX-License-Identifier: Apache-2.0
"""Small networks of PyTorch with random weights, as exported to ONNX.

They have the structure of common networks and few channels. `NETWORKS` maps names to functions that
return a module and the shape of its input.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

Network = tuple[nn.Module, tuple[int, ...]]


def conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: str = "ReLU"
) -> nn.Sequential:
    """Create a convolution, a batch normalization and an activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([getattr(nn, act)()] if act else []))


class Residual(nn.Module):
    """x + f(x), and perhaps an activation."""

    def __init__(self, body: nn.Module, short: nn.Module | None = None, act: str = "") -> None:
        super().__init__()
        self.body, self.short = body, short or nn.Identity()
        self.act = getattr(nn, act)() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.act(self.body(x) + self.short(x))
        return y


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, inner: str = "ReLU", outer: str = "Hardsigmoid") -> None:
        super().__init__()
        few = max(8, channels // 4)
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, few, 1),
            getattr(nn, inner)(),
            nn.Conv2d(few, channels, 1),
            getattr(nn, outer)(),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.body(x)
        return y


def head(channels: int, classes: int = 10) -> list[nn.Module]:
    """Return a mean over height and width and a classifier."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def resnet() -> Network:
    """ResNet-18 with 16 channels."""
    layers: list[nn.Module] = [conv(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1)]
    width = 16
    for stage in range(4):
        for block in range(2):
            stride, wide = 2 if stage and not block else 1, 16 << stage
            body = nn.Sequential(conv(width, wide, 3, stride), conv(wide, wide, act=""))
            short = conv(width, wide, 1, stride, act="") if stride == 2 else None
            layers.append(Residual(body, short, "ReLU"))
            width = wide
    return nn.Sequential(*layers, *head(width)), (1, 3, 64, 64)


def inverted(
    inputs: int, outputs: int, kernel: int, stride: int, act: str, gate: nn.Module | None = None
) -> nn.Module:
    """Create an inverted residual block with an expansion of 4."""
    wide = inputs * 4
    layers = [conv(inputs, wide, 1, act=act), conv(wide, wide, kernel, stride, wide, act)]
    body = nn.Sequential(*layers, gate or nn.Identity(), conv(wide, outputs, 1, act=""))
    return Residual(body) if stride == 1 and inputs == outputs else body


def without_gates(kernel: int, width: int, channels: int) -> Network:
    """Create inverted residual blocks with ReLU6."""
    blocks = [inverted(16, 16, 3, 1, "ReLU6"), inverted(16, 24, kernel, 2, "ReLU6")]
    blocks += [inverted(24, 24, kernel, 1, "ReLU6"), inverted(24, width, 3, 2, "ReLU6")]
    first, last = conv(3, 16, 3, 2, act="ReLU6"), conv(width, channels, 1, act="ReLU6")
    return nn.Sequential(first, *blocks, last, *head(channels)), (1, 3, 64, 64)


def mobilenet_v2() -> Network:
    """MobileNetV2 with 16 to 32 channels."""
    return without_gates(3, 32, 128)


def efficientnet_lite() -> Network:
    """EfficientNet-lite: without gates, with ReLU6."""
    return without_gates(5, 40, 160)


def mobilenet_v3() -> Network:
    """MobileNetV3 with gates and HardSwish."""
    blocks = [inverted(16, 16, 3, 1, "ReLU", Gate(64)), inverted(16, 24, 3, 2, "ReLU")]
    blocks += [inverted(24, 24, 5, 1, "Hardswish", Gate(96))]
    blocks += [inverted(24, 32, 5, 2, "Hardswish", Gate(96))]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 64), nn.Hardswish()]
    return nn.Sequential(
        conv(3, 16, 3, 2, act="Hardswish"),
        *blocks,
        conv(32, 128, 1, act="Hardswish"),
        *last,
        nn.Dropout(),
        nn.Linear(64, 10),
    ), (1, 3, 64, 64)


def efficientnet() -> Network:
    """EfficientNet with gates of SiLU."""
    blocks = [inverted(16, 16, 3, 1, "SiLU", Gate(64, "SiLU", "Sigmoid"))]
    blocks += [inverted(16, 24, 5, 2, "SiLU", Gate(64, "SiLU", "Sigmoid"))]
    blocks += [inverted(24, 24, 5, 1, "SiLU", Gate(96, "SiLU", "Sigmoid"))]
    return nn.Sequential(
        conv(3, 16, 3, 2, act="SiLU"), *blocks, conv(24, 96, 1, act="SiLU"), *head(96)
    ), (1, 3, 64, 64)


class Csp(nn.Module):
    """Cross-stage partial block: two branches that are concatenated."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.first, self.second = (conv(inputs, half, 1, act="SiLU") for _ in range(2))
        self.block = Residual(
            nn.Sequential(conv(half, half, 1, act="SiLU"), conv(half, half, act="SiLU"))
        )
        self.last = conv(outputs, outputs, 1, act="SiLU")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.cat([self.block(self.first(x)), self.second(x)], 1))
        return y


class Yolo(nn.Module):
    """A detector with SiLU, pyramid pooling, upsampling and two scales."""

    def __init__(self, upsample: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 16, 3, 2, act="SiLU"), conv(16, 32, 3, 2, act="SiLU"))
        self.c3, self.down = Csp(32, 32), conv(32, 64, 3, 2, act="SiLU")
        self.c4 = Csp(64, 64)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.sppf = conv(192, 64, 1, act="SiLU")
        self.lateral = conv(64, 32, 1, act="SiLU")
        self.up = upsample or nn.Upsample(scale_factor=2)
        self.merge = Csp(64, 32)
        self.again = conv(32, 32, 3, 2, act="SiLU")
        self.c5 = Csp(64, 64)
        self.heads = nn.ModuleList([nn.Conv2d(32, 18, 1), nn.Conv2d(64, 18, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c3 = self.c3(self.stem(x))
        c4 = self.c4(self.down(c3))
        once = self.pool(c4)
        c4 = self.lateral(self.sppf(torch.cat([c4, once, self.pool(once)], 1)))
        p3 = self.merge(torch.cat([self.up(c4), c3], 1))
        p4 = self.c5(torch.cat([self.again(p3), c4], 1))
        return self.heads[0](p3), self.heads[1](p4)


def yolo() -> Network:
    """YOLO-like detector with nearest-neighbour upsampling."""
    return Yolo(), (1, 3, 64, 64)


def yolo_transposed() -> Network:
    """YOLO-like detector with a transposed convolution."""
    return Yolo(nn.ConvTranspose2d(32, 32, 4, 2, 1, bias=False)), (1, 3, 64, 64)


class UNet(nn.Module):
    """Two levels of encoder and decoder, with transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(3, 16), conv(16, 32)
        self.bottom = conv(32, 64)
        self.up2, self.up1 = (
            nn.ConvTranspose2d(64, 32, 2, 2),
            nn.ConvTranspose2d(32, 16, 3, 2, 1, 1),
        )
        self.right2, self.right1 = conv(64, 32), conv(32, 16)
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(self.pool(first))
        y = self.up2(self.bottom(self.pool(second)))
        y = self.up1(self.right2(torch.cat([y, second], 1)))
        scores: Tensor = self.last(self.right1(torch.cat([y, first], 1)))
        return scores


def unet() -> Network:
    """U-Net of two levels."""
    return UNet(), (1, 3, 32, 32)


def super_resolution() -> Network:
    """Super-resolution with a pixel shuffle between convolutions and one at the end."""
    return nn.Sequential(
        conv(3, 32),
        Residual(nn.Sequential(conv(32, 32), conv(32, 32, act=""))),
        nn.Conv2d(32, 64, 3, 1, 1),
        nn.PixelShuffle(2),
        nn.ReLU(),
        nn.Conv2d(16, 12, 3, 1, 1),
        nn.PixelShuffle(2),
    ), (1, 3, 32, 32)


class Crnn(nn.Module):
    """Text recognition: convolutions, then columns as a sequence."""

    def __init__(self, recurrent: str) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv(1, 16), nn.MaxPool2d(2), conv(16, 32), nn.MaxPool2d(2), conv(32, 64)
        )
        self.pool = nn.MaxPool2d((8, 1))
        options = {"batch_first": True, "bidirectional": True}
        self.recurrent = getattr(nn, recurrent)(64, 32, **options) if recurrent else None
        self.last = nn.Linear(64, 20)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.features(x)).squeeze(2).permute(0, 2, 1)
        if self.recurrent is not None:
            y, _ = self.recurrent(y)
        scores: Tensor = self.last(y)
        return scores


def crnn() -> Network:
    """CRNN with an LSTM."""
    return Crnn("LSTM"), (1, 1, 32, 64)


def ctc() -> Network:
    """Text recognition without recurrent layers."""
    return Crnn(""), (1, 1, 32, 64)


class Attention(nn.Module):
    """Attention with heads, written with products."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.last = (
            heads,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        parts = self.qkv(x).reshape(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        scores = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(-1)
        y: Tensor = self.last((scores @ v).transpose(1, 2).reshape(rows, tokens, width))
        return y


class Vit(nn.Module):
    """Vision transformer of two blocks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.place = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        blocks: list[nn.Module] = []
        for _ in range(2):
            mlp = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)
            )
            attention = nn.Sequential(nn.LayerNorm(width), Attention(width, 4))
            blocks += [Residual(attention), Residual(mlp)]
        self.blocks, self.last = nn.Sequential(*blocks, nn.LayerNorm(width)), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2) + self.place
        scores: Tensor = self.last(self.blocks(y).mean(1))
        return scores


def vit() -> Network:
    """Vision transformer."""
    return Vit(), (1, 3, 64, 64)


def make_encoder(width: int = 32, *, batch_first: bool) -> nn.Module:
    """Return PyTorch's encoder of two layers."""
    layer = nn.TransformerEncoderLayer(width, 4, 64, activation="gelu", batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def encoder() -> Network:
    """Transformer encoder of a batch of tokens."""
    return make_encoder(batch_first=True), (1, 16, 32)


def encoder_tokens_first() -> Network:
    """Transformer encoder with tokens before the batch, PyTorch's default."""
    return make_encoder(batch_first=False), (16, 1, 32)


def mixer() -> Network:
    """Shuffled groups of channels, as in ShuffleNet."""
    return nn.Sequential(
        conv(3, 16, 3, 2),
        conv(16, 32, 1, groups=4),
        nn.ChannelShuffle(4),
        conv(32, 32, 3, 1, 32, act=""),
        conv(32, 32, 1, groups=4),
        nn.PixelUnshuffle(2),
        conv(128, 32, 1),
        *head(32),
    ), (1, 3, 64, 64)


NETWORKS: dict[str, Callable[[], Network]] = {
    function.__name__: function
    for function in (
        resnet,
        mobilenet_v2,
        mobilenet_v3,
        efficientnet,
        efficientnet_lite,
        yolo,
        yolo_transposed,
        unet,
        super_resolution,
        crnn,
        ctc,
        vit,
        encoder,
        encoder_tokens_first,
        mixer,
    )
}


def export(name: str, path: Path, *, seed: int = 0) -> tuple[int, ...]:
    """Export a network with statistics of random data; return the shape of its input."""
    torch.manual_seed(seed)
    module, shape = NETWORKS[name]()
    module.train()
    with torch.no_grad():
        for _ in range(10):
            module(torch.randn(16, *shape[1:]))
    module.eval()
    program = torch.onnx.export(module, (torch.randn(shape),), dynamo=True, verbose=False)
    if program is None:
        raise RuntimeError(f"{name} was not exported")
    program.save(path)
    return shape
