"""Networks for the costs of libraries to be fitted to: thirty families, each in two or three sizes.

    python benchmarks/cost_networks.py FOLDER    # needs PyTorch

writes ONNX files with fixed shapes and seeded random weights. `byoc profile --fit` takes them beside the
zoo. Those that no fit sees are `benchmarks/unseen_networks.py`'s.
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

OPSET = 17
Made = tuple[nn.Module, tuple[Tensor, ...]]


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        """Make the layers."""
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """Return what the function gives."""
        return self.function(x)


class Residual(nn.Module):
    """What modules add to their input, or to a projection of it."""

    def __init__(self, *modules: nn.Module, skip: nn.Module | None = None) -> None:
        """Make the layers."""
        super().__init__()
        self.body, self.skip = nn.Sequential(*modules), skip or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return self.skip(x) + self.body(x)


class Product(nn.Module):
    """The product of two modules of one input: gates, squeeze and excitation."""

    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        """Make the layers."""
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        return self.one(x) * self.other(x)


class First(nn.Module):
    """The sequence of a recurrent layer, without its state."""

    def __init__(self, layer: nn.Module) -> None:
        """Make the layers."""
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return the sequence."""
        return self.layer(x)[0]


class Attention(nn.Module):
    """Self-attention of several heads, written out as exporters see it."""

    def __init__(self, width: int, heads: int) -> None:
        """Make the layers."""
        super().__init__()
        self.heads = heads
        self.project, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mixed values, of the shape of the input [batch, tokens, width]."""
        batch, tokens, width = x.shape
        parts = self.project(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
        return self.mix((weights @ v).transpose(1, 2).reshape(batch, tokens, width))


class Mixer(nn.Module):
    """Rows mixed, then columns (MLP-Mixer)."""

    def __init__(self, tokens: int, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.rows = nn.Sequential(
            nn.Linear(tokens, tokens * 2), nn.GELU(), nn.Linear(tokens * 2, tokens)
        )
        self.columns = nn.Sequential(nn.Linear(width, width * 4), nn.GELU(), nn.Linear(width * 4, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        """Return both sums."""
        x = x + self.rows(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.columns(self.norms[1](x))


class RootMeanSquare(nn.Module):
    """Root mean square normalization, written out."""

    def __init__(self, width: int) -> None:
        """Make the layers."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized rows."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class UNet(nn.Module):
    """Two levels down and up again, with what is copied across (1 or 2 dimensions)."""

    def __init__(self, conv: type, transposed: type, channels: int, act: nn.Module) -> None:
        """Make the layers."""
        super().__init__()
        self.down = nn.ModuleList()
        for i in range(3):
            before = channels * 2 ** max(i - 1, 0) if i else channels
            self.down.append(
                nn.Sequential(conv(before, channels * 2**i, 3, 1 + (i > 0), padding=1), act)
            )
        self.up = nn.ModuleList(
            transposed(channels * 2**i, channels * 2 ** (i - 1), 4, 2, padding=1) for i in (2, 1)
        )
        self.join = nn.ModuleList(
            nn.Sequential(conv(channels * 2**i, channels * 2 ** (i - 1), 3, padding=1), act)
            for i in (2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the input's shape."""
        kept = []
        for level in self.down:
            x = level(x)
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, reversed(kept[:-1]), strict=True):
            x = join(torch.cat([up(x), beside], 1))
        return x


def noise(*shape: int) -> tuple[Tensor, ...]:
    """Return one tensor of normal noise."""
    return (torch.randn(*shape),)


def stack(count: int, make: Callable[[int], nn.Module]) -> nn.Sequential:
    """Return so many modules in a row."""
    return nn.Sequential(*(make(i) for i in range(count)))


def _mlp(width: int, layers: int, act: Callable[[], nn.Module], rows: int = 1) -> Made:
    return stack(layers, lambda _: nn.Sequential(nn.Linear(width, width), act())), noise(rows, width)


def _conv1d(channels: int, length: int, layers: int, kernel: int, act: Callable[[], nn.Module]) -> Made:
    made = lambda _: nn.Sequential(nn.Conv1d(channels, channels, kernel, padding=kernel // 2), act())  # noqa: E731
    return stack(layers, made), noise(1, channels, length)


def _dilated(channels: int, length: int, layers: int) -> Made:
    def block(i: int) -> nn.Module:
        own = nn.Conv1d(channels, channels, 3, padding=2 ** (i % 5), dilation=2 ** (i % 5))
        return Residual(own, nn.BatchNorm1d(channels), nn.PReLU())

    return stack(layers, block), noise(1, channels, length)


def _separable1d(channels: int, length: int, layers: int) -> Made:
    def block(_: int) -> nn.Module:
        depthwise = nn.Conv1d(channels, channels, 5, padding=2, groups=channels)
        return Residual(depthwise, nn.Conv1d(channels, channels, 1), nn.BatchNorm1d(channels), nn.SiLU())

    return stack(layers, block), noise(1, channels, length)


def _gated(channels: int, length: int, layers: int) -> Made:
    def block(i: int) -> nn.Module:
        wide = lambda act: nn.Sequential(  # noqa: E731
            nn.Conv1d(channels, channels, 3, dilation=2 ** (i % 4), padding=2 ** (i % 4)), act
        )
        return Residual(Product(wide(nn.Tanh()), wide(nn.Sigmoid())), nn.Conv1d(channels, channels, 1))

    return stack(layers, block), noise(1, channels, length)


def _glu(width: int, tokens: int, layers: int) -> Made:
    block = lambda _: Residual(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GLU())  # noqa: E731
    return stack(layers, block), noise(1, tokens, width)


def _recurrent(kind: type, width: int, steps: int, layers: int, both: bool) -> Made:
    layer = kind(width, width // (2 if both else 1), layers, batch_first=True, bidirectional=both)
    return nn.Sequential(First(layer), nn.Linear(width, width)), noise(1, steps, width)


def _conv_recurrent(channels: int, steps: int, kind: type) -> Made:
    conv = nn.Sequential(
        nn.Conv1d(40, channels, 5, 2, 2), nn.ReLU(), nn.Conv1d(channels, channels, 5, 2, 2)
    )
    turn = Apply(lambda x: torch.tanh(x).transpose(1, 2))
    return nn.Sequential(conv, turn, First(kind(channels, channels, batch_first=True))), noise(
        1, 40, steps
    )


def _conv2d(
    channels: int, size: int, layers: int, act: Callable[[], nn.Module], kernel: int = 3
) -> Made:
    first = nn.Conv2d(3, channels, 3, 2, 1)
    made = lambda _: nn.Sequential(  # noqa: E731
        nn.Conv2d(channels, channels, kernel, padding=kernel // 2), nn.BatchNorm2d(channels), act()
    )
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return nn.Sequential(first, stack(layers, made), last), noise(1, 3, size, size)


def _inverted(channels: int, size: int, layers: int, act: Callable[[], nn.Module], gate: bool) -> Made:
    def block(_: int) -> nn.Module:
        wide = channels * 4
        depthwise = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), act()),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide), nn.BatchNorm2d(wide), act()),
        )
        squeeze = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, channels, 1), nn.ReLU()),
            *(nn.Conv2d(channels, wide, 1), nn.Hardsigmoid()),
        )
        gates = [Product(nn.Identity(), squeeze)] if gate else []
        return Residual(depthwise, *gates, nn.Conv2d(wide, channels, 1), nn.BatchNorm2d(channels))

    first = nn.Conv2d(3, channels, 3, 4, 1)
    return nn.Sequential(first, stack(layers, block)), noise(1, 3, size, size)


def _bottleneck(channels: int, size: int, layers: int, groups: int) -> Made:
    def block(_: int) -> nn.Module:
        inner = channels // 2
        return nn.Sequential(
            Residual(
                *(nn.Conv2d(channels, inner, 1), nn.ReLU()),
                *(nn.Conv2d(inner, inner, 3, padding=1, groups=groups), nn.ReLU()),
                nn.Conv2d(inner, channels, 1),
            ),
            nn.ReLU(),
        )

    return stack(layers, block), noise(1, channels, size, size)


def _pyramid(size: int, act: Callable[[], nn.Module]) -> Made:
    levels = [3, 32, 64, 128, 256, 512]
    made = lambda i: nn.Sequential(  # noqa: E731
        nn.Conv2d(levels[i], levels[i + 1], 3, padding=1), act(), nn.MaxPool2d(2)
    )
    last = nn.Sequential(
        nn.Flatten(), nn.Linear(512 * (size // 32) ** 2, 1024), act(), nn.Linear(1024, 10)
    )
    return nn.Sequential(stack(5, made), last), noise(1, 3, size, size)


def _upsampling(channels: int, size: int, how: str) -> Made:
    def block(_: int) -> nn.Module:
        if how == "shuffle":
            return nn.Sequential(nn.Conv2d(channels, channels * 4, 3, padding=1), nn.PixelShuffle(2))
        wide = nn.Upsample(scale_factor=2, mode=how)
        return nn.Sequential(wide, nn.Conv2d(channels, channels, 3, padding=1), nn.LeakyReLU(0.1))

    return nn.Sequential(stack(2, block), nn.Conv2d(channels, 3, 3, padding=1)), noise(
        1, channels, size, size
    )


def _normalized(channels: int, size: int, layers: int, norm: str) -> Made:
    def block(_: int) -> nn.Module:
        own = nn.GroupNorm(8, channels) if norm == "group" else nn.InstanceNorm2d(channels, affine=True)
        return Residual(own, nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))

    return stack(layers, block), noise(1, channels, size, size)


def _conv3d(channels: int, size: int, layers: int) -> Made:
    first = nn.Conv3d(3, channels, 3, (1, 2, 2), 1)
    made = lambda _: nn.Sequential(  # noqa: E731
        nn.Conv3d(channels, channels, 3, padding=1), nn.BatchNorm3d(channels), nn.ReLU()
    )
    last = nn.Sequential(nn.MaxPool3d(2), nn.Conv3d(channels, channels * 2, 1), nn.AdaptiveAvgPool3d(1))
    return nn.Sequential(first, stack(layers, made), last), noise(1, 3, 8, size, size)


def _transformer(width: int, tokens: int, layers: int, act: Callable[[], nn.Module], norm: type) -> Made:
    def block(_: int) -> nn.Module:
        wide = nn.Sequential(nn.Linear(width, width * 4), act(), nn.Linear(width * 4, width))
        return nn.Sequential(
            Residual(norm(width), Attention(width, max(width // 64, 2))), Residual(norm(width), wide)
        )

    return stack(layers, block), noise(1, tokens, width)


def _gated_transformer(width: int, tokens: int, layers: int) -> Made:
    def block(_: int) -> nn.Module:
        wide = Product(
            nn.Sequential(nn.Linear(width, width * 2, bias=False), nn.SiLU()),
            nn.Linear(width, width * 2, bias=False),
        )
        return nn.Sequential(
            Residual(RootMeanSquare(width), Attention(width, max(width // 64, 2))),
            Residual(RootMeanSquare(width), wide, nn.Linear(width * 2, width, bias=False)),
        )

    return stack(layers, block), noise(1, tokens, width)


def _mixer(tokens: int, width: int, layers: int) -> Made:
    return stack(layers, lambda _: Mixer(tokens, width)), noise(1, tokens, width)


def _embedded(vocabulary: int, width: int, tokens: int) -> Made:
    middle = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
    pooled = Apply(lambda x: nn.functional.normalize(x.mean(1), dim=-1))
    return nn.Sequential(nn.Embedding(vocabulary, width), middle, pooled), (
        torch.randint(0, vocabulary, (1, tokens)),
    )


def _elementwise(channels: int, length: int, layers: int, how: str) -> Made:
    functions: Mapping[str, Callable[[Tensor], Tensor]] = {
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "gelu": nn.functional.gelu,
        "softplus": nn.functional.softplus,
        "power": lambda x: torch.log1p(torch.sqrt(x * x + 1)) - torch.exp(-x.abs()),
        "mish": nn.functional.mish,
    }
    made = lambda _: nn.Sequential(Apply(functions[how]), nn.Conv1d(channels, channels, 1))  # noqa: E731
    return stack(layers, made), noise(1, channels, length)


class Spectrum(nn.Module):
    """The logarithm of energies in bands, of frames of a signal."""

    def __init__(self, bands: int) -> None:
        """Make the layers."""
        super().__init__()
        self.frames, self.bands = (
            nn.Conv1d(1, 514, 400, 160, bias=False),
            nn.Linear(257, bands, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, frames, bands]."""
        real, imaginary = self.frames(x).chunk(2, 1)
        return self.bands((real.pow(2) + imaginary.pow(2)).transpose(1, 2)).abs().clamp(1e-9).log()


def _dense(channels: int, size: int, layers: int) -> Made:
    class Grown(nn.Module):
        def __init__(self, before: int) -> None:
            """Make the layers."""
            super().__init__()
            self.own = nn.Sequential(
                nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, 32, 3, padding=1)
            )

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, self.own(x)], 1)

    return stack(layers, lambda i: Grown(channels + 32 * i)), noise(1, channels, size, size)


FAMILIES: Mapping[str, Sequence[Callable[[], Made]]] = {
    "mlp": [
        lambda: _mlp(128, 4, nn.ReLU),
        lambda: _mlp(1024, 4, nn.Tanh),
        lambda: _mlp(512, 3, nn.ELU, 64),
    ],
    "mlp_large": [lambda: _mlp(4096, 3, nn.ReLU), lambda: _mlp(3200, 4, nn.GELU)],
    "conv1d": [
        lambda: _conv1d(32, 128, 4, 3, nn.ReLU),
        lambda: _conv1d(128, 400, 6, 5, nn.ELU),
        lambda: _conv1d(64, 4000, 4, 9, nn.LeakyReLU),
    ],
    "dilated": [lambda: _dilated(64, 256, 8), lambda: _dilated(192, 500, 10)],
    "separable1d": [lambda: _separable1d(64, 300, 6), lambda: _separable1d(256, 400, 8)],
    "gated": [lambda: _gated(32, 500, 6), lambda: _gated(96, 1000, 8)],
    "glu": [lambda: _glu(128, 40, 4), lambda: _glu(384, 200, 6)],
    "gru": [
        lambda: _recurrent(nn.GRU, 64, 50, 1, False),
        lambda: _recurrent(nn.GRU, 256, 60, 2, False),
        lambda: _recurrent(nn.GRU, 128, 200, 1, True),
    ],
    "lstm": [
        lambda: _recurrent(nn.LSTM, 64, 40, 1, False),
        lambda: _recurrent(nn.LSTM, 320, 50, 1, True),
        lambda: _recurrent(nn.LSTM, 192, 150, 2, False),
    ],
    "rnn": [lambda: _recurrent(nn.RNN, 96, 80, 1, False), lambda: _recurrent(nn.RNN, 256, 50, 2, True)],
    "conv_recurrent": [
        lambda: _conv_recurrent(64, 200, nn.GRU),
        lambda: _conv_recurrent(160, 400, nn.LSTM),
    ],
    "conv2d": [
        lambda: _conv2d(16, 32, 3, nn.ReLU),
        lambda: _conv2d(48, 96, 5, nn.SiLU),
        lambda: _conv2d(96, 128, 6, nn.LeakyReLU),
    ],
    "conv2d_wide": [lambda: _conv2d(24, 64, 4, nn.Tanh, 5), lambda: _conv2d(64, 112, 4, nn.Sigmoid, 7)],
    "inverted": [
        lambda: _inverted(16, 96, 4, nn.ReLU6, False),
        lambda: _inverted(32, 224, 6, nn.Hardswish, True),
        lambda: _inverted(40, 256, 8, nn.SiLU, True),
    ],
    "bottleneck": [lambda: _bottleneck(64, 28, 4, 1), lambda: _bottleneck(256, 28, 5, 1)],
    "grouped": [lambda: _bottleneck(128, 14, 4, 8), lambda: _bottleneck(256, 28, 5, 16)],
    "pyramid": [lambda: _pyramid(64, nn.ReLU), lambda: _pyramid(160, nn.PReLU)],
    "dense": [lambda: _dense(32, 28, 6), lambda: _dense(64, 56, 8)],
    "unet": [
        lambda: (UNet(nn.Conv2d, nn.ConvTranspose2d, 16, nn.ReLU()), noise(1, 16, 64, 64)),
        lambda: (UNet(nn.Conv2d, nn.ConvTranspose2d, 48, nn.SiLU()), noise(1, 48, 96, 96)),
    ],
    "unet1d": [
        lambda: (UNet(nn.Conv1d, nn.ConvTranspose1d, 24, nn.ELU()), noise(1, 24, 512)),
        lambda: (UNet(nn.Conv1d, nn.ConvTranspose1d, 64, nn.LeakyReLU(0.2)), noise(1, 64, 2048)),
    ],
    "upsampling": [
        lambda: _upsampling(24, 24, "nearest"),
        lambda: _upsampling(48, 40, "bilinear"),
        lambda: _upsampling(32, 48, "shuffle"),
    ],
    "group_norm": [lambda: _normalized(32, 32, 3, "group"), lambda: _normalized(96, 48, 5, "group")],
    "instance_norm": [
        lambda: _normalized(32, 48, 3, "instance"),
        lambda: _normalized(64, 96, 4, "instance"),
    ],
    "conv3d": [lambda: _conv3d(12, 32, 2), lambda: _conv3d(32, 56, 3)],
    "transformer": [
        lambda: _transformer(64, 16, 2, nn.ReLU, nn.LayerNorm),
        lambda: _transformer(256, 64, 4, nn.GELU, nn.LayerNorm),
        lambda: _transformer(512, 196, 4, nn.GELU, nn.LayerNorm),
    ],
    "gated_transformer": [
        lambda: _gated_transformer(128, 32, 3),
        lambda: _gated_transformer(512, 128, 4),
    ],
    "mixer": [lambda: _mixer(49, 128, 3), lambda: _mixer(196, 384, 4)],
    "embedded": [lambda: _embedded(5000, 64, 32), lambda: _embedded(30000, 512, 256)],
    "elementwise": [
        lambda: _elementwise(32, 1000, 6, "tanh"),
        lambda: _elementwise(48, 3000, 5, "sigmoid"),
        lambda: _elementwise(64, 1000, 5, "gelu"),
        lambda: _elementwise(32, 2000, 5, "softplus"),
        lambda: _elementwise(32, 3000, 4, "power"),
        lambda: _elementwise(32, 1500, 5, "mish"),
    ],
    "spectrum": [lambda: (Spectrum(40), noise(1, 1, 16000)), lambda: (Spectrum(80), noise(1, 1, 80000))],
}


def write_exported(path: Path, make: Callable[[], Made]) -> None:
    """Write a module to a file as PyTorch exports it, with weights of a seed."""
    torch.manual_seed(0)
    module, inputs = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), inputs, path, opset_version=OPSET, dynamo=False)


def main() -> int:
    """Write the models asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names that begin with this")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for family, sizes in FAMILIES.items():
        for number, make in enumerate(sizes):
            if f"{family}_{number}".startswith(asked.only):
                write_exported(asked.folder / f"{family}_{number}.onnx", make)
    return 0


if __name__ == "__main__":
    sys.exit(main())
