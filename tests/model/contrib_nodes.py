"""Nodes of onnxruntime's own operators: what is known of them, and what onnxruntime computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from byoc.model import DTYPE_NUMBERS, TensorType
from byoc.model._inference._contrib_rules import (
    CONTRIB_RULES,
    infer_by_schema,  # noqa: F401 - for the tests
    infer_contrib_types,  # noqa: F401 - for the tests
)
from byoc.model._inference._moved_values import KnownNode
from byoc.model._node_kinds import get_effective_attributes
from byoc.model.schemas import get_schema
from byoc.onnxrt import open_session, run_session

DTYPES = {
    **{"f": np.float32, "h": np.float16, "i": np.int32, "l": np.int64},
    **{"u": np.uint8, "b": np.int8, "o": np.bool_, "s": np.int16},
}
CONTRIB = "com.microsoft"
SCALE = np.asarray(0.1, np.float32)
ZERO = np.asarray(1, np.uint8)
QUANTIZED = (SCALE, ZERO)
Given = str | NDArray[Any] | None


@dataclass(frozen=True, eq=False)
class Case:
    """A node: inputs as `f:2x3` for random floats, or as values; `skip` are outputs left out."""

    op: str
    inputs: Sequence[Given]
    outputs: int = 1
    domain: str = CONTRIB
    version: int = 17
    skip: tuple[int, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return a name for the test."""
        shapes = (str(i) if i is None or isinstance(i, str) else "value" for i in self.inputs)
        stated = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"{self.op}({' '.join(shapes)} {stated})".replace(" )", ")")

    @property
    def is_defined(self) -> bool:
        """Whether the installed onnxruntime has the operator as the case has it."""
        schema = get_schema(self.op, self.domain, self.version if self.domain == "" else 1)
        return (
            schema is not None
            and schema.attributes.keys() >= self.attributes.keys()
            and len(self.inputs) <= schema.max_input
            and self.outputs <= schema.max_output
        )

    @property
    def node(self) -> NodeProto:
        """The node; inputs are i0, i1, ..., outputs o0, o1, ..."""
        names = ["" if given is None else f"i{i}" for i, given in enumerate(self.inputs)]
        made = ["" if i in self.skip else f"o{i}" for i in range(self.outputs)]
        return helper.make_node(self.op, names, made, domain=self.domain, **self.attributes)

    def draw_inputs(self) -> dict[str, NDArray[Any]]:
        """Return the inputs by name; random integers are 0 and 1."""
        generator = np.random.default_rng(0)
        found = {}
        for i, given in enumerate(self.inputs):
            if isinstance(given, str):
                kind, _, text = given.partition(":")
                shape = [int(part) for part in text.split("x")]
                dtype = np.dtype(DTYPES[kind])
                drawn = generator.random(shape) if dtype.kind == "f" else generator.integers(0, 2, shape)
                found[f"i{i}"] = np.asarray(drawn.astype(dtype))
            elif given is not None:
                found[f"i{i}"] = given
        return found

    def describe(self, *, symbolic: bool) -> tuple[KnownNode, dict[str, int]]:
        """Return the node with what is known of it; `symbolic` gives extents above 1 names.

        The sizes of those names are the second result; equal extents have one name.
        """
        inputs, sizes = self.draw_inputs(), {}
        types: list[TensorType | None] = []
        values: list[NDArray[Any] | None] = []
        for i, given in enumerate(self.inputs):
            array = inputs.get(f"i{i}")
            if array is None:
                types.append(None)
                values.append(None)
                continue
            dims: list[int | str] = list(array.shape)
            if symbolic and isinstance(given, str):
                dims = [f"n{extent}" if extent > 1 else extent for extent in array.shape]
                sizes.update((f"n{extent}", extent) for extent in array.shape)
            types.append(TensorType(array.dtype.name, tuple(dims)))
            values.append(None if isinstance(given, str) else array)
        schema = get_schema(self.op, self.domain, self.version if self.domain == "" else 1)
        assert schema is not None
        attributes = get_effective_attributes(self.node, schema, {})
        opset = self.version if self.domain == "" else 1
        return KnownNode(self.node, opset, attributes, tuple(types), tuple(values)), sizes

    def infer(self, *, symbolic: bool) -> tuple[list[TensorType | None], dict[str, int]]:
        """Return what the rule says of the outputs, and the sizes of symbolic extents."""
        name = f"{self.domain}.{self.op}" if self.domain else self.op
        node, sizes = self.describe(symbolic=symbolic)
        return list(CONTRIB_RULES[name](node))[: self.outputs], sizes

    def run(self) -> dict[int, NDArray[Any]]:
        """Return the outputs that onnxruntime computes, by position."""
        inputs, (types, _) = self.draw_inputs(), self.infer(symbolic=False)
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in inputs.items()
        ]
        made = [
            helper.make_tensor_value_info(f"o{i}", DTYPE_NUMBERS[kind.dtype], None)
            for i, kind in enumerate(types)
            if i not in self.skip and kind is not None
        ]
        graph = helper.make_graph([self.node], "g", infos, made)
        imports = [helper.make_opsetid("", self.version), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        found = run_session(open_session(model), inputs)
        return {int(name[1:]): value for name, value in found.items()}


def case(
    op: str, *inputs: Given, n: int = 1, version: int = 17, skip: Any = (), **attributes: Any
) -> Case:
    """Return a case of an operator of com.microsoft with `n` outputs."""
    return Case(op, inputs, n, CONTRIB, version, skip, attributes)


def main(op: str, *inputs: Given, n: int = 1, version: int = 17, **attributes: Any) -> Case:
    """Return a case of an operator of ONNX's main domain."""
    return Case(op, inputs, n, "", version, (), attributes)


def ints(*values: int) -> NDArray[Any]:
    return np.array(values, np.int32)


def longs(*values: int) -> NDArray[Any]:
    return np.array(values, np.int64)


def number(value: float, dtype: Any = np.float32) -> NDArray[Any]:
    return np.asarray(value, dtype)


TOKENS = np.zeros((2, 5), np.int32)
POSITIONS = np.zeros((2, 5), np.int64)
GROUPS = {"num_heads": 4, "kv_num_heads": 2}
