"""Repeated blocks inside regions: found, cut apart where the limits allow it, and compiled once."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import files, original, ramp
from helpers.support import VANILLA, parse

import byoc
from byoc.errors import InputError
from byoc.runtime import load

LAYERS = 5


def layered(layers: int = LAYERS, ends: str = "") -> onnx.ModelProto:
    """Return a model of equal layers of four nodes that VANILLA takes, with a residual connection."""
    text = ["layered (float[20, 20] x0) => (float[20, 20] y) {"]
    for i in range(layers):
        text += [
            f"a{i} = Add(x{i}, w{i}) r{i} = Relu(a{i}) b{i} = Add(r{i}, v{i}) x{i + 1} = Add(x{i}, b{i})"
        ]
    model = parse("\n".join([*text, ends or f"y = Relu(x{layers})", "}"]))
    for i in range(layers):
        for name, factor in (("w", i + 1), ("v", -i - 2)):
            values = ramp(20, 20) * np.float32(factor)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, f"{name}{i}"))
    return model


def share(model: onnx.ModelProto, output: Path | None = None, **options: Any) -> Any:
    options = {"rules": VANILLA, "strategy": "all-supported", "share_blocks": True, **options}
    return byoc.partition(model, output=output, what_if=False, **options)


def count_nodes(result: Any) -> list[int]:
    return [len(region.nodes) for region in result.plan.regions]


def test_a_region_is_cut_into_its_layers() -> None:
    result = share(layered())
    assert count_nodes(result) == [4, 4, 4, 4, 4, 1]
    whole = share(layered(), share_blocks=False)
    assert count_nodes(whole) == [21]
    launch = result.plan.cost.total - whole.plan.cost.total
    assert launch == pytest.approx(5 * whole.plan.graph_problem.problem.launch[0])
    assert any(
        note == "a region is cut into 6, so that its 5 blocks of 4 units can be compiled once; the "
        f"further launches take {launch:.3g} s"
        for note in result.plan.root.notes
    )


def test_many_layers_are_compiled_once(tmp_path: Path) -> None:
    pytest.importorskip("emx_onnx_cgen")
    layers = 24
    model = layered(layers, f"y = Identity(x{layers})")
    result = share(model, tmp_path / "b", codegen="c", verify=False, strict=True)
    assert count_nodes(result) == [4] * layers
    made = files(tmp_path / "b")
    assert len({content for name, content in made.items() if name.endswith("region.so")}) == 1
    inputs = {"x0": ramp(20, 20)}
    np.testing.assert_allclose(load(tmp_path / "b")(inputs)["y"], original(model, inputs)["y"], 1e-5)


def test_blocks_are_not_cut_where_a_limit_forbids_it(tmp_path: Path) -> None:
    rules = tmp_path / "few.yaml"
    rules.write_text(Path(VANILLA).read_text().replace("\nops:", "\nlimits: {regions: 3}\nops:"))
    result = share(layered(), rules=rules)
    assert count_nodes(result) == [21]
    assert any("a region with repeated blocks is left whole" in note for note in result.plan.root.notes)


def test_a_codegen_that_takes_no_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--share-blocks: reference takes no weights"):
        share(layered(), tmp_path / "b", codegen="reference")
    assert not (tmp_path / "b").exists()


def test_layers_that_differ_in_an_extent_are_no_blocks() -> None:
    model = layered(4)
    model.graph.node[1].op_type = "Identity"  # of the host, which cuts the first layer in two
    assert count_nodes(share(model))[-1] == 1
    model = parse(
        "g (float[4] x) => (float[4] y) { a = Relu(x) b = Add(a, a) c = Add(b, a) y = Relu(c) }"
    )
    assert count_nodes(share(model)) == [4]
