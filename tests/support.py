"""What tests of every room use: models written as ONNX text, and what a run of the command line gave."""

from dataclasses import dataclass
from pathlib import Path

import onnx

from byoc.model import Model, prepare_model

VANILLA = Path(__file__).with_name("vanilla.yaml")
"""A rule file for what is not about accelerators: target `dla`, open extents, run by `reference`."""

LIGHT = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)
"""The nine light models of the zoo, which are always there."""


def parse(text: str, ir: int = 8, opset: int = 17) -> onnx.ModelProto:
    """Return the model for a graph in ONNX's text form: `g (float[2] x) => (float[2] y) { ... }`."""
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{text}')


def prepared(text: str, ir: int = 8, opset: int = 17) -> Model:
    """Return `parse`d text as a checked model."""
    return prepare_model(parse(text, ir, opset), "test")


@dataclass(frozen=True)
class Ran:
    """What a run of the command line gave."""

    code: int
    out: str
    err: str
