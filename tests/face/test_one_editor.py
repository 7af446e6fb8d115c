"""Graphs are edited by one class: no second list of nodes, removal or maker of nodes appears.

What stands here is counted in the source. A new edit goes through `byoc.model.EditableGraph`.
"""

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import byoc

FOLDER = Path(byoc.__file__).parent
EDITOR = "model/_editable_graph.py"

WRITERS = {
    "boundary/convert/_casting_rewrite.py": "bodies and functions rewritten node by node",
    "bundle/_original_weights.py": "the file as a whole",
    "codegen/_emx_definitions.py": "a model of the caller's, whose nodes are changed as they are read",
    "codegen/_region_model.py": "some nodes of a model, in the order of a plan",
    "model/_constants.py": "what folding leaves",
    "model/_model_loading.py": "the order of a file",
    "model/_node_kinds.py": "nodes with labels, each copied once",
    "model/_operator_forms.py": "what ONNX's converter makes",
    "model/_outline.py": "main graph and functions of a partitioned model, each node copied once",
    "model/_inference/_settling.py": "bodies of a typed graph",
    "quantization/_accuracy_test.py": "a quantized model with pairs for some readers alone",
    "standalone/_program_graph.py": "the constant nodes alone",
    "standalone/_written_operators.py": "copies of bodies, whose types are inferred as in a new model",
    "verification/_row_selection.py": "the part of a model that computes some rows",
}
"""The files that write the nodes of a graph anew, and what is written there: none edits and keeps."""


@cache
def list_code() -> Sequence[tuple[str, ast.AST]]:
    """Return the files of byoc with the calls, deletions, functions and classes in them."""
    kinds = (ast.Call, ast.Delete, ast.FunctionDef, ast.ClassDef)
    return [
        (path.relative_to(FOLDER).as_posix(), node)
        for path in sorted(FOLDER.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, kinds)
    ]


def is_anew(node: ast.AST) -> bool:
    """Return whether code empties the nodes of a graph, or copies a model without them."""
    if isinstance(node, ast.Delete):
        return any(re.search(r"\bnode\[:\]$", ast.unparse(target)) for target in node.targets)
    if not isinstance(node, ast.Call):
        return False
    words = [each.value for each in node.args if isinstance(each, ast.Constant)]
    return isinstance(node.func, ast.Name) and node.func.id == "copy_without" and "node" in words


def test_nodes_are_written_anew_in_known_places_alone() -> None:
    found = {name for name, node in list_code() if is_anew(node)}

    assert found == WRITERS.keys()


def test_nodes_are_made_and_put_in_order_by_the_editor_alone() -> None:
    calls = [
        (name, node.func)
        for name, node in list_code()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    made = {name for name, call in calls if call.attr == "make_node"}
    sorted_ = {n for n, call in calls if call.attr == "sort" and ast.unparse(call).endswith("node.sort")}

    assert made == sorted_ == {EDITOR}


def test_one_function_removes_what_nobody_reads() -> None:
    removals = {
        (name, node.name)
        for name, node in list_code()
        if isinstance(node, ast.FunctionDef)
        if re.match(r"_?(drop|remove|prune|delete)_(unread|unused|unneeded|dead)", node.name)
    }

    assert removals == {(EDITOR, "drop_unread")}


def test_what_edits_a_graph_is_the_editor() -> None:
    """A class with ways to insert, replace or remove nodes is `EditableGraph`, or inherits them."""
    ways = {"insert_before", "insert_after", "insert_first", "insert_last", "rename_now", "link"}
    editors = {
        (name, node.name)
        for name, node in list_code()
        if isinstance(node, ast.ClassDef)
        if ways & {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    }

    assert editors == {(EDITOR, "EditableGraph")}
