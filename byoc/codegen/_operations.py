"""A region as a list of operations: decoded nodes, so that an emitter reads no protobuf."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto

from byoc.boundary.contracts import TensorContract, is_conversion
from byoc.codegen._quantization import Quantization
from byoc.model import (
    COMPOSITE_KEY,
    GraphIndex,
    TensorType,
    get_metadata,
    get_node_name,
    resolve_attributes,
)


def _find_no_type(name: str) -> TensorType | None:
    return None


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a region: a node with decoded attributes.

    `name` is the node's name, or its first output where it has none; errors use it. `op` is the
    operator, `domain` its domain, empty for ONNX's own. For a call of a composite, `composite` is the
    composite's name in the rule file and `op` its function's name, which differs between variants;
    otherwise `composite` is empty.

    `inputs` and `outputs` are names of tensors, empty where one is omitted. `attributes` holds all with
    a value, defaults of ONNX's schema included: numbers, strings, lists of them, TensorProto and
    GraphProto. Attributes of a composite are prefixed with the pattern's line: `c_strides`.

    `constants` names the inputs that are stored, for `Region.constant`. `inner` holds the operations of
    a composite in order, with tensor names as outside of it. `node` is the source of all of this.

    The rest says something of quantized operations alone (`Region.operations(quantized=True)`).
    `input_quantization` and `output_quantization` have one element for each of `inputs` and `outputs`,
    None for a tensor that is not quantized. `output_limits` are the least and greatest integer of each
    quantized output, those of its dtype unless a Relu or Clip is part of the operation. `fused` holds
    what is part of it behind `node`: Relu, Clip and QuantizeLinear, in order.
    """

    name: str
    op: str
    composite: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    constants: tuple[str, ...]
    node: NodeProto
    inner: tuple["Operation", ...] = field(default=())
    input_quantization: tuple[Quantization | None, ...] = ()
    output_quantization: tuple[Quantization | None, ...] = ()
    output_limits: tuple[tuple[int, int] | None, ...] = ()
    fused: tuple["Operation", ...] = ()
    find_type: Callable[[str], TensorType | None] = field(default=_find_no_type, repr=False)

    @property
    def input_types(self) -> tuple[TensorType | None, ...]:
        """The type of each of `inputs`, None where it is not known or the input is omitted."""
        return tuple(map(self.find_type, self.inputs))

    @property
    def output_types(self) -> tuple[TensorType | None, ...]:
        """The type of each of `outputs`, None where it is not known or the output is omitted."""
        return tuple(map(self.find_type, self.outputs))


def read_operations(
    model: ModelProto,
    domain: str,
    find_type: Callable[[str], TensorType | None],
    inputs: Sequence[TensorContract] = (),
    outputs: Sequence[TensorContract] = (),
) -> tuple[Operation, ...]:
    """Return the operations of a region's model, in order of execution.

    `domain` is that of the target's composites, `find_type` gives the types of tensors. byoc's own
    conversions of layout and float type are left out: the nodes between `name` and `inner` of the
    contracts of `inputs` and `outputs`.
    """
    reader = _OperationReader(GraphIndex.of_model(model), domain, find_type)
    skipped = set(find_conversions(reader.index, inputs, outputs))
    return tuple(reader.operation(node) for i, node in enumerate(reader.index.nodes) if i not in skipped)


def find_conversions(
    index: GraphIndex, inputs: Sequence[TensorContract], outputs: Sequence[TensorContract]
) -> Iterator[int]:
    """Yield the numbers of the nodes between `name` and `inner` of the contracts."""
    for contract in inputs:
        name = contract.name
        while name != contract.inner:
            readers = [i for i in index.consumers.get(name, ()) if is_conversion(index.nodes[i])]
            if len(readers) != 1:
                break
            yield readers[0]
            name = index.nodes[readers[0]].output[0]
    for contract in outputs:
        name = contract.name
        while name != contract.inner and name in index.producers:
            number = index.producers[name]
            if not is_conversion(index.nodes[number]):
                break
            yield number
            name = index.nodes[number].input[0]


@dataclass(frozen=True)
class _OperationReader:
    """Decodes the nodes of one region's model."""

    index: GraphIndex
    domain: str
    find_type: Callable[[str], TensorType | None]

    def operation(self, node: NodeProto) -> Operation:
        """Return a node of the model as an operation."""
        function = find_composite(self.index.proto, self.domain, node)
        inner = () if function is None else tuple(map(self._decode, instantiate_body(function, node)))
        composite = "" if function is None else get_metadata(node, COMPOSITE_KEY) or node.op_type
        return self._decode(node, composite, inner)

    def _decode(
        self, node: NodeProto, composite: str = "", inner: tuple[Operation, ...] = ()
    ) -> Operation:
        attributes = self.index.get_attributes(node)
        return Operation(
            name=get_node_name(node),
            op=node.op_type,
            composite=composite,
            domain="" if node.domain == "ai.onnx" else node.domain,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes=attributes,
            constants=tuple(
                name for name in dict.fromkeys(node.input) if name in self.index.initializers
            ),
            node=node,
            inner=inner,
            find_type=self.find_type,
        )


def find_composite(model: ModelProto, domain: str, node: NodeProto) -> FunctionProto | None:
    """Return the function of a node that calls a composite, None for any other node."""
    if node.domain != domain:
        return None
    return next((f for f in model.functions if (f.domain, f.name) == (node.domain, node.op_type)), None)


def instantiate_body(function: FunctionProto, call: NodeProto) -> Iterator[NodeProto]:
    """Yield the nodes of a composite's function, instantiated for one call."""
    names = dict(zip(function.input, [*call.input, *[""] * len(function.input)], strict=False))
    names |= dict(zip(function.output, call.output, strict=False))
    names[""] = ""
    prefix = next(filter(None, call.output), call.op_type)
    for node in function.node:
        result = resolve_attributes(node, call)
        for name in node.output:  # inner tensors, distinct from those of other calls
            names.setdefault(name, f"{prefix}/{name}")
        result.input[:] = [names.get(name, name) for name in node.input]
        result.output[:] = [names[name] for name in node.output]
        result.name = f"{call.name or prefix}/{get_node_name(node)}"
        yield result
