"""Features of tensors that may have a factor together, without a change of what a network computes.

A feature is an index of the axis that matrix products sum over, the last one of most tensors of a
transformer. Products, gains of normalizations, embeddings and other constants take factors in; views,
sums and attentions pass them on. Features that are connected so are a class, which has one factor. A
class that reaches anything else, or an output of the graph, is fixed.
"""

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass, field, replace
from byoc.model import (
    GraphIndex,
    find_constant_value,
    get_stated_attributes,
    is_onnx,
)
from byoc.numerics import merge_groups

Labels = NDArray[np.int64]
"""The class of each element of a tensor, of 1 along axes on which it does not change."""

_PASSED = frozenset({"Relu", "LeakyRelu", "Identity", "Dropout", "Expand"})
_RESHAPED = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_SUMS = frozenset({"Add", "Sub", "Sum", "Max", "Min"})
_MAX_ELEMENTS = 1 << 22  # of a tensor whose elements are followed one by one


@dataclass(frozen=True)
class _Normalization:
    """The inputs of a normalization that are its gain and its bias, -1 where it has none."""

    gain: int
    bias: int


_NORMALIZATIONS = {
    ("", "LayerNormalization"): _Normalization(1, 2),
    ("", "RMSNormalization"): _Normalization(1, -1),
    ("", "SimplifiedLayerNormalization"): _Normalization(1, -1),
    ("com.microsoft", "SkipLayerNormalization"): _Normalization(2, 3),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): _Normalization(2, -1),
}


@dataclass(frozen=True, eq=False)
class Absorber:
    """A constant, input `position` of a node, that takes factors in, `weights * inputs / outputs`.

    `inputs` and `outputs` are labels that broadcast against the constant; None where there are none.
    """

    number: int
    position: int
    inputs: Labels | None
    outputs: Labels | None


@dataclass(frozen=True, eq=False)
class Product:
    """A product by a constant matrix: its node, what it reads and makes, and whether B is transposed."""

    number: int
    read: str
    made: str
    transposed: bool


@dataclass(eq=False)
class Features:
    """Features by class: the labels of tensors, which classes are fixed, and what takes factors in.

    `rescaled` are sums, each with the nodes that read it as it is. `divided` are the labels of tensors
    that a sum reads divided, although what makes them cannot take factors in, by the tensor and the
    number of the sum's node.
    """

    labels: dict[str, Labels]
    fixed: NDArray[np.bool_]
    absorbers: list[Absorber]
    products: list[Product]
    rescaled: dict[str, list[int]]
    divided: dict[tuple[str, int], Labels]

    def is_free(self, name: str) -> bool:
        """Return whether some feature of a tensor may have a factor."""
        return name in self.labels and not self.fixed[self.labels[name]].all()


def find_features(index: GraphIndex, rescalable: Callable[[str], bool] | None = None) -> Features:
    """Return the features of a main graph's tensors that may have factors.

    Sums for which `rescalable` is true may have factors although what reads them needs their values, and
    so may what such sums are connected with, although what makes it cannot take factors in.
    """
    finder = _FeatureFinder(index, rescalable or (lambda name: False), rescalable is not None)
    return finder.find()


@dataclass(eq=False)
class _FeatureFinder:
    """Goes through the nodes in their order; each tensor gets the labels of what makes it."""

    index: GraphIndex
    rescalable: Callable[[str], bool]
    divides: bool
    count: int = 0
    labels: dict[str, Labels] = field(default_factory=dict)
    same: list[Labels] = field(default_factory=list)
    fixed: list[Labels] = field(default_factory=list)
    absorbers: list[Absorber] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    sums: set[str] = field(default_factory=set)
    rescaled: dict[str, list[int]] = field(default_factory=dict)
    divided: dict[tuple[str, int], Labels] = field(default_factory=dict)

    def find(self) -> Features:
        for number, node in enumerate(self.index.nodes):
            if number in self.index.constant_nodes:
                continue
            absorbers = len(self.absorbers)
            made = self._label(number, node) if node.output else None
            reads = [name for name in self.index.reads[number] if name in self.labels]
            if made is None:
                del self.absorbers[absorbers:]
                for name in reads:
                    self._fix(name, number)
                continue
            for name, labels in made.items():
                self.labels[name] = labels
        for name in self.index.outputs:
            if name in self.labels:
                self.fixed.append(self.labels[name])
        pairs = np.concatenate([np.zeros((0, 2), np.int64), *self.same])
        roots = np.asarray(merge_groups(self.count, pairs.tolist()), np.int64).reshape(-1)
        _, classes = np.unique(roots, return_inverse=True)
        fixed = np.zeros(int(classes.max(initial=-1)) + 1, np.bool_)
        for labels in self.fixed:
            fixed[classes[labels]] = True
        sums = np.zeros(len(fixed), np.bool_)
        for name in self.rescaled:
            sums[classes[self.labels[name]]] = True
        for labels in self.divided.values():  # for the sake of sums alone: a division takes time
            fixed[classes[labels]] |= not sums[classes[labels]].all()

        def rename(labels: Labels | None) -> Labels | None:
            return None if labels is None else classes[labels]

        return Features(
            {name: classes[labels] for name, labels in self.labels.items()},
            fixed,
            [replace(a, inputs=rename(a.inputs), outputs=rename(a.outputs)) for a in self.absorbers],
            self.products,
            self.rescaled,
            {key: classes[labels] for key, labels in self.divided.items()},
        )

    def _fix(self, name: str, number: int) -> None:
        """Fix the features of a tensor that a node reads as it is, unless it gets them rescaled."""
        is_last = self.labels[name].size == self.labels[name].shape[-1] > 1
        candidate = name in self.sums and is_last and number not in self.index.bodies
        if candidate and is_normalized(self.index, name) and self.rescalable(name):
            self.rescaled.setdefault(name, []).append(number)
        else:
            self.fixed.append(self.labels[name])

    def _shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a float32 tensor whose elements can be followed."""
        shape = self.index.get_shape(name)
        if self.index.get_dtype(name) != "float32" or not shape:
            return None
        known = tuple(extent for extent in shape if isinstance(extent, int))
        return known if len(known) == len(shape) and 0 < prod(known) <= _MAX_ELEMENTS else None

    def _make_labels(self, name: str, axis: int = -1) -> Labels | None:
        """Return new labels along an axis of a tensor."""
        shape = self._shape(name)
        if shape is None:
            return None
        extents = [1] * len(shape)
        extents[axis] = shape[axis]
        self.count += shape[axis]
        return np.arange(self.count - shape[axis], self.count).reshape(extents)

    def _expand(self, name: str) -> Labels | None:
        shape = self._shape(name)
        known = name in self.labels and shape is not None
        return np.broadcast_to(self.labels[name], shape or ()) if known else None

    def _label(self, number: int, node: NodeProto) -> dict[str, Labels] | None:
        """Return the labels of what a node makes; None where it makes none, and fixes what it reads."""
        domain = "" if is_onnx(node) else node.domain
        op, index = node.op_type, self.index
        data = [name for name in node.input if name and not index.is_constant(name)]
        if (domain, op) in _NORMALIZATIONS:
            return self._label_normalization(number, node, _NORMALIZATIONS[domain, op])
        makers: dict[str, Callable[[], dict[str, Labels] | None]] = {
            **dict.fromkeys(("MatMul", "Gemm"), lambda: self._label_product(number, node)),
            "Conv": lambda: self._label_convolution(number, node),
            **dict.fromkeys(_SUMS, lambda: self._label_sum(number, node, data)),
            **dict.fromkeys(("Mul", "Div"), lambda: self._label_scale(number, node, data)),
            "Concat": lambda: self._label_concatenation(node),
        }
        if op == "Gather" and index.is_constant(node.input[0]):
            return self._label_embedding(number, node)
        if domain or not data:
            return None
        return makers[op]() if op in makers else self._label_view(node)

    def _label_normalization(
        self, number: int, node: NodeProto, form: _Normalization
    ) -> dict[str, Labels] | None:
        """Give the first result new labels, which gain and bias take in; fix what is read."""
        axis, rank = get_stated_attributes(node).get("axis", -1), self.index.get_rank(node.output[0])
        last = node.domain == "com.microsoft" or (bool(rank) and axis % (rank or 1) == (rank or 1) - 1)
        labels = self._make_labels(node.output[0]) if last else None
        positions = [each for each in (form.gain, form.bias) if 0 <= each < len(node.input)]
        positions = [each for each in positions if node.input[each]]
        if labels is None or not all(self._is_vector(node.input[at], labels.size) for at in positions):
            return None
        for name in dict.fromkeys(self.index.reads[number]):
            if name in self.labels:
                self._fix(name, number)
        self.absorbers += [Absorber(number, at, None, labels.reshape(-1)) for at in positions]
        return {node.output[0]: labels}

    def _is_vector(self, name: str, count: int) -> bool:
        return (
            self.index.is_constant(name)
            and self.index.get_dtype(name) == "float32"
            and self.index.get_shape(name) == (count,)
        )

    def _label_product(self, number: int, node: NodeProto) -> dict[str, Labels] | None:
        """Return new labels for the columns of a product by a constant matrix, which takes both in."""
        if not self.index.is_constant(node.input[1]):
            return self._label_mixture(number, node)
        shape, attributes = self.index.get_shape(node.input[1]), get_stated_attributes(node)
        if shape is None or len(shape) != 2 or attributes.get("transA", 0):
            return None
        labels, read = self._make_labels(node.output[0]), self._find_last(node.input[0])
        bias = node.input[2] if len(node.input) > 2 else ""
        if labels is None or (node.input[0] in self.labels and read is None):
            return None
        if bias and not self._is_row(bias, labels.size):
            return None
        transposed, made = bool(attributes.get("transB", 0)), labels.reshape(-1)
        rows = None if read is None else read[np.newaxis] if transposed else read[:, np.newaxis]
        columns = made[:, np.newaxis] if transposed else made[np.newaxis]
        self.absorbers.append(Absorber(number, 1, rows, columns))
        if bias:
            self.absorbers.append(Absorber(number, 2, None, made))
        self.products.append(Product(number, node.input[0], node.output[0], transposed))
        return {node.output[0]: labels}

    def _is_row(self, name: str, count: int) -> bool:
        """Return whether a constant has one number, or one for each of the last axis."""
        shape = self.index.get_shape(name)
        extents = () if shape is None else tuple(each for each in shape if each != 1)
        row = shape is not None and (not extents or (extents == (count,) and shape[-1] == count))
        return row and self.index.is_constant(name)

    def _find_last(self, name: str) -> Labels | None:
        """Return the labels of a tensor along its last axis; None where they change on others."""
        labels = self.labels.get(name)
        shape = self._shape(name)
        if labels is None or shape is None or labels.size != labels.shape[-1]:
            return None
        return np.broadcast_to(labels.reshape(-1), shape[-1:])

    def _label_mixture(self, number: int, node: NodeProto) -> dict[str, Labels] | None:
        """Pass the features of values through an attention: what is mixed has the same factor."""
        mixed, shape = self.labels.get(node.input[1]), self._shape(node.output[0])
        if node.op_type != "MatMul" or mixed is None or shape is None or mixed.ndim < 2:
            return None
        if mixed.shape[-2] != 1 or len(shape) < mixed.ndim or node.input[0] == node.input[1]:
            return None
        if node.input[0] in self.labels:
            self._fix(node.input[0], number)
        return {node.output[0]: mixed}

    def _label_convolution(self, number: int, node: NodeProto) -> dict[str, Labels] | None:
        """Return new labels for the channels that a convolution makes; what it reads is fixed."""
        parameters = [name for name in node.input[1:] if name]
        labels = self._make_labels(node.output[0], 1)
        if labels is None or not all(map(self.index.is_constant, parameters)):
            return None
        if node.input[0] in self.labels:
            self._fix(node.input[0], number)
        made = labels.reshape(-1)
        rank = len(self.index.get_shape(node.input[1]) or ())
        self.absorbers.append(Absorber(number, 1, None, made.reshape(-1, *[1] * (rank - 1))))
        if len(parameters) > 1:
            self.absorbers.append(Absorber(number, 2, None, made))
        return {node.output[0]: labels}

    def _label_embedding(self, number: int, node: NodeProto) -> dict[str, Labels] | None:
        """Return new labels for the columns of a table that nothing else reads."""
        shape = self.index.get_shape(node.input[0])
        single = len(self.index.consumers.get(node.input[0], ())) == 1
        if shape is None or len(shape) != 2 or get_stated_attributes(node).get("axis", 0) or not single:
            return None
        labels = self._make_labels(node.output[0])
        if labels is not None:
            self.absorbers.append(Absorber(number, 0, None, labels.reshape(1, -1)))
        return None if labels is None else {node.output[0]: labels}

    def _label_scale(
        self, number: int, node: NodeProto, data: Sequence[str]
    ) -> dict[str, Labels] | None:
        """Return the labels behind a constant factor: new ones if it has a number for each feature."""
        read = data[0]
        at = 1 - list(node.input).index(read)
        if len(data) > 1 or (node.op_type == "Div" and at == 0):
            return None
        constant, shape = node.input[at], self._shape(node.output[0])
        extents = self.index.get_shape(constant)
        if shape is None or extents is None or self.index.get_dtype(constant) != "float32":
            return None
        if self._shape(read) != shape:
            return None
        if prod(each for each in extents if isinstance(each, int)) == 1:
            return {node.output[0]: self.labels[read]} if read in self.labels else None
        given = self._find_last(read)
        if extents[-1] != shape[-1] or (read in self.labels and given is None):
            return None
        labels = self._make_labels(node.output[0])
        if labels is not None:
            made = labels.reshape(-1)
            swapped = node.op_type == "Div"  # what is divided by takes in the reverse
            self.absorbers.append(
                Absorber(number, at, made, given) if swapped else Absorber(number, at, given, made)
            )
        return None if labels is None else {node.output[0]: labels}

    def _label_sum(self, number: int, node: NodeProto, data: list[str]) -> dict[str, Labels] | None:
        """Return the labels of a sum: those of what is added, which become the same."""
        shape = self._shape(node.output[0])
        if shape is None or not data or any(self._shape(name) != shape for name in data):
            return None
        constants = [at for at, name in enumerate(node.input) if name and self.index.is_constant(name)]
        if any(self.index.get_dtype(node.input[at]) != "float32" for at in constants):
            return None
        divided = [name for name in dict.fromkeys(data) if name not in self.labels]
        if divided and not (self.divides and node.op_type == "Add"):
            return None
        if len(divided) == len(set(data)) and not constants:
            return None  # nothing shows that features are along the last axis
        found = {name: self.labels.get(name, self._make_labels(name)) for name in data}
        first, *others = (labels for labels in found.values() if labels is not None)
        last = first.reshape(-1) if first.size == first.shape[-1] == shape[-1] else None
        if (constants or divided) and last is None:
            return None
        for other in others:
            self._unite(first, other, shape)
        for name in divided:
            self.divided[name, number] = first
        self.absorbers += [Absorber(number, at, None, last) for at in constants]
        if node.op_type in ("Add", "Sum") and len(set(node.input)) == 2:
            self.sums.add(node.output[0])
        return {node.output[0]: first}

    def _unite(self, one: Labels, other: Labels, shape: tuple[int, ...]) -> None:
        if one.shape != other.shape:
            one, other = (np.broadcast_to(each, shape) for each in (one, other))
        self.same.append(np.unique(np.stack([one.ravel(), other.ravel()], axis=1), axis=0))

    def _label_concatenation(self, node: NodeProto) -> dict[str, Labels] | None:
        """Return the labels of parts beside one another, none of which is a constant."""
        parts = [self._expand(name) for name in node.input]
        known = [each for each in parts if each is not None]
        if len(known) < len(parts) or self._shape(node.output[0]) is None:
            return None
        axis = get_stated_attributes(node)["axis"]
        return {node.output[0]: _shrink(np.concatenate(known, axis))}

    def _label_view(self, node: NodeProto) -> dict[str, Labels] | None:
        """Return the labels of the elements of a tensor where an operator puts them."""
        whole = self._expand(node.input[0])
        if whole is None:
            return None
        op, attributes = node.op_type, get_stated_attributes(node)
        shapes = [self._shape(name) for name in node.output if name]
        known = [shape for shape in shapes if shape is not None]
        if op == "Dropout":
            known = known[:1]
        if not known or (op != "Dropout" and len(known) < len(shapes)):
            return None
        if op == "Transpose":
            found = [whole.transpose(attributes.get("perm", range(whole.ndim)[::-1]))]
        elif op in _RESHAPED:
            found = [whole.reshape(known[0])]
        elif op in _PASSED:
            found = [np.broadcast_to(whole, known[0])]
        elif op == "Split":
            axis = attributes.get("axis", 0)
            found = np.split(whole, np.cumsum([shape[axis] for shape in known])[:-1], axis)
        elif op == "Slice":
            found = [part] if (part := self._slice(node, whole)) is not None else []
        elif op == "Gather":
            places = find_constant_value(self.index, node.input[1], None)
            axis = attributes.get("axis", 0)
            found = [] if places is None else [whole.take(np.asarray(places), axis)]
        else:
            found = []
        if not found or [each.shape for each in found] != [*known]:
            return None
        names = [name for name in node.output if name]
        return {name: _shrink(each) for name, each in zip(names, found, strict=False)}

    def _slice(self, node: NodeProto, whole: Labels) -> Labels | None:
        values = [
            find_constant_value(self.index, name, None) if name else None for name in node.input[1:]
        ]
        if len(values) < 2 or values[0] is None or values[1] is None:
            return None
        if any(name and value is None for name, value in zip(node.input[1:], values, strict=True)):
            return None
        starts, ends = (np.asarray(each).ravel().tolist() for each in values[:2])
        axes, steps = [*values[2:], None, None][:2]
        places = range(len(starts)) if axes is None else np.asarray(axes).ravel().tolist()
        strides = [1] * len(starts) if steps is None else np.asarray(steps).ravel().tolist()
        cut = [slice(None)] * whole.ndim
        for axis, start, end, stride in zip(places, starts, ends, strides, strict=True):
            if stride < 1:
                return None
            cut[axis] = slice(start, end, stride)
        return whole[tuple(cut)]


def is_normalized(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor is read by a normalization, or by what begins one of several operators."""
    readers = [index.nodes[number] for number in index.consumers.get(name, ())]
    return any(
        node.op_type in ("ReduceMean", "Pow")
        or ("" if is_onnx(node) else node.domain, node.op_type) in _NORMALIZATIONS
        or (node.op_type == "Mul" and list(node.input) == [name, name])
        for node in readers
    )


def _shrink(whole: Labels) -> Labels:
    """Return labels with an extent of 1 on axes along which they do not change."""
    for axis, extent in enumerate(whole.shape):
        first = whole.take([0], axis)
        if extent > 1 and np.array_equal(np.broadcast_to(first, whole.shape), whole):
            whole = first
    return whole
