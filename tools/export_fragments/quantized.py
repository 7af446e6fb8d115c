"""Quantized fragments: what torch's fake quantization becomes, and onnxruntime's two quantizers.

`python quantized.py` writes all of them into tests/library/models/.
"""

import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import torch
from export import export, save
from modules import CLASSIC, IMAGE, TOKENS, Fragment, linears, sample
from onnxruntime import quantization
from torch import Tensor, nn
from torch.nn import functional as f


class _Convolutions(nn.Module):
    """Four convolutions (relu, relu6, two plain), pools, additions, a Gemm; `fake` quantizes between."""

    def __init__(self, fake: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.linear = nn.Linear(8, 4)
        self.fake = fake

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        x = self.quantized(x)
        x = self.quantized(torch.relu(self.conv(0, x)))
        x = self.quantized(f.relu6(self.conv(1, x)))
        x = self.quantized(f.max_pool2d(x, 2))
        x = self.quantized(self.conv(2, x))
        x = self.quantized(f.avg_pool2d(x, 2, 1))
        x = self.quantized(torch.relu(self.quantized(self.conv(3, x)) + x))
        x = self.quantized(torch.relu(x + self.quantized(z)))
        x = self.quantized(x * self.quantized(z))
        x = self.quantized(f.adaptive_avg_pool2d(x, 1))
        x = self.quantized(torch.flatten(x, 1))
        return self.quantized(f.linear(x, self.weight(self.linear.weight), self.linear.bias))

    def conv(self, number: int, x: Tensor) -> Tensor:
        layer = self.convs[number]
        return f.conv2d(x, self.weight(layer.weight), layer.bias, padding=1)

    def quantized(self, x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 0.02, 3, -128, 127) if self.fake else x

    def weight(self, weight: Tensor) -> Tensor:
        count = weight.shape[0]
        scale, zero = torch.full((count,), 0.003), torch.zeros(count, dtype=torch.int32)
        if not self.fake:
            return weight
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -128, 127)


class _Tokens(nn.Module):
    """Matrix multiplications with and without bias, softmax, an addition, activations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        scores = torch.softmax(y @ x.transpose(-1, -2), -1)
        y = torch.sigmoid(self.second(scores @ y))
        return torch.tanh(x + y) * y


class _Samples(quantization.CalibrationDataReader):
    def __init__(self, samples: Sequence[Tensor]) -> None:
        arrays = {name: sample.numpy() for name, sample in zip("xz", samples, strict=False)}
        self.left: Iterator[dict[str, np.ndarray]] = iter([arrays])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def static(module: nn.Module, samples: Sequence[Tensor], **options: object) -> onnx.ModelProto:
    """Return a module quantized with onnxruntime to QuantizeLinear and DequantizeLinear."""
    fragment = Fragment(lambda: module, tuple(samples), ())
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(export(fragment, CLASSIC), source)
        quantization.quantize_static(source, target, _Samples(samples), **options)
        return onnx.load(target)


def dynamic(module: nn.Module, sample: Tensor) -> onnx.ModelProto:
    """Return a module with onnxruntime's dynamic quantization."""
    fragment = Fragment(lambda: module, (sample,), ())
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save(export(fragment, CLASSIC), source)
        quantization.quantize_dynamic(source, target)
        return onnx.load(target)


def main() -> None:
    """Write the fragments."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    images = (*IMAGE, sample(1, 8, 2, 2))
    save(export(Fragment(lambda: _Convolutions(fake=True), images, ()), CLASSIC), "qdq_fake_classic17")
    convolutions = _Convolutions(fake=False).eval()
    save(static(convolutions, images, per_channel=True), "qdq_convolutions_static17")
    save(static(_Tokens().eval(), TOKENS), "qdq_tokens_static17")
    save(dynamic(linears().eval(), TOKENS[0]), "integer_linears_dynamic17")
    layers = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)).eval()
    save(dynamic(layers, IMAGE[0]), "integer_convolutions_dynamic17")


if __name__ == "__main__":
    main()
