"""The zoo's catalog: the models of all providers by name."""

import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import EntryPoint
from math import sqrt
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from byoc._dataclasses import dataclass
from byoc.errors import InputError, suggest_nearest
from byoc.support import StrictModel, find_entry_points, get_distribution, read_yaml
from byoc.zoo._classic_models import IR_VERSION, ClassicModels
from byoc.zoo._decoder_families import GeneratedDecoders
from byoc.zoo._sample_inputs import (
    InputSpec,
    UniformSpread,
    derive_seed,
    draw_uniform,
    make_inputs,
    make_photo,
)
from byoc.zoo._trained_models import (
    FetchResult,
    ModelFolder,
    OnDisk,
    Provider,
    TrainedModels,
    ZooEntry,
    read_folders,
    read_trained_table,
)
from byoc.zoo._trained_models import fetch_models as fetch_trained

# Modern structures, exported once (tools/export_structures) and shipped with a seed for weights.
#
# A file of `structures/` is an ordinary model, compressed. Each large weight has a name, a type and
# dimensions but no values: its metadata give the centre and the spread of the values. They are
# drawn here, seeded by the names of the model and of the weight.

_FOLDER = Path(__file__).parent / "structures"


class IndexedStructure(StrictModel):
    """One structure of the index; `nodes` counts those of bodies as well, but no Constant."""

    family: str
    source: str
    licence: str
    nodes: int
    inputs: Mapping[str, InputSpec]


class _StructureIndex(StrictModel):
    structures: Mapping[str, IndexedStructure]


class ExportedStructures:
    """Structures from torchvision, timm and transformers, with seeded random weights."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return them by name."""
        return tuple(
            ZooEntry(
                name=name,
                family=structure.family,
                source=structure.source,
                licence=structure.licence,
                weights="random, seeded",
                nodes=structure.nodes,
            )
            for name, structure in _read_structures().items()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Make a model: float32, batch 1, seeded random weights, the same on every machine."""
        packed = (_FOLDER / f"{name}.onnx.xz").read_bytes()
        model = onnx.load_from_string(lzma.decompress(packed))
        model.doc_string = f"{name}: an exported structure with seeded random weights"
        for tensor in model.graph.initializer:
            if tensor.metadata_props:
                _fill_tensor(tensor, name)
        return model

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return an array for each input: images, token ids of the vocabulary, masks of ones."""
        return make_inputs(_read_structures()[name].inputs, seed)


def _fill_tensor(tensor: TensorProto, model: str) -> None:
    """Draw the values of a stripped tensor, and remove the metadata that describe them."""
    note = {entry.key: float(entry.value) for entry in tensor.metadata_props}
    spread = UniformSpread(note["centre"], note["reach"])
    values = draw_uniform(derive_seed(model, tensor.name), tuple(tensor.dims), spread)
    tensor.raw_data = values.astype("<f4", copy=False).tobytes()
    del tensor.metadata_props[:]


@cache
def _read_structures() -> Mapping[str, IndexedStructure]:
    """Return the structures of the index, sorted by name."""
    return dict(sorted(read_yaml(_FOLDER / "index.yaml", _StructureIndex).structures.items()))


# Generated transformers of up to 100,000 nodes.
#
# Layers are of the usual kind (normalization first; Xiong et al., "On layer normalization in the
# transformer architecture", 2020), written in basic operators, so that one has 33 nodes. They use a
# few sets of weights in turn: the model stays small, and exchanging two neighbouring layers still
# changes the result.

_OPSET = 17  # the first with LayerNormalization
_TOKENS = 16  # of the model's fixed length
_HIDDEN = 64  # the width of the signal
_HEAD = 16  # width of one
_SETS = 4  # of weights, which layers take in turn

_NEAR_ZERO = UniformSpread(0.0, 0.1)
_NEAR_ONE = UniformSpread(1.0, 0.2)
_BRANCH = 0.3  # deviation of what a layer adds


def _make_transformer(layers: int) -> onnx.ModelProto:
    """Make an encoder of `33 * layers + 1` nodes, `[1, 16, 64]` in and out, float32, seeded weights."""
    model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="byoc")
    model.opset_import.add(domain="", version=_OPSET)
    graph = model.graph
    graph.name = f"transformer_{layers}"
    for value, name in ((graph.input.add(), "x"), (graph.output.add(), "y")):
        tensor = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, [1, _TOKENS, _HIDDEN])
        value.CopyFrom(onnx.ValueInfoProto(name=name, type=tensor))
    _add_constants(graph)
    signal = "x"
    for layer in range(layers):
        signal = _LayerWriter(graph, f"l{layer}", f"w{layer % min(_SETS, layers)}").add(signal)
    for weights in range(min(_SETS, layers)):
        _add_weights(graph, f"w{weights}")
    _add_normalization(graph, "y", signal, "final")
    for part, spread in (("scale", _NEAR_ONE), ("bias", _NEAR_ZERO)):
        _add_tensor(graph, f"final.{part}", (_HIDDEN,), spread)
    return model


class _LayerWriter:
    """Writer of one layer's nodes, each named after the tensor that it makes."""

    def __init__(self, graph: onnx.GraphProto, name: str, weights: str) -> None:
        self.graph, self.name, self.weights = graph, name, weights

    def add(self, signal: str) -> str:
        """Append the layer and return the name of its output."""
        middle = self._add_node("Add", "attended", signal, self._add_attention(signal))
        return self._add_node("Add", "out", middle, self._add_feed_forward(middle))

    def _add_attention(self, signal: str) -> str:
        x = _add_normalization(self.graph, f"{self.name}.norm1", signal, f"{self.weights}.norm1")
        q, k, v = (self._add_heads(part, x) for part in "qkv")
        scaled = self._add_node("Mul", "scaled", self._add_node("MatMul", "scores", q, k), "head_scale")
        heads = self._add_node("MatMul", "heads", self._add_node("Softmax", "weights", scaled), v)
        joined = self._add_node(
            "Reshape", "joined", self._add_transpose("turned", heads, [0, 2, 1, 3]), "joined"
        )
        return self._add_linear("o", joined)

    def _add_heads(self, part: str, x: str) -> str:
        split = self._add_node("Reshape", f"{part}_split", self._add_linear(part, x), "split")
        return self._add_transpose(f"{part}_heads", split, [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3])

    def _add_feed_forward(self, signal: str) -> str:
        x = _add_normalization(self.graph, f"{self.name}.norm2", signal, f"{self.weights}.norm2")
        wide = self._add_linear("up", x)
        error = self._add_node("Erf", "erf", self._add_node("Div", "over_root", wide, "root_of_two"))
        gate = self._add_node("Mul", "gated", wide, self._add_node("Add", "gate", error, "one"))
        return self._add_linear("down", self._add_node("Mul", "gelu", gate, "half"))

    def _add_linear(self, part: str, x: str) -> str:
        product = self._add_node("MatMul", f"{part}_product", x, f"{self.weights}.{part}.kernel")
        return self._add_node("Add", part, product, f"{self.weights}.{part}.bias")

    def _add_node(self, kind: str, name: str, *inputs: str) -> str:
        output = f"{self.name}.{name}"
        self.graph.node.add(op_type=kind, name=output, input=inputs, output=(output,))
        return output

    def _add_transpose(self, name: str, tensor: str, order: Sequence[int]) -> str:
        output = self._add_node("Transpose", name, tensor)
        kind = onnx.AttributeProto.INTS
        self.graph.node[-1].attribute.add(name="perm", type=kind, ints=order)
        return output


def _add_normalization(graph: onnx.GraphProto, name: str, tensor: str, weights: str) -> str:
    inputs = (tensor, f"{weights}.scale", f"{weights}.bias")
    graph.node.add(op_type="LayerNormalization", name=name, input=inputs, output=(name,))
    return name


def _add_constants(graph: onnx.GraphProto) -> None:
    shapes = {"split": [1, _TOKENS, _HIDDEN // _HEAD, _HEAD], "joined": [1, _TOKENS, _HIDDEN]}
    for name, shape in shapes.items():
        graph.initializer.add(
            name=name, data_type=TensorProto.INT64, dims=[len(shape)], int64_data=shape
        )
    numbers = {"head_scale": _HEAD**-0.5, "root_of_two": sqrt(2.0), "one": 1.0, "half": 0.5}
    for name, number in numbers.items():
        graph.initializer.add(name=name, data_type=TensorProto.FLOAT, float_data=[number])


def _add_weights(graph: onnx.GraphProto, name: str) -> None:
    for norm in ("norm1", "norm2"):
        _add_tensor(graph, f"{name}.{norm}.scale", (_HIDDEN,), _NEAR_ONE)
        _add_tensor(graph, f"{name}.{norm}.bias", (_HIDDEN,), _NEAR_ZERO)
    widths = dict.fromkeys("qkvo", (_HIDDEN, _HIDDEN))
    widths |= {"up": (_HIDDEN, 4 * _HIDDEN), "down": (4 * _HIDDEN, _HIDDEN)}
    for part, (rows, columns) in widths.items():
        deviation = _BRANCH if part in ("o", "down") else 1.0
        kernel = UniformSpread(0.0, deviation * sqrt(3.0 / rows))
        _add_tensor(graph, f"{name}.{part}.kernel", (rows, columns), kernel)
        _add_tensor(graph, f"{name}.{part}.bias", (columns,), _NEAR_ZERO)


def _add_tensor(
    graph: onnx.GraphProto, name: str, shape: tuple[int, ...], spread: UniformSpread
) -> None:
    values = draw_uniform(derive_seed("transformer", name), shape, spread)
    tensor = graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.raw_data = values.astype("<f4", copy=False).tobytes()


_LAYERS = {"transformer_1k": 31, "transformer_10k": 303, "transformer_100k": 3031}


class GeneratedTransformers:
    """Transformers of about 1,000, 10,000 and 100,000 nodes."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return them by size."""
        return tuple(
            ZooEntry(
                name=name,
                family="language encoder",
                source=f"generated, {layers} layers",
                licence="Apache-2.0",
                weights="random, seeded",
                nodes=33 * layers + 1,
            )
            for name, layers in _LAYERS.items()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Make a model of the depth that its name gives."""
        return _make_transformer(_LAYERS[name])

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return embedded tokens, `[1, 16, 64]`."""
        return {"x": make_photo(seed, 1, _TOKENS, _HIDDEN)[0]}


GROUP = "byoc.zoo"


@dataclass(frozen=True)
class _Offer:
    """A model with its provider and the provider's display name."""

    entry: ZooEntry
    provider: Provider
    provider_name: str


@dataclass(frozen=True)
class _Catalog:
    """All offers by name, and one sentence for each provider that failed to list its models."""

    offers: Mapping[str, Sequence[_Offer]]
    problems: Sequence[str]

    def find(self, name: str) -> _Offer:
        if name not in self.offers:
            broken = f"; could not look in {'; '.join(self.problems)}" if self.problems else ""
            raise InputError(
                f"zoo: no model named {name!r}{suggest_nearest(name, self.offers)}; "
                f"available: {', '.join(self.offers) or 'none'}{broken}"
            )
        offer, *others = self.offers[name]
        if others:
            both = " and ".join(found.provider_name for found in (offer, *others))
            raise InputError(f"zoo: {both} both bring a model named {name!r}")
        return offer


def list_entries() -> tuple[ZooEntry, ...]:
    """Return the models that `load` knows, sorted by name.

    A provider that fails is left out, see `find_problems`. Raises `InputError` when two bring
    the same name, and when the user's configuration is wrong.
    """
    catalog = _gather_catalog()
    return tuple(catalog.find(name).entry for name in catalog.offers)


def find_problems() -> tuple[str, ...]:
    """Return one sentence for each provider that failed to list its models."""
    return tuple(_gather_catalog().problems)


def load(name: str) -> onnx.ModelProto:
    """Return the model called `name`, ready to run; a trained one is fetched on first use.

    Raises `InputError` for an unknown name, for one that two providers bring, and when the model
    cannot be fetched or built.
    """
    return _gather_catalog().find(name).provider.load(name)


def sample_inputs(name: str, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return realistic inputs of the model by name; the same seed gives the same inputs.

    Raises `InputError` as `load` does.
    """
    return _gather_catalog().find(name).provider.sample_inputs(name, seed)


def brings_samples(name: str) -> bool:
    """Return whether a model is known and comes with realistic inputs, and not with made ones."""
    catalog = _gather_catalog()
    return name in catalog.offers and not isinstance(catalog.find(name).provider, ModelFolder)


def find_path(name: str) -> Path | None:
    """Return the model's file, with external data in the same folder; None if there is no file.

    Raises `InputError` as `load` does.
    """
    provider = _gather_catalog().find(name).provider
    return provider.path(name) if isinstance(provider, OnDisk) else None


def fetch(names: Sequence[str] | None = None) -> Iterator[FetchResult]:
    """Fetch trained models into the cache, all unless `names` says which, and yield each result.

    One that fails does not stop the others. Raises `InputError` for an unknown name, before
    anything is fetched; a model that needs no fetching is already there.
    """
    known = read_trained_table()
    wanted = list(known if names is None else dict.fromkeys(names))
    if others := [name for name in wanted if name not in known]:
        catalog = _gather_catalog()
        for name in others:
            catalog.find(name)
    here = (FetchResult(name, "already there") for name in others)
    fetched = fetch_trained(known[name] for name in wanted if name in known)
    return (result for results in (here, fetched) for result in results)


def _gather_catalog() -> _Catalog:
    offers: dict[str, list[_Offer]] = {}
    broken = []
    for called, make in _list_providers():
        try:
            provider = make()
            found = provider.entries()
        except Exception as error:  # a plug-in can fail in any way, and the others still count
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            broken.append(f"{called}: {kind}{error}")
            continue
        for entry in found:
            offers.setdefault(entry.name, []).append(_Offer(entry, provider, called))
    return _Catalog(dict(sorted(offers.items())), broken)


def _list_providers() -> Iterator[tuple[str, Callable[[], Provider]]]:
    yield "the light models", ClassicModels
    yield "the exported structures", ExportedStructures
    yield "the generated transformers", GeneratedTransformers
    yield "the generated decoders", GeneratedDecoders
    yield "the trained models", TrainedModels
    for folder in read_folders():
        yield f"the folder {folder.folder}", partial(_return_provider, folder)
    points = {point.value: point for point in find_entry_points(GROUP)}
    for point in sorted(points.values(), key=lambda point: point.name):
        yield f"{point.name} of {get_distribution(point)}", partial(_load_provider, point)


def _return_provider(provider: Provider) -> Provider:
    return provider


def _load_provider(point: EntryPoint) -> Provider:
    made: Provider = point.load()()
    return made
