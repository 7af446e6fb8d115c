"""A region to compile: its model, contracts, constants, types, operations and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.inliner

from byoc._dataclasses import dataclass
from byoc.boundary.contracts import (
    UNKNOWN_LAYOUT,
    TensorContract,
    find_convolution_weights,
    pack_weight,
    read_region_contracts,
)
from byoc.codegen._interface import (
    AnyArray,
    CompileError,
    Executor,
    OperatorTime,
    resolve_node_names,
)
from byoc.codegen._operations import Operation, quantize_operations, read_operations
from byoc.codegen._region_model import fold_region_model, infer_all_types
from byoc.errors import InputError
from byoc.model import (
    DTYPES,
    WEIGHT,
    ConversionError,
    ExternalData,
    GraphIndex,
    TensorType,
    convert_ir_version,
    convert_opset,
    embed_external_data,
    find_external_data,
    fold_constants,
    get_stated_types,
    open_shapes,
    pack_operand,
    parse_layout,
    read_array,
    read_tensor_types,
    to_numpy_dtype,
    walk_tensors,
)
from byoc.onnxrt import bind_session, open_session, profile_nodes, run_session, session_runner

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

    from byoc.boundary.contracts import RegionContracts
    from byoc.codegen._region_model import Arena, Want
    from byoc.model import TensorLayout


@dataclass(frozen=True, eq=False)
class Region:
    """A region to compile: a complete ONNX model of standard operators and composites.

    `path` is the model file; its large constants are ONNX external data in the same folder, so onnx.load
    and every ONNX tool can read it. A composite is a call of a model-local function in the domain
    `byoc.<target>`, whose body defines it in standard operators. `composites` holds their names in order
    of execution.

    `inputs`, `outputs` and `constants` are the contracts of the boundary tensors and of the stored
    tensors: name, dtype and shape, layout, quantization, and the side that converts. `samples_file` is
    where `samples` reads from, None where there are none.
    """

    name: str
    target: str
    path: Path
    inputs: tuple[TensorContract, ...]
    outputs: tuple[TensorContract, ...]
    composites: tuple[str, ...] = ()
    constants: tuple[TensorContract, ...] = ()
    samples_file: Path | None = None

    def load(
        self,
        fold: bool = False,
        inline: bool = False,
        *,
        opset: int | None = None,
        ir_version: int | None = None,
        wants: Sequence[Want] = (),
    ) -> onnx.ModelProto:
        """Return the model with all its constants in memory.

        With `inline`, each composite is replaced by its body, which leaves standard operators only. With
        `fold`, nodes with only constant inputs are computed, which leaves the nodes that the rules
        accepted. `opset` and `ir_version` are what a compiler reads: the model is converted by ONNX's
        version converter, which implies `inline`, as `wants` does, the forms that its importer reads:
        `zero_points` are written out, as are `inputs` that are left out in front of others, `constants`
        are initializers, and there is no `identity` but one that gives an output. Raises CompileError,
        with the node where it is known, for what cannot be said in these versions and forms.
        """
        converted = opset is not None or ir_version is not None or bool(wants)
        model = onnx.load(self.path, load_external_data=False)
        if (inline or converted) and model.functions:
            model = onnx.inliner.inline_local_functions(
                model
            )  # protobuf allows 2 GB: so without the weights
        embed_external_data(walk_tensors(model), self.path.parent)
        if fold:
            model = fold_constants(model)
        try:
            if opset is not None:
                convert_opset(model, opset)
            if ir_version is not None:
                convert_ir_version(model, ir_version)
        except ConversionError as error:
            raise CompileError(str(error), error.nodes) from None
        if wants:  # few ask for forms, which need the inference of types
            from byoc.codegen._region_model import write_wanted_forms  # noqa: PLC0415

            write_wanted_forms(model, wants)
        return model

    def graph(self, fold: bool = False, inline: bool = False) -> gs.Graph:
        """Return the model as an onnx_graphsurgeon Graph, which the caller may change and export.

        `fold` and `inline` are as in `load`; all constants are in memory. A composite is a node whose
        `op` names a function of the graph; `operations` gives its name in the rule file. graphsurgeon
        drops metadata of nodes, and exports a constant of 4 bits only if its `values` were not read.
        """
        import onnx_graphsurgeon as gs  # noqa: PLC0415 - not loaded unless it is used

        return gs.import_onnx(self.load(fold, inline))

    def type(self, name: str) -> TensorType | None:
        """Return the dtype and shape of any tensor in the region, in ONNX's order of axes.

        Names are those of inputs, outputs, constants and `Operation`s, inner ones included. None for
        what is no tensor of the region, and where nothing states or implies the type.
        """
        known = self._find_type(name)
        if known is None and name in self._quantized_constants:
            value = self._quantized_constants[name]
            return TensorType(DTYPES[onnx.helper.np_dtype_to_tensor_dtype(value.dtype)], value.shape)
        return known

    def operations(
        self, fold: bool = True, boundary: bool = False, quantized: bool = False
    ) -> tuple[Operation, ...]:
        """Return the region's operations, in order of execution.

        With `fold`, nodes with only constant inputs become constants. Unless `boundary`, the nodes that
        undo byoc's conversions of layout and float type are left out, since the contracts state them:
        the first operations then read the `inner` tensors of the input contracts.

        With `quantized`, a DequantizeLinear is part of the operations that read it, and a QuantizeLinear
        of the operation that it follows, with the Relus and Clips between: `inputs` and `outputs` name
        the quantized tensors, weights and biases among them (`constant` gives the integers), and
        `input_quantization` and `output_quantization` say what they stand for. What stays between two
        operations in floating point is a tensor as any other. A QuantizeLinear that follows no operation
        is an operation with one input, as is a DequantizeLinear whose result leaves the region.
        """
        model = self.model
        if fold:
            model = self._quantized_model if quantized else self._folded_model
        skipped = () if boundary else (self.inputs, self.outputs)
        found = read_operations(model, f"byoc.{self.target}", self.type, *skipped)
        if not quantized:
            return found
        left = [each.name if boundary else each.inner for each in self.outputs]
        return quantize_operations(found, left, self._find_constant)

    def arena(self, alignment: int = 64) -> Arena:
        """Plan the region's activation memory: an order of operations and an offset for each tensor.

        The arena is as small as the planner finds. Sizes and offsets are multiples of `alignment` bytes.
        Views (Reshape, Flatten, Squeeze, Identity, ...) share the bytes of their operand, and
        elementwise operators overwrite an operand that is not read again. This holds for ONNX's dense
        row-major layout; a target with packed layouts, where some Reshape is a copy, plans with
        `byoc.memory`, as `codegens/dla` does. Raises InputError when a tensor's extents are not known.
        """
        from byoc.codegen._region_model import plan_arena  # noqa: PLC0415 - it loads scipy

        return plan_arena(self._folded_model, self.inputs, self.outputs, self.name, alignment)

    def samples(self) -> Sequence[Mapping[str, AnyArray]]:
        """Return the user's samples as they reach the region: arrays by the names of `inputs`.

        They are there for codegens whose class says `calibrates`, where the user gave data (`--inputs`,
        or a folder as `--data`) and the region is in the main graph; else there are none.
        """
        if self.samples_file is None:
            return ()
        with np.load(self.samples_file) as stored:
            arrays = [stored[name] for name in stored.files]
        dtypes = [to_numpy_dtype(each.type.dtype) for each in self.inputs]
        rows = (arrays[i : i + len(dtypes)] for i in range(0, len(arrays), len(dtypes)))
        return tuple(  # numpy stores what it does not know as bytes
            {
                each.name: value.view(dtype) if value.dtype.kind == "V" else value
                for each, value, dtype in zip(self.inputs, row, dtypes, strict=True)
            }
            for row in rows
        )

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        """The nodes of the model, in order of execution."""
        return self.model.graph.node

    def constant(self, name: str, layout: str | None = None) -> AnyArray:
        """Return a constant by name, with the dtype and packed layout of its contract.

        With `layout=""` it comes in ONNX's order of axes; with another one, `NHWC` for instance, an
        operand of images comes in that: of rank 4, broadcast along the same axes, whatever rank it has
        in the model. Only that tensor is read from disk. What nodes compute of constants alone is a
        constant, too, in ONNX's order of axes. Raises KeyError when the region has no such constant, and
        ValueError for a rank above 4 in a layout.
        """
        contract = next((each for each in self.constants if each.name == name), None)
        array = self._read_constant(name, contract)
        order = self._convolution_weights.get(name, "") if contract is not None else ""
        if layout is None:
            packed = contract.layout if contract is not None else ""
            return pack_weight(array, packed, order) if packed else array
        if not layout:
            return array
        if order and parse_layout(layout).plain_axes == WEIGHT:
            return pack_weight(array, layout, order)
        return pack_operand(array, parse_layout(layout))

    def _read_constant(self, name: str, contract: TensorContract | None) -> AnyArray:
        if contract is not None:
            return read_array(self._initializers[name], self.path.parent)
        for computed in (self._computed_constants, self._quantized_constants):
            if name in computed:
                return computed[name]
        there = ", ".join(each.name for each in self.constants) or "none"
        raise KeyError(f"{self.name} has no constant '{name}', it has: {there}")

    @cached_property
    def external_data(self) -> Mapping[str, ExternalData]:
        """The place of each large constant by name: a file beside the model, offset, length in bytes.

        It is for a codegen that says `refers_to_weights`: its artifacts read these bytes and hold no
        copy. Whenever a bundle's region is loaded, the file is beside it and has the bytes that it had.
        """
        known: dict[str, Path] = {}
        found = (
            (tensor.name, find_external_data(tensor, self.path.parent, known))
            for tensor in self.model.graph.initializer
        )
        return {name: data for name, data in found if data is not None}

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The model without its large constants, which stay on disk; do not change it."""
        return onnx.load(self.path, load_external_data=False)

    @property
    def open_model(self) -> onnx.ModelProto:
        """The model without its large constants, with no shape stated for its inputs and outputs.

        What the model states of shapes may be wrong, and onnxruntime would refuse what does not fit.
        """
        return open_shapes(self.model)

    @cached_property
    def _folded_model(self) -> onnx.ModelProto:
        """The model with nodes of only constant inputs folded; other large constants stay on disk."""
        return fold_region_model(self.model, self.path.parent)

    @cached_property
    def _quantized_model(self) -> onnx.ModelProto:
        """The same, but the constants of DequantizeLinear stay integers."""
        return fold_region_model(self.model, self.path.parent, self._find_type)

    @cached_property
    def _computed_constants(self) -> Mapping[str, AnyArray]:
        """The results of nodes with only constant inputs, by name."""
        return self._list_computed(self._folded_model)

    @cached_property
    def _quantized_constants(self) -> Mapping[str, AnyArray]:
        """The same of those before a DequantizeLinear."""
        return self._list_computed(self._quantized_model)

    def _list_computed(self, folded: onnx.ModelProto) -> Mapping[str, AnyArray]:
        if folded is self.model:
            return {}
        return {
            tensor.name: onnx.numpy_helper.to_array(tensor)
            for tensor in folded.graph.initializer
            if tensor.name not in self._initializers
        }

    def _find_constant(self, name: str) -> AnyArray | None:
        """Return a constant by name, in ONNX's layout, None for a tensor that is computed."""
        if name in self._initializers:
            return read_array(self._initializers[name], self.path.parent)
        return self._quantized_constants.get(name)

    @cached_property
    def _stated_types(self) -> Mapping[str, TensorType]:
        return read_tensor_types(get_stated_types(self.model))

    def _find_type(self, name: str) -> TensorType | None:
        """Return the type of a tensor of the model, those inside composites included."""
        stated = self._stated_types.get(name)
        if not name or (stated is not None and stated.shape is not None):
            return stated
        return self._inferred_types.get(name, stated)

    @cached_property
    def _inferred_types(self) -> Mapping[str, TensorType]:
        return infer_all_types(self.model, f"byoc.{self.target}")

    @cached_property
    def _initializers(self) -> Mapping[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def _convolution_weights(self) -> Mapping[str, str]:
        return find_convolution_weights(self.model)


# Reading of a region's model from disk as a `Region`.


def read_region(
    path: Path,
    name: str,
    target: str,
    contracts: RegionContracts | None = None,
    weights: TensorLayout | None = None,
) -> Region:
    """Read the region whose model is at a path.

    Without `contracts` they are derived from the model, with `weights` as the layout of its convolution
    weights; the user's names of converted tensors are then unknown.
    """
    proto = onnx.load(path, load_external_data=False)
    found = contracts or _read_contracts(proto, path.parent, weights)
    return Region(
        name=name,
        target=target,
        path=path,
        inputs=found.inputs,
        outputs=found.outputs,
        composites=tuple(node.op_type for node in proto.graph.node if node.domain == f"byoc.{target}"),
        constants=found.constants,
    )


def read_stored_contracts(model: onnx.ModelProto, folder: Path, layout: str) -> RegionContracts:
    """Return the contracts that a region's model states; `folder` holds its external data.

    `layout` is that of its convolution weights, such as OHWI, empty for ONNX's. The user's names of
    tensors are those of the model. Raises ValueError for what is no layout, and InputError for a node
    that no runtime executes.
    """
    return _read_contracts(model, folder, parse_layout(layout) if layout else None)


def find_disagreement(stated: RegionContracts, found: RegionContracts) -> str:
    """Return the first tensor on which stated contracts and a region's model disagree; "" for none.

    `found` are those of its model (`read_stored_contracts`).
    """
    for ours, theirs in (
        (stated.inputs, found.inputs),
        (stated.outputs, found.outputs),
        (stated.constants, found.constants),
    ):
        if [each.name for each in ours] != [each.name for each in theirs]:
            names = {each.name for each in ours} ^ {each.name for each in theirs}
            return min(names, default=theirs[0].name if theirs else "")
        for one, other in zip(ours, theirs, strict=True):
            if one.inner != other.inner or not one.view.is_same(other.view):
                return one.name
    return ""


def _read_contracts(
    proto: onnx.ModelProto, folder: Path, weights: TensorLayout | None
) -> RegionContracts:
    index = GraphIndex.of_model(proto)
    found = read_region_contracts(proto, {}, folder, weights, index)
    if all(contract.layout != UNKNOWN_LAYOUT for contract in (*found.inputs, *found.outputs)):
        return found
    # Types of inner tensors may be missing: infer them.
    return read_region_contracts(proto, {}, folder, weights)


# A region's own ONNX on onnxruntime, whatever the model states of shapes.


class RegionSession:
    """An executor that runs a region's model on onnxruntime; its tensors may be bound to arrays.

    Stated shapes may be wrong, so the model is opened without them. onnxruntime expands some operators
    only where it knows shapes (LinearAttention, CausalConvWithState); where it cannot load or run the
    model without, it does so with the stated ones.
    """

    def __init__(self, region: Region) -> None:
        """Open the region's model. Raises InputError where that fails, and MissingRuntimeError."""
        self._region = region
        try:
            self._session = open_session(region.open_model, region.path.parent)
        except InputError:
            self._session = open_session(region.model, region.path.parent)
            self._run = self._run_stated
        else:
            self._run = session_runner(self._session)

    def __call__(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs by name. Raises InputError where onnxruntime refuses to run."""
        try:
            return self._run(inputs)
        except InputError as error:
            try:
                return self._run_stated(inputs)
            except InputError:
                raise error from None

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Executor | None:
        """Return an executor that reads and writes some tensors where they lie; see `bind_session`."""
        return bind_session(self._session, inputs, outputs)

    @cached_property
    def _run_stated(self) -> Executor:
        return session_runner(open_session(self._region.model, self._region.path.parent))


def compute_tensors(region: Region, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a region's model computes of some inputs on onnxruntime, by the tensors' names.

    What composites have inside is not among them. Raises as `open_region_session` and a run of it.
    """
    exposed = open_shapes(region.model)
    outputs = {value.name for value in exposed.graph.output}
    made = dict.fromkeys(name for node in exposed.graph.node for name in node.output if name)
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made if name not in outputs)
    return dict(run_session(open_session(exposed, region.path.parent), inputs))


def profile_operators(region: Region, inputs: Mapping[str, Any]) -> list[OperatorTime]:
    """Return the seconds that a run of a region's model spends on each operator on onnxruntime.

    What onnxruntime fused or added has names of its own, and no nodes. Raises as `compute_tensors`.
    """
    inlined = onnx.inliner.inline_local_functions(region.model)
    times = profile_nodes(open_shapes(inlined), region.path.parent, inputs)
    nodes = resolve_node_names(region, list(times))
    known = {name for node in region.nodes for name in (node.name, *node.output)}
    return [
        OperatorTime((node,) if node in known else (), seconds, name)
        for (name, seconds), node in zip(times.items(), nodes, strict=True)
    ]


def open_region_session(region: Region) -> RegionSession:
    """Return an executor that runs a region's model on onnxruntime.

    Raises InputError where onnxruntime cannot load it, and MissingRuntimeError without onnxruntime.
    """
    return RegionSession(region)
