"""Rules that no node can meet are found, and no others: the annotator judges, over all operators."""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.support import Ran
from onnx import helper

from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, GraphIndex
from byoc.model.schemas import OperatorSchema, find_schemas, list_onnx_operators
from byoc.rules import annotate_graph, find_impossible_rules, load_rules
from byoc.support import ANNOTATIONS, dump_yaml, find_files

sys.path.insert(0, str(Path(__file__).parents[1] / "onnx_suite"))

from suite import collect

HEAD = "target: t\ncost_model: dla\ncodegen: reference\n"
OPERATORS = [name for name in list_onnx_operators() if "." not in name]
DTYPES = ("float32", "int64", "bool", "string", "float16")
_MOST_NODES = 3_000  # assignments of dtypes to type variables that are tried for one operator


def check(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "t.yaml"
    path.write_text(HEAD + text)
    return list(find_impossible_rules(load_rules(path)))


def list_nodes(schema: OperatorSchema) -> Iterator[tuple[Any, Mapping[str, str]]]:
    """Yield nodes with the required inputs, and each assignment of dtypes to their tensors."""
    needed = [each for each in schema.inputs if not each.optional]
    made = [each for each in schema.outputs if not each.optional] or list(schema.outputs[:1])
    if any(not each.dtypes for each in (*needed, *made)):
        return
    variables: dict[str, list[str]] = {}
    for formal in (*needed, *made):
        variables[formal.type_str] = sorted(formal.dtypes)
    attributes = {
        name: {"INT": 1, "FLOAT": 1.0, "STRING": "a", "INTS": [1, 1]}.get(each.kind)
        for name, each in schema.attributes.items()
        if each.required
    }
    for chosen in islice(product(*variables.values()), _MOST_NODES):
        dtypes = dict(zip(variables, chosen, strict=True))
        node = helper.make_node(
            schema.op_type,
            [f"i_{each.name}" for each in needed],
            [f"o_{each.name}" for each in made],
            **{name: value for name, value in attributes.items() if value is not None},
        )
        names = {f"i_{each.name}": dtypes[each.type_str] for each in needed}
        yield node, names | {f"o_{each.name}": dtypes[each.type_str] for each in made}


def is_taken(op: str, target: Any) -> bool | None:
    """Return whether the annotator takes a node of an operator; None where no node was made."""
    tried = None
    for schema in find_schemas(op):
        if schema.deprecated:
            continue
        for node, dtypes in list_nodes(schema):
            values = {
                name: helper.make_tensor_value_info(name, DTYPE_NUMBERS[dtype], [2, 2])
                for name, dtype in dtypes.items()
            }
            graph = helper.make_graph(
                [node], "g", [values[n] for n in node.input], [values[n] for n in node.output]
            )
            opset = helper.make_opsetid("", schema.since_version)
            index = GraphIndex.of_model(helper.make_model(graph, opset_imports=[opset]))
            (mark,) = annotate_graph(index, target)
            tried = False
            if mark.verdict:
                return True
    return tried


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_all_operators(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "t.yaml"
    wrong = []
    for op in OPERATORS:
        if all(schema.deprecated for schema in find_schemas(op)):
            continue
        path.write_text(f"{HEAD}dtype: {dtype}\nops: [{{op: {op}}}]\n")
        target = load_rules(path)
        taken, found = is_taken(op, target), list(find_impossible_rules(target))
        if taken is not None and taken == bool(found):
            wrong.append((op, found))
    assert not wrong


def test_the_remedy_that_is_named_is_one(tmp_path: Path) -> None:
    ops = ["Less", "And", "Not", "IsNaN", "Equal", "Xor", "GreaterOrEqual"]
    (tmp_path / "t.yaml").write_text(f"{HEAD}dtype: float32\nops: [{{op: [{', '.join(ops)}]}}]\n")
    problems = list(find_impossible_rules(load_rules(tmp_path / "t.yaml")))
    assert [each.split(": ")[1].split()[0] for each in problems] == ops
    for op, problem in zip(ops, problems, strict=True):
        remedy = problem.partition("say `")[2].partition("`")[0]
        text = f"dtype: float32\nops:\n  - op: {op}\n    {remedy}\n"
        assert check(tmp_path, text) == []
        assert is_taken(op, load_rules(tmp_path / "t.yaml"))


WRONG = {
    "an output of another dtype": ("op: Less", "C is bool; allowed by dtype: float32"),
    "one type of two dtypes": (
        "op: Add, tensors: {A: {dtype: int32}}",
        "A may be int32 and B float32, and both have one type (T)",
    ),
    "a dtype of one version": (
        "op: Less, tensors: {A: {dtype: int32}, C: {dtype: bool}}, opset: {max: 7}",
        "A is float16, float32, float64; allowed by tensors.A.dtype: int32",
    ),
    "a later operator": ("op: Gelu, opset: {max: 17}", "it is there from operator set 20 on"),
    "an earlier one": ("op: Upsample, opset: {min: 11}", "and gone in 10"),
    "a sequence": ("op: SequenceAt", "its input_sequence is no tensor (S)"),
    "an input that is required": ("op: Conv, tensors: {W: {absent: true}}", "its W cannot be left out"),
    "an input that comes later": (
        "op: Resize, tensors: {sizes: {absent: false}}, opset: {max: 10}",
        "has no sizes, which must be given",
    ),
    "a rank": ("op: Gemm, tensors: {A: {rank: 3}}", "no node of it with the ranks that are asked of A"),
    "a dimension": ("op: Gemm, tensors: {B: {dims: {'3': 4}}}", "are asked of B"),
    "the rank of an output": (
        "op: Relu, tensors: {X: {rank: 4}, Y: {rank: 3}}",
        "no node of it with the ranks that are asked of X and Y",
    ),
    "a rank that is made": (
        "op: Shape, tensors: {shape: {rank: 2, dtype: int64}}",
        "shape has no rank of 2",
    ),
    "an attribute's text": (
        "op: Conv, attributes: {auto_pad: {one_of: SAME}}",
        "attribute auto_pad (STRING) is never SAME; it has NOTSET, SAME_LOWER, SAME_UPPER, VALID",
    ),
    "a fraction": ("op: Conv, attributes: {group: {one_of: 1.5}}", "attribute group (INT) is never 1.5"),
    "between two whole numbers": (
        "op: Conv, attributes: {group: {min: 1.2, max: 1.8}}",
        "no whole number lies within the limits of group",
    ),
    "a value that is always there": (
        "op: Conv, attributes: {group: {absent: true}}",
        "attribute group always has a value",
    ),
    "an attribute that comes later": (
        "op: Reshape, attributes: {allowzero: {absent: false}}, opset: {max: 13}",
        "has no attribute allowzero, which must have a value",
    ),
    "a part of no composite": (
        "op: Neg, standalone: false",
        "it is taken only inside a composite (standalone), and none has it",
    ),
    "no integers in quantized operators": (
        "op: And, quantized: true",
        "inputs of a rule with `quantized: true` are floats",
    ),
}
CONTRADICTIONS = {
    "a choice outside": (
        "op: Conv, attributes: {group: {one_of: [1, 2], min: 3}}",
        "ops[0].attributes.group.one_of: no value lies within the other limits",
    ),
    "an element outside": (
        "op: Conv, attributes: {strides: {each: {one_of: 4, max: 3}}}",
        "ops[0].attributes.strides.each.one_of: no value lies within the other limits",
    ),
    "a dimension's choice": (
        "op: Conv, tensors: {X: {dims: {'1': {one_of: [3, 5], multiple_of: 4}}}}",
        "ops[0].tensors.X.dims[1].one_of: no value lies within the other limits",
    ),
    "a multiple": (
        "op: Conv, tensors: {X: {dims: {each: {min: 5, max: 7, multiple_of: 4}}}}",
        "ops[0].tensors.X.dims.each: no whole number, a multiple of 4, lies within its limits",
    ),
    "elements of a scalar": (
        "op: Add, tensors: {B: {scalar: true, elements: {min: 2}}}",
        "ops[0].tensors.B.elements: a tensor of one element (`scalar: true`) never has as many",
    ),
    "elements that are open": (
        "op: Relu, tensors: {X: {static: false, elements: {max: 64}}}",
        "ops[0].tensors.X.static: the size of a tensor is known only where every dimension is fixed",
    ),
    "an open constant": (
        "op: Conv, tensors: {W: {static: false, constant: true}}",
        "ops[0].tensors.W.static: a constant is fixed in every dimension",
    ),
    "a value outside": (
        "op: Clip, tensors: {max: {value: {one_of: 6, max: 5}}}",
        "ops[0].tensors.max.value.one_of: no value lies within the other limits",
    ),
    "no elements": (
        "op: Relu, tensors: {X: {elements: {max: -1}}}",
        "ops[0].tensors.X.elements.max: no number of elements is below 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_each_key_of_a_rule(tmp_path: Path, case: str) -> None:
    rule, said = WRONG[case]
    (problem,) = check(tmp_path, f"dtype: float32\nops: [{{{rule}}}]\n")
    assert "is never taken: " in problem
    assert said in problem


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_constraints_that_contradict_one_another(tmp_path: Path, case: str) -> None:
    rule, said = CONTRADICTIONS[case]
    path = tmp_path / "t.yaml"
    path.write_text(f"{HEAD}dtype: float32\nops: [{{{rule}}}]\n")
    assert said in [each.replace(" (line 5)", "") for each in find_impossible_rules(load_rules(path))]


@pytest.mark.parametrize(
    "rule",
    [
        "op: Conv, tensors: {X: {rank: 4}, W: {rank: 4}, Y: {rank: 4}}",
        "op: Concat, tensors: {inputs: {rank: 1}}",
        "op: Softmax, tensors: {input: {rank: 1}}",
        "op: Flatten, tensors: {input: {rank: 0}}",
        "op: Gemm, tensors: {C: {rank: 3}}",
        "op: Resize, tensors: {roi: {absent: true}, sizes: {absent: false}}",
        "op: Cast, dtype: [int8, float32], attributes: {to: {one_of: 3}}",
        "op: Shape, dtype: int64",
        "op: MaxPool, attributes: {kernel_shape: {length: 2}}, tensors: {X: {rank: 4}}",
        "op: '*'",
        "op: com.acme.Anything",
    ],
)
def test_what_can_hold_is_left_alone(tmp_path: Path, rule: str) -> None:
    assert check(tmp_path, f"dtype: float32\nops: [{{{rule}}}]\n") == []


def test_a_part_of_a_composite_is_left_alone(tmp_path: Path) -> None:
    text = "ops: [{op: Add}, {op: Neg, standalone: false}]\n"
    pattern = "composites: [{name: minus, pattern: 'n = Neg(x)\n\n    y = Add(a, n)'}]\n"
    assert check(tmp_path, f"dtype: float32\n{text}{pattern}") == []


def test_no_rule_is_flagged_that_a_published_node_meets(tmp_path: Path) -> None:
    """Each rule has the ranks, dtypes and attributes of a node that ONNX publishes as right."""
    path, judged, wrong = tmp_path / "t.yaml", 0, []
    for case in collect(costly=False):
        model = case.model
        if len(model.graph.node) != 1:
            continue
        index = GraphIndex.of_model(model)
        node, schema = index.nodes[0], index.get_schema(index.nodes[0])
        if schema is None or node.domain or any(each.HasField("g") for each in node.attribute):
            continue
        tensors = {}
        formals = [*zip(schema.list_input_formals(len(node.input)), node.input, strict=True)]
        formals += zip(schema.list_output_formals(len(node.output)), node.output, strict=True)
        for formal, name in formals:
            kind = index.types.get(name)
            if kind is not None and kind.shape is not None and not formal.variadic:
                tensors[formal.name] = {"rank": len(kind.shape), "dtype": kind.dtype, "absent": False}
        attributes = {
            each.name: {"one_of": helper.get_attribute_value(each)}
            for each in node.attribute
            if each.type in (onnx.AttributeProto.INT, onnx.AttributeProto.FLOAT)
        }
        texts = (each for each in node.attribute if each.type == onnx.AttributeProto.STRING)
        attributes |= {each.name: {"one_of": each.s.decode()} for each in texts}
        version = index.get_opset(node)
        rule = {"op": node.op_type, "opset": {"min": version, "max": version}, "dtype": "any"}
        content = {
            "target": "t",
            "cost_model": "dla",
            "codegen": "reference",
            "dtype": "any",
            "ops": [{**rule, "tensors": tensors, "attributes": attributes}],
        }
        path.write_text(dump_yaml(content))
        try:
            target = load_rules(path)
        except InputError:  # a dtype or a value that rule files do not have
            continue
        (mark,) = annotate_graph(index, target)
        if mark.verdict:
            judged += 1
            wrong += [(case.name, each) for each in find_impossible_rules(target)]
    assert not wrong
    assert judged > 500


def test_files_that_come_along_have_none() -> None:
    judged = 0
    for file in sorted(find_files(ANNOTATIONS)[0]):
        try:
            target = load_rules(file)
        except InputError as error:  # an older ONNX lacks attributes of newer operator sets
            assert "attribute" in str(error)
            continue
        judged += 1
        assert list(find_impossible_rules(target)) == [], file
    assert judged > 5


def test_the_command_names_file_and_line(tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(HEAD + "dtype: float32\nops:\n  - op: Relu\n  - {op: [Add, Less]}\n")
    ran = byoc("rules", "check", path)
    assert ran.code != 0
    assert (
        f"{path}: ops[1] (line 7): Less is never taken: C is bool; allowed by dtype: float32: say "
        "`tensors: {C: {dtype: bool}}`"
    ) in ran.out + ran.err
