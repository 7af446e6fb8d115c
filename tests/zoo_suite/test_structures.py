"""Structures as exporters write them, and decoders without stated types: typed, placed, computed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.decoding import plain
from helpers.structures import STRUCTURES, Structure
from reference_run import run_profiled, walk_nodes
from unknown_shapes import fix_inputs, walk_known
from zoo_ways import COSTS

import byoc
from byoc import zoo
from byoc.model import Model, evaluate_dim, prepare_model

RULES = (
    "target: any\ncodegen: reference\ncost_model: near.yaml\ndtype: any\nregions: connected\n"
    "ops: [{op: '*'}]\n"
)
DECODERS = ("decoder_int4", "decoder_fp16")


def _make(name: str) -> Structure:
    """Return a structure; decoders without the types that their builder states."""
    if name not in DECODERS:
        return STRUCTURES[name]()
    model, inputs = zoo.load(name), zoo.sample_inputs(name)
    del model.graph.value_info[:]
    dims = {
        dim.dim_param: extent
        for value in model.graph.input
        for dim, extent in zip(value.type.tensor_type.shape.dim, inputs[value.name].shape, strict=True)
        if dim.dim_param
    }
    return Structure(model, inputs, dims)


ALL = [*STRUCTURES, *DECODERS]


@pytest.fixture(params=ALL)
def structure(request: pytest.FixtureRequest) -> Structure:
    """Return each structure in turn."""
    return _make(request.param)


def test_it_runs_and_depends_on_its_inputs(structure: Structure) -> None:
    run = plain(structure.model)
    found = run(dict(structure.inputs))
    rolled = {name: np.roll(array, 1, axis=-1) for name, array in structure.inputs.items()}
    other = run(rolled)
    first = next(iter(found))
    assert np.isfinite(found[first]).all()
    assert found[first].astype(np.float64).std() > 1e-3
    assert not np.array_equal(found[first], other[first])


def test_with_fixed_inputs_every_shape_is_known_and_that_of_a_run(structure: Structure) -> None:
    model = prepare_model(fix_inputs(structure.model, structure.inputs), "structure")
    assert all(known for _, known, _ in walk_known(model.index))
    assert _compare_shapes(model, structure.inputs, {}) >= 10


@pytest.mark.parametrize("name", [name for name in ALL if _make(name).dims])
def test_open_extents_are_expressions_that_give_the_shapes_of_a_run(name: str) -> None:
    structure = _make(name)
    model = prepare_model(structure.model, "structure")
    assert _compare_shapes(model, structure.inputs, structure.dims) > 10


def _compare_shapes(model: Model, inputs: Mapping[str, Any], dims: Mapping[str, int]) -> int:
    """Hold every known type to what onnxruntime computed; return how many there were."""
    nodes = dict(walk_nodes(model.proto.graph))
    compared = 0
    for key, (run, *_) in run_profiled(model.proto, inputs).items():
        if int(key) in model.index.constant_nodes:
            continue
        names = [name for name in nodes[key].output if name]
        for name, shape in zip(names, run.outputs, strict=True):
            known = model.index.get_shape(name)
            assert known is not None, name
            assert tuple(evaluate_dim(dim, dims) for dim in known) == shape, (name, known)
            compared += 1
    return compared


def test_all_of_it_goes_to_an_accelerator_that_takes_everything(
    structure: Structure, tmp_path: Path
) -> None:
    (tmp_path / "any.yaml").write_text(RULES)
    (tmp_path / "near.yaml").write_text(COSTS)
    result = byoc.partition(
        fix_inputs(structure.model, structure.inputs), str(tmp_path / "any.yaml"), output=tmp_path / "b"
    )
    assert result.report.nodes.host == 0
    assert result.report.compute.offloaded == 1
    found = byoc.load(tmp_path / "b")(dict(structure.inputs))
    expected = plain(structure.model)(dict(structure.inputs))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_a_model_states_no_types_of_its_own() -> None:
    models = [_make(name).model for name in ALL]
    assert all(isinstance(model, onnx.ModelProto) and not model.graph.value_info for model in models)
