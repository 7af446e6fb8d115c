"""Composites that round less and take longer: formed where chosen, within a share of the time."""

from pathlib import Path

import numpy as np
import pytest
from onnx.helper import make_node
from quantizing import (
    OPS,
    built,
    groups,
    quantize_on_data,
    samples,
    save,
    snr,
    target,
    texts,
    values,
    weights,
)

from byoc.model import Model

FINER = """
composites:
  - name: conv_function
    finer: true
    pattern: |
      c = Conv(x, w, b?)
      y = HardSwish(c)
"""
TARGET = target(FINER, [*OPS, "HardSwish"])


def make_network() -> Model:
    """Return three convolutions with a HardSwish behind each: the second makes few large values."""
    nodes = [
        step
        for number, name in enumerate("xabc"[:3])
        for step in (
            make_node("Conv", [name, f"w{number}"], [f"s{number}"], f"conv{number}"),
            make_node("HardSwish", [f"s{number}"], ["abc"[number]], f"function{number}"),
        )
    ]
    spread = np.ones((16, 1, 1, 1), np.float32)
    spread[0] = 60
    stored = {f"w{n}": weights(n, 16, 3 if n == 0 else 16, 1, 1) for n in range(3)}
    stored["w1"] = stored["w1"] * spread
    return built(nodes, {"x": [1, 3, 8, 8]}, {"c": [1, 16, 8, 8]}, stored)


def list_formed(model: Model) -> list[str]:
    """Return the units that are finer composites."""
    return [name for name, inside in groups(model, TARGET).items() if len(inside) > 1]


# Less than the thorough one, the normal effort takes half of the samples to fit and half to compare.
@pytest.mark.parametrize(("effort", "given"), [("thorough", 8), ("normal", 32)])
@pytest.mark.parametrize(("seconds", "count"), [(0.009, 3), (0.02, 1), (1.0, 0)])
def test_those_are_finer_that_spare_the_most_noise_and_take_little_longer(
    seconds: float, count: int, effort: str, given: int, tmp_path: Path
) -> None:
    """The second convolution makes few large values, which leave the fewest steps to the others."""
    floats = make_network()
    folder = save(samples(floats, given), tmp_path)

    def predict(model: Model) -> float:
        return 1.0 + seconds * len(list_formed(model))

    found = quantize_on_data(
        floats, TARGET, folder, "minmax", quantize="int8", predict=predict, effort=effort
    )

    formed = list_formed(found.model)
    assert len(formed) == count
    assert len(found.units) == 6 - count
    assert count != 1 or formed == ["function1"]
    assert any("before these are rounded" in text for text in texts(found)) == bool(count)
    (sample,) = samples(floats, 1)
    noise = snr(values(floats, sample)["c"], values(found.model, sample)["c"])
    plain = quantize_on_data(
        floats,
        target(ops=[*OPS, "HardSwish"]),
        folder,
        "minmax",
        quantize="int8",
        effort=effort,
    ).model
    gained = noise - snr(values(floats, sample)["c"], values(plain, sample)["c"])
    assert gained > 1 if count == 3 else gained > -0.5
