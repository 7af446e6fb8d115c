"""The network that is calibrated."""

import pytest
from calibrating import network

from byoc.graph.load import Model, prepare


@pytest.fixture
def net() -> Model:
    return prepare(network(), "net.onnx")
