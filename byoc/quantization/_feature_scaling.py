"""Features of transformers brought to like ranges: gains of normalizations moved into products.

A tensor in integers has one scale, and a few features of a transformer may be a hundred times as
large as the others. A feature is divided by a factor where it is made, by a matrix product, the gain
of a normalization, an embedding or a constant, and the weights that read it are multiplied by the
same factor. That changes only the last digits in floating point, and costs nothing (Xiao et al.,
"SmoothQuant", ICML 2023). The factors pass through sums, views, and, for features of values, through
an attention.

A normalization that reads a sum needs its features as they are, so no factor can pass. There the
integers may be those of the divided sum, and a Mul in floating point undoes the division
(`RescaledSums`), which takes time. In networks that normalize before each layer and not behind it,
all sums have the same features, so they are rescaled together. What enters such a sum and cannot be
made with its features divided, as behind a Gelu, is divided by a Mul.

The size of the factors is chosen for all tensors that share features, by the noise that follows from
uniform rounding errors, `step**2 / 12`, as in `_equalization`.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    EditableGraph,
    GraphIndex,
    InferenceResult,
    Model,
    build_node,
    copy_without,
    get_node_name,
    is_onnx,
    set_metadata,
)
from byoc.numerics import merge_groups
from byoc.quantization._calibrators import EIGHT_BIT_STEPS
from byoc.quantization._candidates import FLOAT_KEY
from byoc.quantization._channel_classes import ChannelStatistics, measure_channels
from byoc.quantization._feature_labels import (
    Absorber,
    Features,
    Product,
    find_features,
    is_normalized,
)
from byoc.quantization._weights import WEIGHTED, read_constant

Floats = NDArray[np.float64]

_WEIGHT_STEPS = 127  # of weights in int8, from 0 to the largest
_LEAST = 2.0**-10  # of the ranges of features to the widest
_SHARES = ((0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (1.0, 0.0), (0.5, 0.5), (0.25, 0.25))
"""The powers of a tensor's range and of the next weights' range that a factor is made of."""


@dataclass(eq=False)
class _Chooser:
    """Chooses the factors of classes, `[classes]`, by the noise of tensors in integers.

    `seen` has the statistics of the features of tensors, in the order of their labels.
    """

    model: Model
    features: Features
    seen: Mapping[str, ChannelStatistics]
    weights: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)
    noise: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The noise of the tensors with the features of a rescaled sum, without and with factors."""

    def choose(self) -> Floats:
        features = self.features
        names = [name for name in self.seen if features.is_free(name)]
        roots = merge_groups(
            len(features.fixed), [np.unique(features.labels[name]).tolist() for name in names]
        )
        groups: dict[int, list[str]] = {}
        for name in names:
            groups.setdefault(roots[int(features.labels[name].ravel()[0])], []).append(name)
        factors = np.ones(len(features.fixed))
        for members in groups.values():
            self._choose_group(members, factors)
        return factors

    def _choose_group(self, names: Sequence[str], factors: Floats) -> None:
        """Choose the factors of tensors that share features, in place."""
        features = self.features
        own = np.unique(np.concatenate([features.labels[name].ravel() for name in names]))
        own = own[~features.fixed[own]]
        inside = set(names)
        products = [each for each in features.products if each.read in inside]
        plain = least = self._estimate(names, products, factors)
        kept = factors[own]
        columns = self._find_weight_ranges(products)[own]
        for name in names:
            ranges = np.ones(len(factors))
            reach = self.seen[name].reach
            if not reach.max(initial=0.0) > 0:
                continue
            relative = np.maximum(reach / reach.max(), _LEAST)
            ranges[features.labels[name].ravel()] = relative
            for by_range, by_weights in _SHARES:
                factors[own] = ranges[own] ** by_range / columns**by_weights
                noise = self._estimate(names, products, factors)
                if noise < least * (1 - 1e-6):
                    least, kept = noise, factors[own]
        factors[own] = kept
        for name in inside.intersection(features.rescaled):
            self.noise[name] = plain, least

    def _find_weight_ranges(self, products: Sequence[Product]) -> Floats:
        """Return the range of the weights that read each class, relative to the widest, `[classes]`."""
        found = np.zeros(len(self.features.fixed))
        for each in products:
            reach = self._read_weights(each)[0].max(axis=1)
            labels = np.broadcast_to(self.features.labels[each.read].ravel(), reach.shape)
            np.maximum.at(found, labels, reach / max(float(reach.max()), 1e-30))
        return np.where(found > 0, np.maximum(found, _LEAST), 1.0)

    def _read_weights(self, product: Product) -> tuple[Floats, Floats]:
        """Return the magnitudes and the squares of the weights of a product, `[inputs, outputs]`."""
        name = self.model.index.nodes[product.number].input[1]
        if name not in self.weights:
            value = np.abs(read_constant(self.model.index, name, self.model.folder).astype(np.float64))
            self.weights[name] = value, value**2
        sizes, squares = self.weights[name]
        return (sizes.T, squares.T) if product.transposed else (sizes, squares)

    def _estimate(self, names: Sequence[str], products: Sequence[Product], factors: Floats) -> float:
        """Return the noise of tensors in integers, each as a share of its signal, added up."""
        total = sum(self._estimate_product(each, factors) for each in products)
        readers = {each.read for each in products}
        for name in names:
            uses = self.model.index.consumers.get(name, ())
            if name in readers and len(uses) == sum(each.read == name for each in products):
                continue
            seen, factor = self.seen[name], factors[self.features.labels[name].ravel()]
            noise = (_find_step(seen, factor) * factor) ** 2 / 12
            total += float(np.minimum(noise / _find_variance(seen), 1.0).mean())
        return total

    def _estimate_product(self, product: Product, factors: Floats) -> float:
        """Return the mean share of noise in the columns of a product."""
        seen, made = self.seen[product.read], self.seen.get(product.made)
        sizes, squares = self._read_weights(product)
        count = len(sizes)
        factor = np.broadcast_to(factors[self.features.labels[product.read].ravel()], (count,))
        power = np.broadcast_to(seen.power, (count,))
        reach = (sizes * factor[:, np.newaxis]).max(axis=0)
        noise = (_find_step(seen, factor) * factor) ** 2 @ squares
        noise = (noise + (power / factor**2).sum() * (reach / _WEIGHT_STEPS) ** 2) / 12
        variance = np.ones(len(reach)) if made is None else _find_variance(made)
        return float(np.minimum(noise / variance, 1.0).mean())


def _find_step(seen: ChannelStatistics, factor: Floats) -> float:
    """Return the step of a tensor's integers once its features are divided by factors."""
    width = max((seen.high / factor).max(), 0.0) - min((seen.low / factor).min(), 0.0)
    return float(width) / EIGHT_BIT_STEPS


def _find_variance(seen: ChannelStatistics) -> Floats:
    """Return the variance of each feature, none much smaller than the others'."""
    variance = np.maximum(seen.power - seen.mean**2, 0)
    return np.maximum(variance, 1e-12 * max(float(variance.max(initial=0.0)), 1e-30))


def _measure(
    model: Model, features: Features, samples: Sequence[Mapping[str, Any]]
) -> dict[str, ChannelStatistics]:
    """Return the statistics of what products read and make, and of other tensors that are rounded."""
    index = model.index
    wanted = {name for each in features.products for name in (each.read, each.made)}
    makers = {each.number for each in features.absorbers}
    wanted |= {index.nodes[number].output[0] for number in makers} | features.rescaled.keys()
    kept = {
        name: tuple(axis for axis, extent in enumerate(labels.shape) if extent > 1)
        for name, labels in features.labels.items()
        if name in wanted and (features.is_free(name))
    }
    for each in features.products:  # also of what is made by a product whose columns are fixed
        if features.is_free(each.read):
            kept.setdefault(each.made, (len(index.get_shape(each.made) or ()) - 1,))
    names = [name for name, axes in kept.items() if 0 < len(axes) < (index.get_rank(name) or 0)]
    if not names:
        return {}
    return measure_channels(model, names, samples, "features", kept)


def scale_features(model: Model, samples: Sequence[Mapping[str, Any]]) -> Model:
    """Return a model with features of like ranges, which computes the same but for rounding.

    A model where that lowers no noise is returned as it is. `samples` are those that ranges are measured
    on.
    """
    features = find_features(model.index)
    if not any(features.is_free(each.read) for each in features.products):
        return model
    factors = _Chooser(model, features, _measure(model, features, samples)).choose()
    return model if np.all(factors == 1) else _apply_factors(model, features, factors)


@dataclass(frozen=True, eq=False)
class RescaledSums:
    """A float model, and the sums in it that can be in integers of divided features, the best first.

    A group of `sums` shares its features.
    """

    model: Model
    samples: Sequence[Mapping[str, Any]]
    sums: Sequence[tuple[str, ...]]

    def take(self, count: int) -> Model:
        """Return the model with the first groups rescaled: it computes the same but for rounding."""
        chosen = frozenset(chain.from_iterable(self.sums[:count]))
        if not chosen:
            return self.model
        features = find_features(self.model.index, chosen.__contains__)
        seen = _measure(self.model, features, self.samples)
        factors = _Chooser(self.model, features, seen).choose()
        return _apply_factors(self.model, features, factors)


_LEAST_GAIN = 1e-3  # of the signal: 30 dB below it, noise of one tensor is lost in that of others


def find_rescaled_sums(model: Model, samples: Sequence[Mapping[str, Any]]) -> RescaledSums:
    """Return the groups of sums whose noise falls by more than a thousandth of the signal."""
    features = find_features(model.index, lambda name: True)
    if not any(features.is_free(name) for name in features.rescaled):
        return RescaledSums(model, samples, ())
    chooser = _Chooser(model, features, _measure(model, features, samples))
    chooser.choose()
    names = [*features.rescaled]
    classes = [np.unique(features.labels[name]).tolist() for name in names]
    roots = merge_groups(len(features.fixed), classes)
    groups: dict[int, list[str]] = {}
    for name, own in zip(names, classes, strict=True):
        groups.setdefault(roots[own[0]], []).append(name)
    gains = {}
    for members in groups.values():
        noise = [chooser.noise[name] for name in members if name in chooser.noise]
        gains[tuple(members)] = max((before - after for before, after in noise), default=0.0)
    found = [members for members, gain in gains.items() if gain > _LEAST_GAIN]
    return RescaledSums(model, samples, sorted(found, key=lambda members: -gains[members]))


def _apply_factors(model: Model, features: Features, factors: Floats) -> Model:
    """Return a model in which the features of each class are divided by its factor, `[classes]`."""
    index = model.index
    graph = EditableGraph.of_index(index)
    changed: dict[int, NodeProto] = {}
    for each in features.absorbers:
        scale = _find_scale(each, factors)
        if np.all(scale == 1):
            continue
        node = changed.setdefault(each.number, deepcopy(index.nodes[each.number]))
        name = node.input[each.position]
        value = read_constant(index, name, model.folder).astype(np.float64)
        node.input[each.position] = graph.store((value * scale).astype(np.float32), f"{name}_scaled")
    scaled = [
        (name, readers, factors[features.labels[name]]) for name, readers in features.rescaled.items()
    ]
    scaled += [
        (name, [number], 1 / factors[labels]) for (name, number), labels in features.divided.items()
    ]
    for name, readers, factor in scaled:
        if np.all(factor == 1):
            continue
        made = graph.names.new_tensor(f"{name}_rescaled")
        graph.types[made] = index.type_protos[name]
        stored = graph.store(factor.astype(np.float32), f"{name}_factors")
        node = build_node("Mul", [name, stored], [made], graph.names.new_node(f"{name}_rescale"))
        set_metadata(node, FLOAT_KEY, "rescale")
        if name in index.producers:
            graph.insert_after(index.producers[name], node)
        else:
            graph.insert_before(min(readers), node)
        for number in readers:
            reader = changed.setdefault(number, deepcopy(index.nodes[number]))
            for position, read in enumerate(reader.input):
                reader.input[position] = made if read == name else read
    for number, node in changed.items():
        graph.replace(number, node)
    proto = copy_without(model.proto)
    graph.write_to(proto.graph)
    graph.write_stored(proto.graph, graph.list_unread_stored())
    inference = InferenceResult(
        {**model.inference.type_protos, **graph.types}, None, model.inference.notes
    )
    return replace(model, structure=proto, heavy=None, inference=inference)


def _find_scale(absorber: Absorber, factors: Floats) -> Floats:
    """Return the multipliers of a constant, in a shape that broadcasts against it."""
    given, made = (
        np.ones(1) if labels is None else factors[labels]
        for labels in (absorber.inputs, absorber.outputs)
    )
    return np.asarray(given / made)


# Sums in 16 bits: another way to keep those before normalizations fine. A sum of a transformer has
# the features of all layers before it, so that one scale of 8 bits is too coarse for most of them, and a
# normalization brings these to their full size again. A target that adds in 16 bits keeps it finer, for
# twice the bytes. What is added comes from a matrix product, which the target may round to 16 bits just
# as well: it still multiplies 8 bits, and no conversion stands between. The normalization, in floating
# point, reads either type; products behind it read 8 bits.

_LEAST_NOISE = 1e-4  # of the signal: the noise of the tens of sums of a network adds up
_SUMS = ("Add", "Sum")
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class WideSum:
    """A sum that may have 16 bits: the unit that makes it, and the `products` that it alone reads.

    `noise` is that of 8 bits in it, as a share of its signal.
    """

    unit: str
    products: tuple[str, ...]
    noise: float


def find_wide_sums(
    model: Model, units: Mapping[str, Sequence[str]], samples: Sequence[Mapping[str, Any]]
) -> list[WideSum]:
    """Return the sums before normalizations that 8 bits are too coarse for, the noisiest first.

    `units` are the quantized ones, by name, with the names of their nodes. Noise is measured on the
    samples; a sum whose noise is less than 1e-4 of its signal is not among those returned.
    """
    index = model.index
    alone = {nodes[0]: unit for unit, nodes in units.items() if len(nodes) == 1}
    sums = {
        node.output[0]: node
        for node in index.nodes
        if is_onnx(node) and node.op_type in _SUMS and get_node_name(node) in alone
    }
    axes = {name: (rank - 1,) for name in sums if (rank := index.get_rank(name) or 0) > 1}
    wanted = {name: kept for name, kept in axes.items() if is_normalized(index, name)}
    if not wanted:
        return []
    seen = measure_channels(model, [*wanted], samples, "sums", wanted)
    found = [
        WideSum(
            alone[get_node_name(sums[name])],
            tuple(_find_products(index, sums[name])),
            _rate_noise(seen[name]),
        )
        for name in wanted
    ]
    coarse = [each for each in found if each.noise > _LEAST_NOISE]
    return sorted(coarse, key=lambda each: -each.noise)


def _find_products(index: GraphIndex, node: NodeProto) -> Iterator[str]:
    """Yield inputs of a sum that linear nodes make, directly or through views, for the sum alone."""
    for name in node.input:
        made: str = name
        while _is_read_once(index, made):
            maker = index.nodes[index.producers[made]]
            if is_onnx(maker) and maker.op_type in WEIGHTED:
                yield name
            if not is_onnx(maker) or maker.op_type not in _VIEWS:
                break
            made = maker.input[0]


def _is_read_once(index: GraphIndex, name: str) -> bool:
    """Return whether a node makes a tensor, and one other node alone reads it."""
    alone = len(index.consumers.get(name, ())) == 1 and name not in index.outputs
    return alone and name in index.producers and not index.is_constant(name)


def _rate_noise(seen: ChannelStatistics) -> float:
    """Return the mean share that the noise of 8 bits has in the features of a tensor."""
    width = max(float(seen.high.max(initial=0.0)), 0.0) - min(float(seen.low.min(initial=0.0)), 0.0)
    variance: NDArray[np.float64] = np.maximum(seen.power - seen.mean**2, 1e-30)
    return float(np.minimum((width / EIGHT_BIT_STEPS) ** 2 / 12 / variance, 1.0).mean())
