"""Annotations in the model: metadata of nodes decides where they go."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from accelerators import Files, everywhere, notes
from helpers.support import parse

from byoc.errors import InputError
from byoc.pipeline import partition
from byoc.planning import save_placement

CHAIN = """
chain (float[1, 4] x) => (float[1, 4] y) {
  [one] a = Neg(x)
  [two] b = Abs(a)
  [three] c = Tanh(b)
  [four] y = Relu(c)
}
"""
BODIES = """
bodies (float[4] x, int64 n, bool k) => (float[4] z) {
  [first] a = Relu (x)
  [round] z = Loop <body = l (int64 i, bool c, float[4] p) => (bool m, float[4] q)
     { m = Identity (c) [inner] r = Neg (p) [last] q = Relu (r) }> (n, k, a)
}
"""


def make_costly_rules(files: Files, *ops: str, more: str = "") -> str:
    """Return rules for a slow accelerator: by cost alone everything stays on the host."""
    return files.rules("near", *ops, costs=files.costs("costly", peak="1.0"), more=more)


def annotate(text: str, key: str, values: Mapping[str, str]) -> onnx.ModelProto:
    """Return a model whose named nodes have metadata."""
    model = parse(text)
    graphs = [
        model.graph,
        *(a.g for node in model.graph.node for a in node.attribute if a.HasField("g")),
    ]
    for node in (node for graph in graphs for node in graph.node):
        if node.name in values:
            node.metadata_props.add(key=key, value=values[node.name])
    return model


def test_a_key_names_devices(files: Files) -> None:
    rules = [files.rules("near", "Neg", "Abs", "Tanh", "Relu"), files.rules("far", "Neg", "Abs", "Relu")]
    model = annotate(CHAIN, "device", {"one": "far", "two": "host", "four": "near"})
    placed = everywhere(partition(model, rules, strategy="all-supported", annotations="device"))
    assert placed == {"a": "far", "b": "host", "c": "near", "y": "near"}
    free = everywhere(partition(model, rules, strategy="all-supported"))
    assert free["b"] != "host"  # without the option metadata decides nothing


def test_a_rule_file_maps_layers(files: Files) -> None:
    more = "annotations: {layer_ann: ['^enc', head]}\n"
    rules = make_costly_rules(files, "Neg", "Abs", "Tanh", "Relu", more=more)
    model = annotate(CHAIN, "layer_ann", {"one": "encoder_1", "two": "decoder", "four": "the head"})
    result = partition(model, rules)
    assert everywhere(result) == {"a": "near", "b": "host", "c": "host", "y": "near"}
    assert not any("annotations" in note for note in notes(result))


def test_a_body_takes_the_annotation_around_it(files: Files) -> None:
    rules = make_costly_rules(files, "Neg", "Relu")
    model = annotate(BODIES, "device", {"round": "near", "last": "host"})
    placed = everywhere(partition(model, rules, annotations="device"))
    assert placed["r"] == "near"
    assert placed["q"] == "host"
    assert placed["a"] == "host"


def test_the_file_counts_before_the_key_and_the_key_before_rules(files: Files, tmp_path: Path) -> None:
    more = "annotations: {device: host}\n"
    rules = make_costly_rules(files, "Neg", "Abs", "Tanh", "Relu", more=more)
    model = annotate(CHAIN, "device", {"one": "host", "two": "host"})
    by_rules = partition(model, rules)
    assert everywhere(by_rules) == {"a": "near", "b": "near", "c": "host", "y": "host"}
    by_key = partition(model, rules, strategy="all-supported", annotations="device")
    assert everywhere(by_key) == {"a": "host", "b": "host", "c": "near", "y": "near"}
    path = tmp_path / "where.yaml"
    path.write_text("format: 1\nnodes: {one: near}\n", "utf-8")
    by_file = partition(model, rules, annotations="device", placement=path)
    assert everywhere(by_file) == {"a": "near", "b": "host", "c": "host", "y": "host"}


def test_what_does_not_fit_is_noted(files: Files, tmp_path: Path) -> None:
    rules = files.rules("near", "Neg", more="annotations: {layer_ann: [none-such]}\n")
    model = annotate(CHAIN, "device", {"one": "near", "two": "near"})
    model.graph.node[2].metadata_props.add(key="layer_ann", value="something")
    result = partition(model, rules, strategy="all-supported", annotations="device")
    assert everywhere(result) == {"a": "near", "b": "host", "c": "host", "y": "host"}
    assert notes(result)[-2:] == [
        "annotations.layer_ann[0]: no node has metadata 'layer_ann' that matches 'none-such'",
        "--annotations device: not taken by the device: 'two'; placed anew",
    ]
    save_placement(result.plan, tmp_path / "saved.yaml")
    assert "one: near" in (tmp_path / "saved.yaml").read_text("utf-8")


def test_mistakes_are_one_sentence(files: Files) -> None:
    rules = files.rules("near", "Neg")
    model = annotate(CHAIN, "device", {"one": "neat"})
    with pytest.raises(InputError, match=r"node 'one' asks for device 'neat', .*did you mean near"):
        partition(model, rules, annotations="device")
    with pytest.raises(
        InputError, match=r"--annotations devise: no node has metadata of this key; there is device"
    ):
        partition(model, rules, annotations="devise")
    wrong = files.rules("wrong", "Neg", more="annotations: {layer_ann: ['(']}\n")
    with pytest.raises(
        InputError, match=r"annotations\.layer_ann\[0\]: '\(' is not a regular expression"
    ):
        partition(model, wrong)


def test_nodes_in_regions_say_which_rule_took_them_and_those_on_the_host_why(files: Files) -> None:
    rules = files.rules("near", "Neg", "Abs", "Relu")
    proto = partition(parse(CHAIN), rules, strategy="all-supported").plan.proto
    graphs = [proto.graph, *proto.functions]
    found = {
        node.op_type: {entry.key: entry.value for entry in node.metadata_props}
        for graph in graphs
        for node in graph.node
        if node.domain == ""
    }
    host = {"byoc.device": "host", "byoc.reason": "Tanh is not among the operators of near"}
    taken = {op: {"byoc.rules": f"ops[{i}]"} for i, op in enumerate(("Neg", "Abs", "Relu"))}
    assert found == {**taken, "Tanh": host}
