"""The graph that a standalone program runs, and the operands and texts of its calls in C."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, ValueInfoProto, numpy_helper
from onnx.helper import make_tensor_value_info, make_value_info, np_dtype_to_tensor_dtype
from onnx.inliner import inline_local_functions, inline_selected_functions

from byoc._dataclasses import dataclass, replace
from byoc.bundle import Bundle
from byoc.codegen import Artifact, Region
from byoc.errors import InputError
from byoc.memory.reading import CONVENTIONS, TensorSizes
from byoc.model import (
    GraphIndex,
    Model,
    copy_without,
    describe_node,
    freeze_initializers,
    is_onnx,
    prepare_model,
    read_array,
    read_recorded_dimensions,
    to_numpy_dtype,
)
from byoc.passes import clean_model, list_clean_passes
from byoc.samples import model_samples, sample_inputs
from byoc.standalone._integer_graph import find_requantized, prefer_integers
from byoc.standalone._written_operators import put_steps_first, write_out_operators
from byoc.verification import (
    Difference,
    NoiseGauge,
    PlainModel,
    find_quantized_tensors,
    make_exact_products,
    open_original,
    open_plain,
    open_reference,
)
from byoc.zoo import ZOO, Source, find_samples, load_model

# Calls of C functions: their operands, what a call needs beside them, and nodes that have none.

Array = NDArray[Any]

Operand = str | Array | None
"""A tensor by name, or a constant that is no tensor of the graph; None is a null pointer."""

_MOST_JUDGED = 64  # nodes that onnx.reference runs where onnxruntime does not: it is slow

SCRATCH = "\0scratch"
"""The operand that points to a step's scratch memory; no tensor has this name."""


class UnsupportedNodeError(Exception):
    """A node for which there is no C; the message is the reason."""


@dataclass(frozen=True)
class Call:
    """A call of a C function by one step of a program.

    `operands` are the pointers that it takes, in order. `structure` is the initializer of a constant
    structure of type `kind`, whose address comes first; empty where there is none. `scratch` are bytes
    of memory that hold nothing before and after the call.
    """

    function: str
    operands: tuple[Operand, ...]
    kind: str = ""
    structure: str = ""
    scratch: int = 0


# Text of C: files and templates of the folder `source`, strings, numbers and comments.

_UNSAFE = re.compile(r"[^A-Za-z0-9_.:;,<>()\[\]=+' -]")
_PLACE = re.compile(r"@(\w+)@")


def read_source(name: str) -> bytes:
    """Return a file of the folder `source`."""
    return (Path(str(files("byoc.standalone"))) / "source" / name).read_bytes()


def fill_template(name: str, values: Mapping[str, object]) -> str:
    """Return a template with a value in each place `@NAME@`. Raises KeyError for one without a value."""
    return _PLACE.sub(lambda match: str(values[match[1]]), read_source(name).decode())


def format_float(value: float) -> str:
    """Return a 32-bit float as a constant of C; nine digits tell all of them apart."""
    if value != value:  # noqa: PLR0124 - NaN
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    digits = f"{value:.9g}"
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"


def quote(text: str) -> str:
    """Return a text as a string of C; other characters than printable ones of ASCII as escapes."""
    made = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{made}"'


def describe_in_comment(text: str) -> str:
    """Return a text without what could end a comment or a line."""
    return _UNSAFE.sub("_", text)


CONVENTION = replace(CONVENTIONS["C"], packed=False)
"""How the memory of a program is counted: elements of less than a byte have one each."""


@dataclass(frozen=True, eq=False)
class DrivenRegion:
    """A region of a bundle: its codegen, what was compiled, and the file that holds it."""

    codegen: str
    region: Region
    artifact: Artifact


@dataclass(frozen=True, eq=False)
class ProgramGraph:
    """A graph to make a program of, and the values of its tensors that are known before it runs.

    `regions` are those that its nodes call, by name, and `domains` the domains of such calls. `sample`
    are inputs, and `expected` the outputs that onnxruntime computes from them, without optimizations or
    the rounding to int8 that `accuracy_level` lets it do, or onnx.reference where that is followed.
    `noise` has, by output, the differences of right results: of floats by how onnxruntime evaluates the
    last operator and by the quantization of activations; of these and of quantized integers by how
    values in the middle between two integers are rounded.
    """

    index: GraphIndex
    source: str
    folder: Path | None
    regions: Mapping[str, DrivenRegion]
    domains: frozenset[str]
    sample: Mapping[str, Array]
    expected: Mapping[str, Array]
    computed: Mapping[str, Array]
    noise: Mapping[str, tuple[Difference, ...]]
    bundle: Bundle | None = None
    """Where the graph is from, kept since its folder may be temporary; None for a model."""
    requantized: frozenset[str] = frozenset()
    """The results of operators of integers, which `index` has as operators between QDQ nodes."""

    @property
    def display_name(self) -> str:
        """The name of the model in what is written: without folders, which differ elsewhere."""
        return self.source if self.source.startswith(ZOO) else Path(self.source).name

    @cached_property
    def sizes(self) -> TensorSizes:
        """The sizes of tensors, and which of them are known before a run."""
        return TensorSizes(self.index, self.source, CONVENTION.packed)

    def follow_definition(self, numbers: Collection[int]) -> "ProgramGraph | None":
        """Return the graph with the outputs that ONNX defines; onnxruntime makes others of some nodes.

        onnx.reference runs these and onnxruntime the rest; None where one of them does not run.
        """
        if self.regions:
            return None
        known = dict(self.sample)
        try:
            for number in sorted(numbers):
                node = self.index.nodes[number]
                given = self._run_others(known, [*filter(None, node.input)], numbers)
                inputs = [
                    make_tensor_value_info(name, np_dtype_to_tensor_dtype(value.dtype), value.shape)
                    for name, value in given.items()
                ]
                outputs = [ValueInfoProto(name=name) for name in node.output if name]
                step = copy_without(self.index.proto, "node", "input", "output", "initializer")
                step.graph.node.append(node)
                step.graph.input.extend(inputs)
                step.graph.output.extend(outputs)
                known |= self._narrow(open_reference(step).run(given))
            made = self._run_others(known, self.index.outputs, numbers)
        except InputError:
            return None
        return replace(self, expected=_read_outputs(self, made, widens=True))

    def _narrow(self, made: Mapping[str, Any]) -> dict[str, Array]:
        """Return results in the dtypes stated: numbers of Python make floats of 64 in onnx.reference."""
        return {
            name: np.asarray(value).astype(to_numpy_dtype(self.index.types[name].dtype))
            for name, value in made.items()
        }

    def _run_others(
        self, known: Mapping[str, Array], wanted: Collection[str], left_out: Collection[int]
    ) -> dict[str, Array]:
        """Return tensors by onnxruntime, which does not run some nodes: their results are known."""
        index, stored = self.index, self.index.stored_tensors
        found = {name: known[name] for name in wanted if name in known}
        found |= {name: read_array(stored[name], self.folder) for name in wanted if name in stored}
        waiting = [name for name in wanted if name not in found]
        numbers, read = set[int](), dict[str, None]()
        while waiting:
            name = waiting.pop()
            number = index.producers.get(name)
            if name in known or number is None:
                read[name] = None
            elif number not in numbers and number not in left_out:
                numbers.add(number)
                waiting += index.reads[number]
        if not numbers:
            return found
        proto = copy_without(index.proto, "node", "input", "output")
        proto.graph.node.extend(index.nodes[number] for number in sorted(numbers))
        given = {name: known[name] for name in read if name in known}
        proto.graph.input.extend(make_value_info(name, index.type_protos[name]) for name in given)
        names = [name for name in wanted if name not in found]
        proto.graph.output.extend(ValueInfoProto(name=name) for name in names)
        made = open_plain(proto, self.folder, lambda: proto).run(given)
        return found | {name: np.asarray(made[name]) for name in names}

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor is known before a run."""
        return self.sizes.is_constant(name)

    def get_constant(self, name: str) -> Array:
        """Return the value of a tensor that is known before a run."""
        stored = self.index.stored_tensors.get(name)
        return self.computed[name] if stored is None else read_array(stored, self.folder)

    def get_dtype(self, name: str) -> str:
        """Return the dtype of a tensor. Raises InputError if it is not known."""
        self.sizes.count_bytes(name)
        return self.index.types[name].dtype

    def get_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor. Raises InputError if it is not known."""
        self.sizes.count_bytes(name)
        return tuple(int(extent) for extent in self.index.types[name].shape or ())  # type: ignore[arg-type]

    def is_region(self, number: int) -> bool:
        """Return whether a node calls a region."""
        return self.index.nodes[number].domain in self.domains


def read_model_graph(
    source: Source, dims: Mapping[str, int | str] | None, shapes: Mapping[str, Sequence[Any]] | None
) -> ProgramGraph:
    """Load and clean a model. Raises InputError for a wrong one, and for an extent that is not known."""
    loaded = freeze_initializers(load_model(source, dims, shapes))
    model = put_steps_first(clean_model(loaded, list_clean_passes(False, True)).model)
    steps = prefer_integers(_write_out(model))
    return _make_graph(model, steps, model.source, {}, frozenset())


def read_bundle_graph(bundle: Bundle, on_host: bool = False) -> ProgramGraph:
    """Return the partitioned graph of a bundle, with the zoo's sample where a model of the zoo was cut.

    Regions that compute what their models do (`model_driver`) are nodes of the host in it, and with
    `on_host` all regions.
    """
    inlined = {
        entry.target
        for entry in bundle.variant.regions
        if on_host or bundle.codegens.needs_model_driver(entry.codegen)
    }
    model = replace(
        load_model(bundle.folder / bundle.variant.model), make_samples=_find_original_samples(bundle)
    )
    if inlined:
        model = _inline_regions(model, {f"byoc.{target}" for target in inlined})
    regions = {
        region.name: DrivenRegion(codegen, region, artifact)
        for codegen, region, artifact in bundle.regions()
        if region.target not in inlined
    }
    domains = frozenset(f"byoc.{name}" for name in bundle.manifest.targets if name not in inlined)
    model = put_steps_first(freeze_initializers(model))
    steps = prefer_integers(_write_out(model, domains))
    graph = _make_graph(model, steps, str(bundle.display_path), regions, domains)
    return replace(graph, bundle=bundle)


def _find_original_samples(bundle: Bundle) -> Callable[[int], Mapping[str, Any]] | None:
    """Return a function that makes the zoo's inputs of a bundle's original, None where it has none."""
    asked = bundle.manifest.asked
    try:
        given = read_recorded_dimensions(asked, bundle.variant.variant)
    except ValueError as error:
        raise InputError(f"{bundle.display_path}: in the manifest asked.{error}") from None
    return find_samples(str(asked.get("model", "")), given)


def _inline_regions(model: Model, domains: Collection[str]) -> Model:
    """Return a model whose calls of functions in some domains are the functions' nodes, cleaned."""
    functions = [(each.domain, each.name) for each in model.proto.functions if each.domain in domains]
    proto = inline_selected_functions(model.proto, functions)
    prepared = prepare_model(proto, model.source, model.folder)
    found = clean_model(prepared, list_clean_passes(False, True)).model
    return replace(found, make_samples=model.make_samples)


def read_region_graph(region: Region) -> ProgramGraph:
    """Return the graph of a region's own model, without a sample.

    Raises InputError for an extent that is not known.
    """
    proto = onnx.load(region.path, load_external_data=False)
    if proto.functions:
        proto = inline_local_functions(proto)
    prepared = freeze_initializers(prepare_model(proto, region.name, region.path.parent))
    cleaned = put_steps_first(clean_model(prepared, list_clean_passes(False, True)).model)
    model = prefer_integers(_write_out(cleaned))
    _require_extents(model.index, region.name)
    graph = ProgramGraph(model.index, region.name, model.folder, {}, frozenset(), {}, {}, {}, {})
    return replace(graph, computed=_compute_constants(graph), requantized=find_requantized(cleaned))


def _compute_constants(graph: ProgramGraph) -> dict[str, Array]:
    """Return the values of tensors that a run reads and nodes compute before it."""
    return _compute_nodes(graph.index, graph.folder, graph.sizes.constant_nodes, _find_computed(graph))


def _compute_nodes(
    index: GraphIndex, folder: Path | None, numbers: Collection[int], wanted: Sequence[str]
) -> dict[str, Array]:
    """Return the values of tensors that nodes compute before a run.

    Of other tensors such nodes read the extents alone, so these are zeros here.
    """
    if not wanted:
        return {}
    proto = copy_without(index.proto, "node", "input", "output")
    proto.graph.node.extend(index.nodes[number] for number in sorted(numbers))
    proto.graph.output.extend(ValueInfoProto(name=name) for name in wanted)
    made = {name for number in numbers for name in index.nodes[number].output}
    given = {}
    for name in dict.fromkeys(name for number in sorted(numbers) for name in index.reads[number]):
        if name not in made and name not in index.stored_tensors:
            kind = index.types[name]
            proto.graph.input.append(make_value_info(name, index.type_protos[name]))
            shape = [int(extent) for extent in kind.shape or ()]  # type: ignore[arg-type]  # known
            given[name] = np.zeros(shape, to_numpy_dtype(kind.dtype))
    found = open_plain(proto, folder, lambda: proto).run(given)
    return {name: np.asarray(found[name]) for name in wanted}


def _write_out(model: Model, domains: Collection[str] = ()) -> Model:
    """Return a model of operators that have functions; each may tell the extents of others."""
    while True:
        before, model = model, _store_known(model)
        model = write_out_operators(model, domains)
        if model is before:
            return model


def _store_known(model: Model) -> Model:
    """Return a model without tensors of unknown extents, as far as nodes compute these before a run.

    Such nodes are replaced by what they make: a Range of stored limits, and shapes that are computed.
    """
    while _find_open(model.index):
        index, known, made = model.index, set[int](), set[str]()
        stored = index.stored_tensors
        constant = TensorSizes(index, model.source).constant_nodes
        for number in sorted(constant):
            others = (name for name in index.reads[number] if name not in made and name not in stored)
            if all(name in index.types and index.types[name].elements is not None for name in others):
                known.add(number)
                made.update(index.nodes[number].output)
        read = {name for i in range(len(index.nodes)) if i not in known for name in index.reads[i]}
        wanted = sorted(name for name in made if name in read or name in index.outputs)
        if not wanted:
            return model
        values = _compute_nodes(index, model.folder, known, wanted)
        proto = copy_without(model.proto, "node")
        proto.graph.node.extend(n for i, n in enumerate(index.nodes) if i not in known)
        proto.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in values.items())
        prepared = prepare_model(proto, model.source, model.folder)
        model = replace(prepared, make_samples=model.make_samples)
    return model


def _find_open(index: GraphIndex) -> list[str]:
    """Return the tensors whose extents are not all known."""
    made = (name for node in index.nodes for name in node.output if name)
    return [name for name in made if name in index.types and index.types[name].elements is None]


def _make_graph(
    model: Model,
    steps: Model,
    source: str,
    regions: Mapping[str, DrivenRegion],
    domains: frozenset[str],
) -> ProgramGraph:
    """Return the graph of `steps`, with the values that the model itself makes, of which they are."""
    index = steps.index
    _require_numbers(index, source)
    _require_extents(index, source)
    graph = ProgramGraph(index, source, model.folder, regions, domains, {}, {}, {}, {})
    computed = _compute_constants(graph)
    exact = make_exact_products(model.proto) or model.proto
    judged = _judge(model, exact, index, source, computed)
    sample, expected = judged.sample, judged.expected
    noise = dict[str, tuple[Difference, ...]]()
    quantized = find_quantized_tensors(model.proto)
    if judged.by_onnxruntime:  # the noise is onnxruntime's
        gauge = NoiseGauge(exact, model.folder, sample, expected)
        for name, value in expected.items():
            if value.dtype.kind == "f":
                floats = (gauge.measure_runtime(name), *gauge.measure_quantized(name).values())
                noise[name] = (*floats, gauge.measure_ties(name))
            elif name in quantized:
                noise[name] = (gauge.measure_ties(name),)
    return replace(
        graph,
        sample=sample,
        expected=expected,
        computed=computed,
        noise=noise,
        requantized=find_requantized(model),
    )


@dataclass(frozen=True, eq=False)
class _Judged:
    """Inputs of a model, what was computed of them, and whether onnxruntime did."""

    sample: dict[str, Array]
    expected: dict[str, Array]
    by_onnxruntime: bool


def _judge(
    model: Model, exact: ModelProto, index: GraphIndex, source: str, computed: Mapping[str, Array]
) -> _Judged:
    """Run a model on a sample: onnxruntime does, or onnx.reference a few nodes that it cannot run.

    Raises InputError where neither runs the model.
    """
    plain = open_original(exact, model)

    def run(judge: PlainModel) -> _Judged:
        # Without a kernel of onnxruntime's no inputs can be tried: those of known extents are taken.
        made = sample_inputs(index) if judge.judge else model_samples(model)
        sample = _take_sample(model, made)
        expected = _read_outputs(model, judge.run(sample), widens=bool(judge.judge))
        for name, value in (expected | dict(computed)).items():
            known = index.types.get(name)
            if known is not None and known.elements is not None and known.shape != value.shape:
                whose = judge.judge.partition(",")[0] or "onnxruntime"
                raise InputError(
                    f"{source}: '{name}' is {known}, but {whose} made it {list(value.shape)}"
                )
        return _Judged(sample, expected, not judge.judge)

    try:
        return run(plain)
    except InputError:
        if plain.judge or len(model.index.nodes) > _MOST_JUDGED:
            raise
        try:
            return run(open_reference(copy_without(exact)))
        except InputError:
            pass
        raise


def _require_numbers(index: GraphIndex, source: str) -> None:
    """Raise InputError for operators that read other things than numbers, before a judge reads them."""
    for node in index.nodes:
        if is_onnx(node) and node.op_type == "ImageDecoder":
            raise InputError(
                f"{source}: {describe_node(node)} has no function in C: files of images are not decoded"
            )


def _require_extents(index: GraphIndex, source: str) -> None:
    """Raise InputError for a tensor whose extents are not all known."""
    for name in _find_open(index):
        TensorSizes(index, source).count_bytes(name)


def _find_computed(graph: ProgramGraph) -> list[str]:
    """Return the tensors that a run reads, or gives back, and that nodes compute before it."""
    index, before = graph.index, graph.sizes.constant_nodes
    read = [name for i in range(len(index.nodes)) if i not in before for name in index.reads[i]]
    names = dict.fromkeys((*read, *index.outputs))
    return [name for name in names if index.producers.get(name) in before]


def _take_sample(model: Model, made: Mapping[str, Any]) -> dict[str, Array]:
    """Return the values of inputs that are not stored, dense."""
    stored = {tensor.name for tensor in model.proto.graph.initializer}
    return {
        name: np.asarray(made[name], order="C")
        for name in model.index.inputs
        if name in made and name not in stored
    }


def _read_outputs(
    graph: Model | ProgramGraph, made: Mapping[str, Any], widens: bool
) -> dict[str, Array]:
    """Return the outputs of a graph in order, those that are stored among them.

    With `widens` floats may have more bits than stated: numbers of Python make them of 64 in
    onnx.reference.
    """
    index, outputs = graph.index, list(graph.index.outputs)
    stored = index.stored_tensors
    found = {name: np.asarray(value) for name, value in made.items()}
    found |= {name: read_array(stored[name], graph.folder) for name in outputs if name in stored}
    for name in outputs:
        kind = index.types.get(name)
        if kind is not None and widens and found[name].dtype == np.float64:
            found[name] = found[name].astype(to_numpy_dtype(kind.dtype))
        if kind is None or found[name].dtype != to_numpy_dtype(kind.dtype):
            raise InputError(f"{graph.source}: the output '{name}' is no tensor of numbers")
    return {name: found[name] for name in outputs}  # in the order that callers know
