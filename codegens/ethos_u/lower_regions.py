"""Lower a region to TOSA, operation by operation, from its inputs to its outputs."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from byoc.codegen import (
    YES,
    CompileError,
    Operation,
    Quantization,
    Region,
    TensorContract,
    TensorType,
    Verdict,
    read_region,
    refuse,
)

from .lower_elementwise import choose_source_quantization, lower_function, split_function
from .lowering import IMAGE, LOWERINGS, STORED, Lowering, Value, arrange, read_shape
from .vela import EthosUOptions, compile_graphs, vela_version

_ORDERS: Mapping[str, Callable[[int], tuple[int, ...]]] = {
    "": lambda rank: tuple(range(rank)),
    "NHWC": lambda _: IMAGE,
}


def lower_region(region: Region) -> tuple[bytes, list[int]]:
    """Return the TOSA graph of a region, and the positions of the region's inputs that it reads.

    Raises CompileError naming all nodes for which there are no TOSA operators.
    """
    operations = region.operations(quantized=True)
    lowering = Lowering(region)
    read = {name for each in operations for name in each.inputs} | {
        each.inner for each in region.outputs
    }
    positions = [place for place, each in enumerate(region.inputs) if each.inner in read]
    for place in positions:
        contract = region.inputs[place]
        readers = [each.name for each in operations if contract.inner in each.inputs]
        lowering.values[contract.inner] = _enter_input(lowering, contract, readers)
    errors = [error for each in operations for error in lower_operation(lowering, each)]
    if errors:
        others = f", and {len(errors) - 1} more are not taken" if len(errors) > 1 else ""
        raise CompileError(f"{errors[0]}{others}", [name for error in errors for name in error.nodes])
    for contract in region.outputs:
        makers = [each.name for each in operations if contract.inner in each.outputs]
        _add_output(lowering, contract, makers)
    return lowering.graph.write(), positions


def lower_alone(region: Region, operation: Operation) -> bytes:
    """Return the TOSA graph of one operation of a region. Raises CompileError as `lower_region` does.

    Images are NHWC there, inputs and outputs alike; all else has the order of ONNX.
    """
    lowering = Lowering(region)
    for name in dict.fromkeys(filter(None, operation.inputs)):
        if name not in operation.constants:
            lowering.values[name] = _enter_tensor(lowering, name, region.type(name), [operation.name])
    for error in lower_operation(lowering, operation):
        raise error
    for name in filter(lowering.values.__contains__, operation.outputs):
        value = lowering.values[name]
        lowering.graph.add_output(arrange(lowering.graph, value, _usual_order(value.rank)).tensor)
    return lowering.graph.write()


def lower_operation(lowering: Lowering, operation: Operation) -> list[CompileError]:
    """Lower an operation, or those inside a composite; return the error where it is not taken, or none.

    The error names the node. The results are then new inputs of the graph, so that what follows can be
    tried.
    """
    try:
        if operation.inner:
            _lower_composite(lowering, operation)
        else:
            _lower_single(lowering, operation)
    except CompileError as error:
        error.nodes = (operation.name,) if operation.inner else error.nodes or (operation.name,)
        for name in filter(None, operation.outputs):
            kind = lowering.region.type(name)
            if kind is not None and kind.dtype in STORED:
                lowering.values[name] = _enter_tensor(lowering, name, kind, error.nodes)
        return [error]
    return []


def _lower_single(lowering: Lowering, operation: Operation) -> None:
    function = LOWERINGS.find(operation)
    if function is None:
        raise CompileError(f"no TOSA operators are written for {operation.op}")
    function(operation, lowering)


def _lower_composite(lowering: Lowering, operation: Operation) -> None:
    """Lower the operations inside one by one; a function at the end, not quantized inside, by a table.

    If the tensor that the function reads is made inside and not quantized, it gets 16 bits.
    """
    before, function = split_function(operation.inner)
    for each in before:
        if function is None or function.source not in each.outputs:
            _lower_single(lowering, each)
        else:
            fine = choose_source_quantization(function, lowering)
            _lower_single(lowering, _quantize_result(each, fine, operation.output_types[0]))
    if function is not None:
        lower_function(function, lowering)


def _quantize_result(operation: Operation, wanted: Quantization, kind: TensorType | None) -> Operation:
    """Return an operation with its result quantized as wanted, and of the shape in type `kind`."""
    return replace(
        operation,
        output_quantization=(wanted,),
        output_limits=(wanted.limits,),
        find_type=lambda name: kind if name in operation.outputs else operation.find_type(name),
    )


def _enter_input(lowering: Lowering, contract: TensorContract, readers: Sequence[str]) -> Value:
    """Return the value of an input. Raises CompileError naming its readers."""
    if contract.layout not in _ORDERS:
        raise CompileError(f"'{contract.name}' is laid out as {contract.layout}", readers)
    extents = _read_extents(contract.name, contract.type, readers)
    tensor = lowering.graph.add_input(contract.type.dtype, extents)
    return Value(tensor, _ORDERS[contract.layout](len(extents)))


def _enter_tensor(lowering: Lowering, name: str, kind: TensorType | None, nodes: Sequence[str]) -> Value:
    """Return a tensor's value as a new input of the graph. Raises CompileError naming the nodes."""
    extents = _read_extents(name, kind, nodes)
    assert kind is not None
    order = _usual_order(len(extents))
    return Value(lowering.graph.add_input(kind.dtype, [extents[axis] for axis in order]), order)


def _read_extents(name: str, kind: TensorType | None, nodes: Sequence[str]) -> list[int]:
    """Return the extents of a tensor of integers. Raises CompileError naming the nodes."""
    if kind is None or kind.dtype not in STORED:
        raise CompileError(f"'{name}' is {kind}, and no integer of 8 or 16 bits", nodes)
    return read_shape(name, kind, nodes) or [1]


def _add_output(lowering: Lowering, contract: TensorContract, makers: Sequence[str]) -> None:
    """Make a value an output. Raises CompileError naming what makes it."""
    value = lowering.values.get(contract.inner)
    if value is None:
        raise CompileError(f"'{contract.name}' is not made", makers)
    if contract.type.dtype != value.tensor.dtype:
        raise CompileError(
            f"'{contract.name}' is {contract.type}, and no integer of 8 or 16 bits", makers
        )
    if contract.layout not in _ORDERS:
        raise CompileError(f"'{contract.name}' is laid out as {contract.layout}", makers)
    order = _ORDERS[contract.layout](value.rank)
    lowering.graph.add_output(arrange(lowering.graph, value, order).tensor)


def _usual_order(rank: int) -> tuple[int, ...]:
    return IMAGE if rank == 4 else tuple(range(rank))


# Ask Vela about each quantized operation of a model, alone.

_PREFIX = "byoc."


def check_nodes(model: onnx.ModelProto, options: EthosUOptions) -> Sequence[Verdict]:
    """Return for each node of a model's graph whether Vela compiles the operation that it is part of.

    A DequantizeLinear is taken wherever what reads it is. Raises MissingRuntimeError without Vela.
    """
    vela_version()
    target = next(
        (
            each.domain.removeprefix(_PREFIX)
            for each in model.functions
            if each.domain.startswith(_PREFIX)
        ),
        "checked",
    )
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "model.onnx"
        stored = onnx.ModelProto()
        stored.CopyFrom(model)  # saving changes it
        onnx.save(stored, path, save_as_external_data=True, location="weights.bin")
        region = read_region(path, "checked", target)
        refused = {
            name: why
            for operation, why in _ask(region, options)
            for node in (operation, *operation.fused)
            for name in node.node.output
        }
    return [
        next((refuse(refused[name]) for name in node.output if name in refused), YES)
        for node in model.graph.node
    ]


def find_refused(region: Region, options: EthosUOptions) -> list[str]:
    """Return the names of the operations of a region that Vela refuses alone."""
    return [operation.name for operation, _ in _ask(region, options)]


def _ask(region: Region, options: EthosUOptions) -> Iterator[tuple[Operation, str]]:
    """Yield the operations that are not taken, each with the reason."""
    graphs: dict[bytes, list[Operation]] = {}
    for operation in region.operations(quantized=True):
        try:
            graphs.setdefault(lower_alone(region, operation), []).append(operation)
        except CompileError as error:
            yield operation, str(error)
    for operations, result in zip(graphs.values(), compile_graphs(list(graphs), options), strict=True):
        if isinstance(result, CompileError):
            yield from zip(operations, [str(result)] * len(operations), strict=True)
