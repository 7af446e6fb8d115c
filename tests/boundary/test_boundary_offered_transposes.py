"""Transposes at boundaries that the accelerator runs itself, if its rules take them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.support import examples, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from test_boundary_contract_properties import Drawn, drawn

import byoc
from byoc.model import LAYOUT, get_purpose

RULES = """target: {name}
codegen: reference
cost_model: {costs}
dtype: {dtype}
layout: {{activations: {layout}, convert: {convert}}}
ops:
  - op: [{operators}]
    quantized: {quantized}
{transpose}
"""
COSTS = """kind: roofline
name: {name}
peak: {{default: 1.0e+12}}
bandwidth: {bandwidth}
overhead: {overhead}
launch: 1.0e-8
link: {{bandwidth: 1.0e+12, latency: 1.0e-8}}
"""
OPERATORS = ["Add", "Conv", "MaxPool", "Relu"]
INTO, BACK = "[0, 2, 3, 1]", "[0, 3, 1, 2]"


def write_rules(
    folder: Path,
    name: str = "npu",
    *,
    orders: str = f"[{INTO}, {BACK}]",
    quantized: bool = False,
    **keys: Any,
) -> str:
    """Write a rule file, which takes Transposes of some orders, and its costs; return the rule file."""
    given = {"convert": "either", "layout": "NHWC", "bandwidth": 1e12, "overhead": 1e-8, **keys}
    (folder / f"{name}-costs.yaml").write_text(COSTS.format(name=name, **given))
    taken = f"  - op: Transpose\n    quantized: {quantized}\n    where: attr.perm in {orders}\n"
    text = RULES.format(
        name=name,
        costs=folder / f"{name}-costs.yaml",
        dtype="int8" if quantized else "float32",
        quantized=str(quantized).lower(),
        transpose=taken.replace(str(quantized), str(quantized).lower()) if orders else "",
        **{"operators": ", ".join(OPERATORS), **given},
    )
    (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{name}.yaml")


def cross(folder: Path, text: str, strategy: str = "exact", **options: Any) -> dict[str, str]:
    """Return who transposes each image that crosses, by its name: host, device, or nobody."""
    model = parse(text, ir=10, opset=17)
    result = byoc.partition(model, output=folder / "bundle", strategy=strategy, **options)
    assert result.report.verification is not None
    assert result.report.verification.passed
    regions = [region for _, region, _ in byoc.open_bundle(folder / "bundle").regions()]
    every = [each for region in regions for each in (*region.inputs, *region.outputs)]
    assert all(bool(each.layout) == (each.converts.get("layout") == "host") for each in every)
    return {each.tensor: each.converts.get("layout", "nobody") for each in every}


@st.composite
def accelerators(draw: st.DrawFn) -> list[Mapping[str, Any]]:
    """One accelerator or two, cheap or dear, in layouts of their own."""
    return [
        {
            "name": name,
            "layout": draw(st.sampled_from(["NHWC", "CHWN"])),
            "operators": ", ".join(sorted(draw(st.sets(st.sampled_from(OPERATORS), min_size=1)))),
            "orders": draw(st.sampled_from(["", f"[{INTO}]", f"[{BACK}, [3, 0, 1, 2]]", "[attr.perm]"])),
            "bandwidth": draw(st.sampled_from([1e9, 1e12])),
            "overhead": draw(st.sampled_from([1e-8, 4e-6])),
        }
        for name in draw(st.sampled_from([["npu"], ["npu", "other"]]))
    ]


@settings(deadline=None, max_examples=examples(30))
@given(drawn(("",)), accelerators())
def test_no_placement_is_predicted_to_be_slower_and_no_number_changes(
    tmp_path_factory: pytest.TempPathFactory, case: Drawn, some: list[Mapping[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("offered")
    model = parse(case.text, ir=10, opset=17)
    seconds = {}
    for convert in ("host", "either"):
        rules = [write_rules(folder, convert=convert, **each) for each in some]
        result = byoc.partition(model, rules, output=folder / f"{convert}.byoc", strategy="exact")
        checked = result.report.verification
        assert checked is None or checked.largest_relative_error == 0
        seconds[convert] = result.report.predicted.seconds
    assert seconds["either"] <= seconds["host"] * (1 + 1e-9)


NET = """g (float[1, 3, 32, 32] image) => (float[1, 4, 32, 32] y, float[1, 4, 32, 32] z)
<float[4, 3, 1, 1] weight = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
  a = Sin(image)
  maps = Conv(a, weight)
  b = Relu(maps)
  y = Sin(b)
  c = MaxPool <kernel_shape = [1, 1]> (b)
  z = Sin(c)
}"""


@pytest.mark.parametrize(
    ("orders", "entering", "leaving"),
    [
        (f"[{INTO}, {BACK}]", "device", "device"),
        (f"[{INTO}]", "device", "host"),
        (f"[{BACK}]", "host", "device"),
        ("", "host", "host"),
    ],
)
def test_the_rules_are_asked_about_each_way(
    orders: str, entering: str, leaving: str, tmp_path: Path
) -> None:
    text = """g (float[1, 3, 32, 32] image) => (float[1, 3, 32, 32] y) {
      a = Sin(image)
      b = MaxPool <kernel_shape = [1, 1]> (a)
      y = Sin(b)
    }"""
    found = cross(tmp_path, text, "all-supported", rules=write_rules(tmp_path, orders=orders))
    assert found == {"a": entering, "b": leaving}


def test_an_image_that_another_region_may_read_leaves_only_where_it_could_enter(tmp_path: Path) -> None:
    rules = write_rules(tmp_path, orders=f"[{BACK}]")
    assert cross(tmp_path, NET, "all-supported", rules=rules) == {
        "a": "host",
        "b": "host",
        "c": "device",
    }


def test_the_side_that_is_dearer_transposes_nothing(tmp_path: Path) -> None:
    dear = write_rules(tmp_path, bandwidth=1e6)
    assert set(cross(tmp_path, NET, "all-supported", rules=dear).values()) == {"host"}


def test_the_predicted_time_counts_the_accelerators_transposes(tmp_path: Path) -> None:
    """12,288 bytes enter, read and written at 1e12 a second; launches of operators take 10 ns."""
    report = byoc.partition(parse(NET, ir=10), write_rules(tmp_path), strategy="all-supported").report
    transpose = [1e-8 + 2 * size / 1e12 for size in (12288, 16384, 16384)]
    sent = [1e-8 + size / 1e12 for size in (12288, 16384, 16384)]
    # `b` leaves, and the MaxPool that reads it might have been in a region of its own.
    assert report.predicted.transfer == pytest.approx(sum(transpose) + transpose[1] + sum(sent))


def test_quantized_images_are_transposed_as_integers(tmp_path: Path) -> None:
    rules = write_rules(tmp_path, quantized=True)
    precision = byoc.Precision(quantize="int8", data="random")
    found = cross(tmp_path, NET, "all-supported", rules=rules, precision=precision)
    assert set(found.values()) == {"device"}


def test_what_a_loop_captures_is_transposed_by_the_host(tmp_path: Path) -> None:
    text = """g (float[1, 2, 8, 8] x) => (float[1, 2, 8, 8] y) <int64 n = {3}, bool go = {1}> {
      s = Sin(x)
      y = Loop(n, go, x) <body = body
        (int64 i, bool go_in, float[1, 2, 8, 8] v) => (bool go_out, float[1, 2, 8, 8] w) {
          go_out = Identity(go_in)
          p = MaxPool <kernel_shape = [1, 1]> (s)
          q = Add(p, v)
          r = MaxPool <kernel_shape = [1, 1]> (q)
          w = Sin(r)
      }>
    }"""
    found = cross(tmp_path, text, "all-supported", rules=write_rules(tmp_path))
    assert found == {"s": "host", "v": "device", "r": "device"}


def test_transposes_that_cancel_on_the_host_are_left_to_it(tmp_path: Path) -> None:
    """Between two regions of one accelerator a Sin runs in their layout, for nothing."""
    text = """g (float[1, 2, 32, 32] x) => (float[1, 2, 32, 32] y) {
      a = MaxPool <kernel_shape = [1, 1]> (x)
      b = Sin(a)
      y = MaxPool <kernel_shape = [1, 1]> (b)
    }"""
    found = cross(tmp_path, text, "all-supported", rules=write_rules(tmp_path))
    assert found == {"x": "device", "a": "host", "b": "host", "y": "device"}
    model = onnx.load(tmp_path / "bundle" / "model.onnx")
    assert not [node for node in model.graph.node if get_purpose(node) == LAYOUT]
