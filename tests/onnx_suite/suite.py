"""ONNX's own backend tests as data: a model, its inputs, and the outputs that the standard expects."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, defs, numpy_helper
from onnx.backend.test.case import base
from onnx.backend.test.case import node as node_tests
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from pytest import MonkeyPatch

from byoc.model import MAX_IR, copy_without, walk_graphs

# What onnxruntime 1.31 reads. Newer models are lowered to it where that changes no operator.
NEWEST_OPSET = 26
# "real" names models to download, and has the light models of the zoo stand in for them.
MODEL_KINDS = ("simple", "pytorch-converted", "pytorch-operator")
# Making the cases of these three takes three times as long as making all others.
_COSTLY = ("averagepool", "lppool", "maxpool")

Values = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A test: `data_sets` are pairs of inputs and expected outputs; `lowered`: to an older opset."""

    name: str
    kind: str
    model: onnx.ModelProto
    data_sets: tuple[tuple[Values, Values], ...]
    rtol: float
    atol: float
    lowered: bool


@cache
def collect(costly: bool = True) -> Sequence[Case]:
    """Return every case that needs no download, node cases first, always in the same order.

    Those of a few operators whose cases take long to make are among them if they are asked for.
    """
    modules = [found.name for found in walk_packages(node_tests.__path__, f"{node_tests.__name__}.")]
    nodes = [
        case
        for module in modules
        if costly or module.rpartition(".")[2] not in _COSTLY
        for case in _node_cases(module)
    ]
    models = [_model_case(case) for kind in MODEL_KINDS for case in load_model_tests(kind=kind)]
    return (*sorted(nodes, key=_name), *sorted(models, key=_name))


@cache
def _node_cases(module: str) -> list[Case]:
    """Return the cases that a module of onnx makes when it is first imported, which is here."""
    before = len(node_tests._NodeTestCases)
    with warnings.catch_warnings(), MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # the generators overflow and divide by zero on purpose
        # onnx reads the source of each case for its documentation, which takes half of the time.
        patch.setattr(base, "process_snippet", lambda operator, name, export: (name, ""))
        import_module(module)
    return [_node_case(case) for case in node_tests._NodeTestCases[before:]]


def operators(model: onnx.ModelProto) -> set[str]:
    """Return the operators of a model by name, those of bodies and functions included."""
    return {node.op_type for node in _nodes(model)}


def _name(case: Case) -> tuple[str, str]:
    return case.kind, case.name


def _node_case(case: TestCase) -> Case:
    assert case.model is not None
    assert case.data_sets is not None
    model, lowered = lower(case.model)
    data = tuple(_named(model, inputs, outputs) for inputs, outputs in case.data_sets)
    return Case(case.name, case.kind, model, data, case.rtol, case.atol, lowered)


def _model_case(case: TestCase) -> Case:
    folder = Path(str(case.model_dir))
    model = onnx.load(folder / "model.onnx")
    data = tuple(
        _named(
            model,
            _stored(place, "input", model.graph.input),
            _stored(place, "output", model.graph.output),
        )
        for place in sorted(folder.glob("test_data_set_*"))
    )
    model, lowered = lower(model)
    return Case(case.name, case.kind, model, data, case.rtol, case.atol, lowered)


def _named(
    model: onnx.ModelProto, inputs: Iterable[Any], outputs: Iterable[Any]
) -> tuple[Values, Values]:
    given = dict(zip((value.name for value in model.graph.input), map(_value, inputs), strict=False))
    expected = zip((value.name for value in model.graph.output), map(_value, outputs), strict=True)
    return given, dict(expected)


def _value(value: Any) -> Any:
    """Return a value as a runtime takes it: an array, a list of arrays, or nothing."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list):
        return [_value(element) for element in value]
    return None if value is None else np.asarray(value)


def _stored(folder: Path, side: str, values: Sequence[onnx.ValueInfoProto]) -> Iterator[Any]:
    for i in range(len(list(folder.glob(f"{side}_*.pb")))):
        content = (folder / f"{side}_{i}.pb").read_bytes()
        kind = values[i].type.WhichOneof("value")
        if kind == "sequence_type":
            yield numpy_helper.to_list(onnx.SequenceProto.FromString(content))
        elif kind == "optional_type":
            yield numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
        else:
            yield onnx.TensorProto.FromString(content)


def lower(model: onnx.ModelProto) -> tuple[onnx.ModelProto, bool]:
    """Return a model as onnxruntime reads it, and whether its operator set had to be an older one.

    The model itself comes back where an older operator set would mean something else.
    """
    versions = {entry.domain: entry.version for entry in model.opset_import}
    domain = "ai.onnx" if "ai.onnx" in versions else ""
    version = versions.get(domain, 1)
    older = version > NEWEST_OPSET and _means_the_same(model, version)
    result = copy_without(model)
    result.ir_version = min(model.ir_version, MAX_IR)
    if older:
        for entry in result.opset_import:
            if entry.domain == domain:
                entry.version = NEWEST_OPSET
    return result, older


def _means_the_same(model: onnx.ModelProto, version: int) -> bool:
    """Return whether every standard operator of a model is the same one in the older operator set."""
    if model.functions:
        return False  # none of the suite's newer models has any
    for node in _nodes(model):
        if node.domain not in ("", "ai.onnx"):
            continue
        try:
            newer, older = (
                defs.get_schema(node.op_type, opset, "") for opset in (version, NEWEST_OPSET)
            )
        except defs.SchemaError:
            return False
        if newer.since_version != older.since_version:
            return False
    return True


def _nodes(model: onnx.ModelProto) -> Iterator[NodeProto]:
    for graph in walk_graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        yield from function.node
