"""Random models of If, Loop, Scan, SequenceMap and functions, and the same with names used twice.

Every name of a model that `make_nested` makes is unique, so that what it computes is beyond doubt;
`share_names` gives what bodies define the names of values around them that they do not read.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

UNARY = ("Neg", "Tanh", "Abs", "Relu", "Sigmoid")
BINARY = ("Add", "Sub", "Max")
_SHAPES: dict[str, list[int | str]] = {"matrix": [2, 3], "row": [3]}
_DOMAIN = "test.own"
# Of names that exporters write: empty ones of nodes, paths, colons, spaces, quotes, other scripts.
_ODD = ("/a/b.1/Add", "x:0", "a b", "it's", 'a"b', "naïve", "名前", "%1", "aten::add_3", "^x", "-", "0")


Nodes = list[NodeProto]
Kinds = dict[str, str]
"""Names of values, and what each is: a matrix or a row."""


class NestedMaker:
    """Builds a random model; the same seed gives the same.

    Values are matrices float32[2,3] and rows float32[3], in the range of some thousands at most.
    """

    def __init__(self, seed: int, bare: bool = False) -> None:
        """Start without nodes; the bodies of some Scans state no shapes if `bare`."""
        self._bare = bare
        self._random = np.random.default_rng(seed)
        self._count = 0
        self._functions: list[FunctionProto] = []

    def make(self) -> ModelProto:
        """Return a model with the inputs `m` and `r`, a flag `c` and a count `n`."""
        values = {"m": "matrix", "r": "row"}
        nodes, made, stored = self._fill(values, depth=0, size=int(self._random.integers(3, 7)))
        outputs = [*made][-4:]
        graph = helper.make_graph(
            nodes,
            "main",
            [
                *[_describe(name, kind) for name, kind in values.items()],
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                helper.make_tensor_value_info("n", TensorProto.INT64, []),
            ],
            [_describe(name, made[name]) for name in outputs],
            stored,
        )
        model = helper.make_model(
            graph,
            ir_version=10,
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)],
            functions=self._functions,
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def _new(self, prefix: str = "t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _fill(
        self, around: Kinds, depth: int, size: int, inside: bool = False
    ) -> tuple[list[NodeProto], Kinds, list[TensorProto]]:
        """Return nodes, what they make and stored tensors, of which a function (`inside`) has none."""
        nodes: Nodes = []
        made: Kinds = {}
        stored = []
        if not inside and self._random.random() < 0.6:
            kind = self._choose([*_SHAPES])
            array = self._random.normal(size=_SHAPES[kind]).astype(np.float32)
            stored.append(numpy_helper.from_array(array, self._new("w")))
            around = {**around, stored[-1].name: kind}
        steps = [self._unary, self._binary]
        if depth < 3:
            steps += [self._if, self._loop, self._scan]
        if depth == 0:
            steps.append(self._sequence_map)
        if depth == 0:
            steps.append(self._call)
        while len(nodes) < size:
            step = steps[int(self._random.integers(len(steps)))]
            step(nodes, {**around, **made}, made, depth)
        return nodes, made, stored

    def _choose(self, options: "list[str]") -> str:
        return options[int(self._random.integers(len(options)))]

    def _pick(self, visible: Kinds, kind: str) -> str:
        found = [name for name, each in visible.items() if each == kind]
        return self._choose(found[-5:] + found[:2])

    def _kind(self, visible: Kinds) -> str:
        return self._choose(sorted(set(visible.values())))

    def _add(self, nodes: Nodes, op: str, inputs: list[str], outputs: list[str], **rest: object) -> None:
        nodes.append(helper.make_node(op, inputs, outputs, self._new("node"), **rest))

    def _unary(self, nodes: Nodes, visible: Kinds, made: Kinds, depth: int) -> None:
        kind = self._kind(visible)
        out = self._new()
        self._add(nodes, self._choose([*UNARY]), [self._pick(visible, kind)], [out])
        made[out] = kind

    def _binary(self, nodes: Nodes, visible: Kinds, made: Kinds, depth: int) -> None:
        kind = self._kind(visible)
        out = self._new()
        pair = [self._pick(visible, kind), self._pick(visible, kind)]
        self._add(nodes, self._choose([*BINARY]), pair, [out])
        made[out] = kind

    def _body(  # noqa: PLR0917 - the parts of a body
        self,
        visible: Kinds,
        depth: int,
        kinds: list[str],
        given: list[tuple[str, str]],
        head: Iterable[onnx.ValueInfoProto] = (),
        stated: bool = False,
        passed: Iterable[onnx.ValueInfoProto] = (),
    ) -> GraphProto:
        """Return a body of `given` inputs behind `head`, whose outputs have `kinds` behind `passed`."""
        values = {**visible, **dict(given)}
        size = int(self._random.integers(1, 4))
        nodes, made, stored = self._fill(values, depth + 1, size)
        values |= made
        outputs = []
        for kind in kinds:
            out = self._new("o")
            self._add(nodes, self._choose(["Tanh", "Neg", "Abs"]), [self._pick(values, kind)], [out])
            outputs.append(_describe(out, kind, stated))
        inputs = [*head, *[_describe(name, kind, stated=False) for name, kind in given]]
        return helper.make_graph(nodes, self._new("g"), inputs, [*passed, *outputs], stored)

    def _if(self, nodes: Nodes, visible: Kinds, made: Kinds, depth: int) -> None:
        kinds = [self._kind(visible) for _ in range(int(self._random.integers(1, 3)))]
        branches = [self._body(visible, depth, kinds, []) for _ in range(2)]
        outs = [self._new() for _ in kinds]
        flag = self._flag(nodes, visible)
        self._add(nodes, "If", [flag], outs, then_branch=branches[0], else_branch=branches[1])
        made.update(zip(outs, kinds, strict=True))

    def _flag(self, nodes: Nodes, visible: Kinds) -> str:
        total, flag, zero = self._new("s"), self._new("f"), self._new("z")
        kind = self._kind(visible)
        self._add(nodes, "ReduceSum", [self._pick(visible, kind)], [total], keepdims=0)
        self._add(nodes, "Constant", [], [zero], value=numpy_helper.from_array(np.float32(0.137)))
        self._add(nodes, "Greater", [total, zero], [flag])
        return flag

    def _loop(self, nodes: Nodes, visible: Kinds, made: Kinds, depth: int) -> None:
        kind = self._kind(visible)
        trips, yes, carried, flag = (self._new(p) for p in ("n", "y", "v", "d"))
        head = [
            helper.make_tensor_value_info(self._new("i"), TensorProto.INT64, []),
            helper.make_tensor_value_info(flag, TensorProto.BOOL, []),
        ]
        passed = [helper.make_tensor_value_info(flag, TensorProto.BOOL, [])]
        stacked = ["row"] if "row" in visible.values() and self._random.random() < 0.5 else []
        body = self._body(visible, depth, [kind, *stacked], [(carried, kind)], head, passed=passed)
        count = np.array(int(self._random.integers(0, 4)), np.int64)
        self._add(nodes, "Constant", [], [trips], value=numpy_helper.from_array(count))
        self._add(nodes, "Constant", [], [yes], value=numpy_helper.from_array(np.array(True)))
        outs = [self._new() for _ in body.output[1:]]
        self._add(nodes, "Loop", [trips, yes, self._pick(visible, kind)], outs, body=body)
        made[outs[0]] = kind

    def _scan(self, nodes: Nodes, visible: Kinds, made: Kinds, depth: int) -> None:
        if "matrix" not in visible.values() or "row" not in visible.values():
            return
        given = [(self._new("v"), "row"), (self._new("x"), "row")]
        body = self._body(
            visible, depth, ["row", "row"], given, stated=not self._bare or self._random.random() < 0.5
        )
        outs = [self._new(), self._new()]
        pair = [self._pick(visible, "row"), self._pick(visible, "matrix")]
        self._add(nodes, "Scan", pair, outs, body=body, num_scan_inputs=1)
        made |= {outs[0]: "row", outs[1]: "matrix"}

    def _sequence_map(self, nodes: Nodes, visible: Kinds, made: Kinds, depth: int) -> None:
        if "matrix" not in visible.values():
            return
        # onnxruntime makes a Loop of it, and loses captures of bodies inside
        body = self._body(visible, 3, ["row"], [(self._new("x"), "row")])
        parts, mapped, out = self._new("q"), self._new("q"), self._new()
        self._add(nodes, "SplitToSequence", [self._pick(visible, "matrix")], [parts], axis=0, keepdims=0)
        self._add(nodes, "SequenceMap", [parts], [mapped], body=body)
        self._add(nodes, "ConcatFromSequence", [mapped], [out], axis=0, new_axis=1)
        made[out] = "matrix"

    def _call(self, nodes: Nodes, visible: Kinds, made: Kinds, depth: int) -> None:
        kind = self._kind(visible)
        given = {self._new("a"): kind, self._new("a"): "row"}
        name = self._new("Own")
        inner, results, _ = self._fill(given, depth + 1, int(self._random.integers(1, 3)), inside=True)
        same = [each for each, what in results.items() if what == kind]
        if not same:
            return
        imports = [helper.make_opsetid("", 21)]
        self._functions.append(helper.make_function(_DOMAIN, name, [*given], [same[-1]], inner, imports))
        out = self._new()
        pair = [self._pick(visible, kind), self._pick(visible, "row")]
        self._add(nodes, name, pair, [out], domain=_DOMAIN)
        made[out] = kind


def _describe(name: str, kind: str, stated: bool = True) -> onnx.ValueInfoProto:
    shape = _SHAPES[kind] if stated else None
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def make_nested(seed: int, bare: bool = False) -> ModelProto:
    """Return a random model; `bare` is as in `NestedMaker`."""
    return NestedMaker(seed, bare).make()


def share_names(model: ModelProto, seed: int, odd: bool = False) -> ModelProto:
    """Return the model with names used twice: bodies' values as values around them, and nodes' names.

    A body keeps reading what it read: what it defines gets no name that something in it reads from
    around it. A stored tensor of a branch gets no name that another branch reads. `odd` gives nodes and
    inner tensors names of strange characters, or nodes none.
    """
    result = ModelProto()
    result.CopyFrom(model)
    sharing = _NameSharing(np.random.default_rng(seed))
    if odd:
        _name_oddly(result, np.random.default_rng(seed))
    for scope in (result.graph, *result.functions):
        sharing.share(scope)
    return result


class _NameSharing:
    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def share(self, scope: GraphProto | FunctionProto) -> None:
        names = list_defined(scope)
        for node in scope.node:
            self._share_in_bodies(node, names)
        self._name_nodes(scope)

    def _share_in_bodies(self, node: NodeProto, around: list[str]) -> None:
        bodies = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
        for body in bodies:
            others = {name for each in bodies if each is not body for name in _list_read(each)}
            stored = {tensor.name for tensor in body.initializer}
            free = [name for name in around if name not in _list_read(body)]
            for name in list_defined(body):
                options = [each for each in free if name not in stored or each not in others]
                if options and self._random.random() < 0.5:
                    new = options[int(self._random.integers(len(options)))]
                    free.remove(new)
                    _rename(body, name, new)
            inner = list(dict.fromkeys([*around, *list_defined(body)]))
            for each in body.node:
                self._share_in_bodies(each, inner)
            self._name_nodes(body)

    def _name_nodes(self, scope: GraphProto | FunctionProto) -> None:
        for node in scope.node:
            if self._random.random() < 0.4:
                node.name = str(self._random.choice(["", node.op_type, scope.node[0].name]))


def list_defined(scope: GraphProto | FunctionProto) -> list[str]:
    """Return the names that a graph or function defines, without those inside its bodies."""
    names = []
    if isinstance(scope, GraphProto):
        names = [value.name for value in scope.input] + [t.name for t in scope.initializer]
    else:
        names = list(scope.input)
    return [*dict.fromkeys([*names, *(name for node in scope.node for name in node.output)])]


def _list_read(body: GraphProto) -> set[str]:
    """Return all that nodes in a body and in those inside it read or give."""
    found = {value.name for value in body.output}
    for node in body.node:
        found.update(node.input)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found |= _list_read(attribute.g)
    return found


def _rename(body: GraphProto, old: str, new: str) -> None:
    """Rename a value that a body defines, in place; no body inside it defines it again."""
    for value in (*body.input, *body.output, *body.value_info, *body.initializer):
        if value.name == old:
            value.name = new
    for node in body.node:
        for names in (node.input, node.output):
            for number, name in enumerate(names):
                if name == old:
                    names[number] = new
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _rename(attribute.g, old, new)


def _name_oddly(model: ModelProto, random: np.random.Generator) -> None:
    """Give values that the main graph's nodes make, and nodes, names of strange characters, in place."""
    given = {value.name for value in (*model.graph.input, *model.graph.output)}
    inner = [name for name in list_defined(model.graph) if name not in given]
    for name, new in zip(inner, _ODD, strict=False):
        if random.random() < 0.5:
            _rename(model.graph, name, new)
    for node, new in zip(_walk(model.graph), _ODD, strict=False):
        node.name = new


def _walk(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _walk(attribute.g)
