"""Composites that round less and take longer: formed where chosen, within a share of the time."""

import numpy as np
import pytest
from onnx.helper import make_node
from quantizing import OPS, built, groups, quantize, ranges, samples, snr, target, values, weights

from byoc.model import Model, get_metadata
from byoc.quantization._quantize_in_ranges import (
    DataQuantizer,
    choose_finer,
    find_finer_composites,
    mark_finer,
)
from byoc.samples import NO_PREPROCESSING

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


def list_marked(model: Model) -> list[str]:
    """Return the nodes that are marked."""
    return [node.name for node in model.index.nodes if get_metadata(node, "byoc.finer")]


def test_a_finer_composite_stands_only_where_it_is_marked() -> None:
    floats = make_network()
    known = ranges(floats)
    places = find_finer_composites(floats, [TARGET], samples(floats))
    plain = quantize(floats, [TARGET], known)

    marked = mark_finer(floats, places[:1])
    found = quantize(marked, [TARGET], known)

    assert len(places) == 3
    assert len(plain.units) == 6
    assert list_marked(floats) == []
    assert list_marked(marked) == [floats.index.nodes[places[0].match.root].name]
    assert len(found.units) == 5
    assert sorted(map(len, groups(found.model, TARGET).values())) == [1, 1, 1, 1, 2]


def test_those_come_first_that_spare_the_most_noise_for_their_time() -> None:
    floats = make_network()
    places = find_finer_composites(floats, [TARGET], samples(floats))

    def predict(model: Model) -> float:
        return 10.0 + len(list_marked(model))

    noisiest = max(places, key=lambda each: each.noise)
    assert floats.index.nodes[noisiest.match.root].name == "function1"
    assert {each.elements for each in places} == {16 * 8 * 8}
    chosen = {most: choose_finer(floats, places, predict, most) for most in (0.05, 0.1, 0.2, 0.5)}
    assert {most: count for most, (_, count) in chosen.items()} == {0.05: 0, 0.1: 1, 0.2: 2, 0.5: 3}
    assert list_marked(chosen[0.1][0]) == ["function1"]


@pytest.mark.parametrize(("seconds", "count"), [(0.009, 3), (0.02, 1), (1.0, 0)])
def test_data_chooses_as_many_as_take_little_longer(
    seconds: float, count: int, tmp_path: object
) -> None:
    floats = make_network()
    folder = str(tmp_path)
    for number, sample in enumerate(samples(floats, 8)):
        np.savez(f"{folder}/{number}.npz", **sample)

    def predict(model: Model) -> float:
        made = groups(model, TARGET)
        return 1.0 + seconds * sum(len(inside) > 1 for inside in made.values())

    request = DataQuantizer([TARGET], folder, NO_PREPROCESSING, "minmax", "int8", predict)
    found = request.quantize(floats)

    formed = [inside for inside in groups(found.quantized.model, TARGET).values() if len(inside) > 1]
    assert len(formed) == count
    assert any("before these are rounded" in step for step in found.steps) == bool(count)


def test_a_finer_composite_has_less_noise() -> None:
    floats = make_network()
    known = ranges(floats)
    places = find_finer_composites(floats, [TARGET], samples(floats))
    (sample,) = samples(floats, 1)
    expected = values(floats, sample)["c"]

    decibels = [
        snr(expected, values(quantize(model, [TARGET], known).model, sample)["c"])
        for model in (floats, mark_finer(floats, places))
    ]

    assert decibels[1] > decibels[0] + 1
