"""Values of a model's inputs that fit together: seeded random numbers within what their roles allow."""

import re
from collections.abc import Collection, Mapping
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, TypeProto

from byoc._dataclasses import dataclass
from byoc.errors import InputError, suggest_nearest
from byoc.model import (
    Dim,
    GraphIndex,
    Model,
    StatePair,
    TensorType,
    choose_state_pairs,
    evaluate_dim,
    get_stated_attributes,
    read_type,
    to_numpy_dtype,
)
from byoc.samples._input_roles import InputRole, Role, find_roles
from byoc.samples._input_sizes import IMAGE_CHANNELS, OpenSizes, find_open_sizes

# The size limit of one input. Samples are drawn in float64 first.
_MAX_BYTES = 2**30
_DRAWN_BYTES = 8  # of a number before it is converted
_MAX_STRIDE = 2**63  # numpy limits the bytes of an array as if extents of 0 were 1
_MAX_RANK = 32  # of arrays in numpy 1
_BYTES = 256  # values of a byte
_IMAGE_RANK = 4  # (batch, channels, rows, columns)
_ELEMENTS = 3  # of a sequence, and of its tensors where nothing is known of them


@dataclass(frozen=True)
class Choice:
    """A choice of values where roles leave several.

    `number` counts through the numbers that an input is compared with, and both values of a condition;
    `integer` is the value of integers that nothing is known of, None for 0 and 1 by chance.
    """

    number: int = 0
    integer: int | None = None


@dataclass(frozen=True, eq=False)
class _Draw:
    """A sample that is being made: the sizes of its open dimensions, and where numbers come from."""

    sizes: Mapping[str, int]
    generator: np.random.Generator
    choice: Choice

    def evaluate(self, dim: Dim) -> int:
        """Return an extent as a number, 1 if it is not known."""
        size = evaluate_dim(dim, self.sizes)
        return 1 if size is None or size < 0 else size


@dataclass(frozen=True, eq=False)
class InputMaker:
    """Makes the inputs of a model, of any sizes of its open dimensions."""

    sizes: OpenSizes

    @cached_property
    def roles(self) -> Mapping[str, InputRole]:
        """The role of each input that is a tensor."""
        return find_roles(self.sizes.traced)

    @property
    def has_choices(self) -> bool:
        """Whether inputs select what the model does: conditions, numbers it compares with."""
        types = self.sizes.traced.types
        return any(
            self.roles[name].role is Role.choices or _is_condition(kind, self.roles[name])
            for name, kind in types.items()
            if kind
        )

    @property
    def has_flags(self) -> bool:
        """Whether there are integers that nothing is known of."""
        return any(role.role is Role.flags for role in self.roles.values())

    def make(
        self,
        seed: int,
        free: Mapping[str, int],
        choice: Choice = Choice(),
        names: Collection[str] | None = None,
    ) -> dict[str, Any]:
        """Return a value for each input, or for those of `names` alone, at sizes of the free names.

        It is an array; of a sequence a list, of a map a mapping. Raises InputError for an input that is
        too large, has more than 32 dimensions or complex numbers, or whose type is not known.
        """
        draw = _Draw(self.sizes.complete(free), np.random.default_rng(seed), choice)
        types = self.sizes.traced.types
        return {
            name: self._make_input(name, kind, draw)
            for name, kind in types.items()
            if names is None or name in names
        }

    def _make_input(self, name: str, kind: TensorType | None, draw: _Draw) -> Any:
        proto = self.sizes.traced.index.type_protos.get(name) if kind is None else None
        if proto is not None and not proto.HasField("tensor_type"):
            return self._make_container(name, proto, draw)
        if kind is None or kind.shape is None or kind.dtype in ("complex64", "complex128"):
            raise InputError(f"no sample input can be made for '{name}' ({kind or 'not a tensor'})")
        shape = tuple(map(draw.evaluate, kind.shape))
        if len(shape) > _MAX_RANK:
            raise InputError(f"no sample input can be made for '{name}': it has {len(shape)} dimensions")
        _require_small(name, kind, shape)
        if kind.dtype == "string":
            return self._draw_words(name, shape, draw)
        if _is_condition(kind, self.roles[name]):
            value = np.full(shape, self._choose_condition(name, draw))
        else:
            value = np.asarray(self._make_value(name, self.roles[name], shape, draw))
        return value.astype(to_numpy_dtype(kind.dtype)).reshape(shape)

    def _make_container(self, name: str, kind: TypeProto, draw: _Draw) -> Any:
        """Return a sequence of a few elements, the element of an optional, a map, or a tensor in these.

        An extent that is not known is 2. Raises InputError for sparse tensors and opaque types.
        """
        if kind.HasField("sequence_type"):
            return [
                self._make_container(name, kind.sequence_type.elem_type, draw) for _ in range(_ELEMENTS)
            ]
        if kind.HasField("optional_type"):
            return self._make_container(name, kind.optional_type.elem_type, draw)
        if kind.HasField("map_type"):
            return self._make_map(name, kind.map_type, draw)
        found = read_type(kind)
        if found is None:
            raise InputError(
                f"no sample input can be made for '{name}' (neither tensors nor maps of them)"
            )
        dims = (_ELEMENTS,) if found.shape is None else found.shape
        sizes = [evaluate_dim(dim, draw.sizes) for dim in dims]
        shape = tuple(2 if size is None else size for size in sizes)
        _require_small(name, found, shape)
        if found.dtype == "string":
            return self._draw_words(name, shape, draw)
        values = np.asarray(draw.generator.standard_normal(shape))
        drawn = values if "float" in found.dtype else values > 0
        return np.asarray(drawn, to_numpy_dtype(found.dtype))

    def _make_map(self, name: str, kind: TypeProto.Map, draw: _Draw) -> dict[Any, Any]:
        """Return a map from the keys that its readers know, or from any, to numbers or texts."""
        numbers = self._list_attributes(name, "int64") or range(_ELEMENTS)
        keys = self._list_words(name) if kind.key_type == TensorProto.STRING else numbers
        values = [np.asarray(self._make_container(name, kind.value_type, draw)) for _ in keys]
        return {key: value.ravel()[0].item() for key, value in zip(keys, values, strict=True)}

    def _draw_words(self, name: str, shape: tuple[int, ...], draw: _Draw) -> NDArray[Any]:
        """Return texts for an input, as objects."""
        words = np.array(self._list_words(name), object)
        return np.asarray(words[draw.generator.integers(0, len(words), shape)], object)

    def _list_words(self, name: str) -> list[str]:
        """Return texts for an input: those that its readers know, or any."""
        return self._list_attributes(name, "string") or ["a", "b", "some words"]

    def _list_attributes(self, name: str, word: str) -> list[Any]:
        """Return the values that readers of an input list: keys, categories, a vocabulary."""
        found: dict[Any, None] = {}
        for use in self.sizes.traced.uses.get(name, ()):
            for key, value in get_stated_attributes(use.node).items():
                if word in key and re.match("keys_|cats_|classes_|.*vocabulary", key):
                    found.update(dict.fromkeys(value))
        return list(found)

    def _choose_condition(self, name: str, draw: _Draw) -> bool:
        """Return the value of a single boolean: whether there is a past, or either in turn."""
        if re.search(r"cache|past", name.lower()):
            return draw.evaluate(self.sizes.past) > 0
        return draw.choice.number % 2 == 0

    def _make_value(  # noqa: PLR0911, PLR0912 - one for each role
        self, name: str, role: InputRole, shape: tuple[int, ...], draw: _Draw
    ) -> Any:
        total = draw.evaluate(self.sizes.total)
        past = max(total - draw.evaluate(self.sizes.sequence), 0)
        limits = list(map(draw.evaluate, role.limits))
        match role.role:
            case Role.numbers:
                return _draw_floats(draw.generator, shape, role.domain)
            case Role.pixels:
                return draw.generator.integers(0, _BYTES, shape).astype(np.uint8)
            case Role.indices:
                return draw.generator.integers(0, max(min(limits), 1), shape)
            case Role.mask | Role.ones:
                return np.ones(shape)
            case Role.bias:
                return np.zeros(shape)
            case Role.positions:
                return _count_positions(shape, past, total, limits)
            case Role.total | Role.last | Role.past:
                number = {Role.total: total, Role.last: total - 1, Role.past: past}[role.role]
                return np.full(shape, number)
            case Role.lengths:
                return np.full(shape, self._find_length(name, role, draw))
            case Role.image_size:
                return np.broadcast_to(self._find_image_size(shape, draw), shape)
            case Role.choices:
                return np.full(shape, role.choices[draw.choice.number % len(role.choices)])
            case Role.listed:
                return np.resize(limits, shape)
            case Role.constant:
                assert role.make_value is not None
                return role.make_value(shape)
        if draw.choice.integer is not None:
            return np.full(shape, draw.choice.integer)
        return draw.generator.integers(0, 2, shape)

    def _find_length(self, name: str, role: InputRole, draw: _Draw) -> int:
        """Return the length of the longest sequence that a length may speak of."""
        if role.extent is not None:
            return draw.evaluate(role.extent)
        others = [kind for key, kind in self.sizes.traced.types.items() if key != name]
        ranked = [kind.shape for kind in others if kind and kind.shape and len(kind.shape) > 1]
        for shape in ranked:
            for dim in reversed(shape[1:]):
                if not isinstance(dim, int):
                    return draw.evaluate(dim)
        return draw.evaluate(ranked[0][1]) if ranked else 1

    def _find_image_size(self, shape: tuple[int, ...], draw: _Draw) -> NDArray[np.int64]:
        """Return rows and columns of the first image; what stands beside them is 1."""
        found = [1, 1]
        for kind in self.sizes.traced.types.values():
            if kind and kind.shape and len(kind.shape) == _IMAGE_RANK:
                extents = list(map(draw.evaluate, kind.shape))
                last = extents[3] in IMAGE_CHANNELS and extents[1] not in IMAGE_CHANNELS
                found = extents[1:3] if last else extents[2:]
                break
        wanted = shape[-1] if shape else 1
        return np.array((found + [1] * wanted)[:wanted])


def find_domains(index: GraphIndex) -> dict[str, tuple[float, float] | None]:
    """Return the lowest and highest value of each input of a model, None for one that has a role.

    A role is more than a range: masks, positions, lengths, and ids below a table. Raises InputError as
    `sample_inputs`.
    """
    domains: dict[str, tuple[float, float] | None] = {}
    for name, role in find_roles(find_open_sizes(index).traced).items():
        free = role.role in (Role.numbers, Role.flags, Role.pixels)
        domains[name] = role.domain if free else None
    return domains


def _is_condition(kind: TensorType, role: InputRole) -> bool:
    return role.role is Role.flags and kind.dtype == "bool" and kind.elements == 1


def _count_positions(
    shape: tuple[int, ...], past: int, total: int, limits: list[int]
) -> NDArray[np.int64]:
    """Return positions that count along the last axis, from the past if the sequence is read."""
    length = shape[-1] if shape else 1
    start = past if length == total - past else 0
    positions = start + np.arange(length)
    if limits:
        positions %= max(min(limits), 1)
    return np.broadcast_to(positions if shape else positions[0], shape)


def _require_small(name: str, kind: TensorType, shape: tuple[int, ...]) -> None:
    """Raise InputError for an input that no array can hold, or that is too large to be drawn."""
    size = TensorType(kind.dtype, shape).bytes or 0
    if size > _MAX_BYTES:
        raise InputError(f"no sample input can be made for '{name}': {kind} takes {size} bytes")
    if prod(max(extent, 1) for extent in shape) * _DRAWN_BYTES >= _MAX_STRIDE:
        raise InputError(
            f"no sample input can be made for '{name}': {kind} is larger than arrays may be"
        )


def _draw_floats(
    generator: np.random.Generator, shape: tuple[int, ...], domain: tuple[float, float]
) -> NDArray[np.float64]:
    """Return standard normal numbers, brought into a domain by their magnitude."""
    low, high = domain
    values = generator.standard_normal(shape)
    if np.isinf(low) and np.isinf(high):
        return values
    if np.isinf(high):
        return low + np.abs(values)
    return np.asarray(low + (high - low) * (0.5 + 0.5 * np.tanh(values)))


def sample_inputs(index: GraphIndex, seed: int = 0) -> dict[str, Any]:
    """Return a seeded value for each graph input without a default, at plausible sizes.

    What is not known to be something else is standard normal, or for integers 0 or 1. Nothing is run:
    the model may refuse them, which `model_samples` finds out. Raises InputError as `InputMaker.make`.
    """
    sizes = find_open_sizes(index)
    return InputMaker(sizes).make(seed, sizes.suggested)


# The inputs of a decoder, step by step: tokens go in, what it gives as its state goes in again.

_CHOSEN_ONCE = (Role.numbers, Role.pixels, Role.indices, Role.flags, Role.choices, Role.image_size)
"""Roles whose values are the same in each step, as what an encoder gave; others count along."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class DecoderInputs:
    """Makes the inputs of a decoder for each step of a sequence of tokens.

    `tokens` is the input that takes token ids `[batch, sequence]`, `logits` the output that weighs the
    next ones `[batch, sequence, vocabulary]`, `pairs` the state. `sequence` is the open extent of the
    tokens, `past` those along which states grow.
    """

    maker: InputMaker
    tokens: str
    logits: str
    pairs: tuple[StatePair, ...]
    sequence: str
    past: tuple[str, ...]
    vocabulary: int

    @cached_property
    def others(self) -> tuple[str, ...]:
        """The inputs that are neither tokens nor state."""
        states = {pair.past for pair in self.pairs}
        types = self.maker.sizes.traced.types
        return tuple(name for name in types if name != self.tokens and name not in states)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """Those of the others whose values are the same in all steps."""
        types, roles = self.maker.sizes.traced.types, self.maker.roles
        return tuple(
            name
            for name in self.others
            if name in roles and roles[name].role in _CHOSEN_ONCE and not _is_single(types[name], "bool")
        )

    def draw_prompt(self, seed: int, length: int) -> NDArray[np.int64]:
        """Return seeded tokens of a length, for each sequence of a batch."""
        shape = (self._make(seed, 0, length, [self.tokens])[self.tokens].shape[0], length)
        return np.random.default_rng(seed).integers(0, self.vocabulary, shape)

    def make_kept(self, seed: int, length: int) -> dict[str, NDArray[Any]]:
        """Return the seeded inputs that are the same in all steps of a sequence."""
        return self._make(seed, 0, length, self.kept)

    def make_empty_state(self, length: int) -> dict[str, NDArray[Any]]:
        """Return the state before the first tokens: its growing axes are empty, its values zeros."""
        made = self._make(0, 0, length, [pair.past for pair in self.pairs])
        return {name: np.zeros_like(array) for name, array in made.items()}

    def make_step(self, tokens: NDArray[Any], past: int, kept: Arrays) -> dict[str, NDArray[Any]]:
        """Return the inputs but for the state of a step that reads tokens behind `past` others.

        Raises InputError where an input of `kept` has another extent in this step.
        """
        length = tokens.shape[1]
        counting = [name for name in self.others if name not in kept]
        made = self._make(0, past, length, [self.tokens, *counting])
        shapes = self.find_shapes(past, length)
        for name, array in kept.items():
            if array.shape != shapes[name]:
                raise InputError(
                    f"input '{name}' changes with the length of the sequence, and nothing says how: it "
                    "is neither a mask, nor positions, nor state"
                )
        typed = tokens.astype(made[self.tokens].dtype)
        return {**made, **kept, self.tokens: typed}

    def _complete(self, past: int, length: int) -> dict[str, int]:
        given = {self.sequence: length, **dict.fromkeys(self.past, past)}
        sizes = self.maker.sizes
        free = {name: size for name, size in given.items() if name not in sizes.relations.meanings}
        return sizes.suggest(free)

    def find_shapes(self, past: int, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs of a step that reads so many tokens behind `past` others."""
        sizes = self.maker.sizes.complete(self._complete(past, length))
        shapes = {name: (kind and kind.shape) or () for name, kind in self._types.items()}
        return {
            name: tuple(evaluate_dim(dim, sizes) or 0 for dim in shape) for name, shape in shapes.items()
        }

    @property
    def _types(self) -> Mapping[str, TensorType | None]:
        return self.maker.sizes.traced.types

    def _make(
        self, seed: int, past: int, length: int, names: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        return self.maker.make(seed, self._complete(past, length), names=names)


def find_decoder_inputs(model: Model, state: Mapping[str, str] | None = None) -> DecoderInputs:
    """Find what takes the tokens of a decoder, what weighs the next one, and its state.

    `state` maps inputs to the outputs whose values they take, where that is declared. Raises InputError,
    which says what is missing, for a model that is no decoder with open lengths.
    """
    maker = InputMaker(find_open_sizes(model.index))
    types = maker.sizes.traced.types
    pairs = choose_state_pairs(model.proto, state)
    if not pairs:
        raise InputError(f"{model.source}: no input takes what an output gave, so it keeps no state")
    tokens = _find_tokens(model, maker, {pair.past for pair in pairs})
    sequence = (_get_shape(types[tokens]))[1]
    if not isinstance(sequence, str):
        raise InputError(
            f"{model.source}: input '{tokens}' takes {sequence} tokens at a time; for a prompt and then "
            "one token at a time its length has to be open"
        )
    logits, vocabulary = _find_logits(model, {pair.present for pair in pairs})
    limits = [vocabulary, *(dim for dim in maker.roles[tokens].limits if isinstance(dim, int))]
    read = {d for n, kind in types.items() if n not in {p.past for p in pairs} for d in _get_shape(kind)}
    past = {
        dim: None
        for pair in pairs
        for dim in _get_shape(types[pair.past])
        if isinstance(dim, str) and dim not in read
    }
    return DecoderInputs(maker, tokens, logits, pairs, sequence, tuple(past), min(limits))


def _find_tokens(model: Model, maker: InputMaker, states: Collection[str]) -> str:
    types = maker.sizes.traced.types
    found = [
        name
        for name, role in maker.roles.items()
        if role.role is Role.indices and name not in states and len(_get_shape(types[name])) == 2
    ]
    if len(found) > 1:  # such as token types, or what an encoder reads
        found = [name for name in found if _get_shape(types[name])[1] == maker.sizes.sequence]
    if len(found) != 1:
        told = ", ".join(found) or "none looks up rows of a table"
        raise InputError(f"{model.source}: which input takes the tokens cannot be seen: {told}")
    return found[0]


def _find_logits(model: Model, presents: Collection[str]) -> tuple[str, int]:
    """Return the output that weighs tokens, and how many there are."""
    kinds = {name: model.index.types.get(name) for name in model.index.outputs if name not in presents}
    shapes = {name: _get_shape(kind) for name, kind in kinds.items() if kind and "float" in kind.dtype}
    found = {
        name: shape[2] for name, shape in shapes.items() if len(shape) == 3 and isinstance(shape[2], int)
    }
    name = "logits" if "logits" in found else next(iter(found), "")
    if (len(found) > 1 and name != "logits") or not found:
        hint = suggest_nearest("logits", kinds)
        raise InputError(f"{model.source}: which output weighs the next token cannot be seen{hint}")
    return name, found[name]


def _get_shape(kind: TensorType | None) -> tuple[Dim, ...]:
    return (kind.shape or ()) if kind is not None else ()


def _is_single(kind: TensorType | None, dtype: str) -> bool:
    return kind is not None and kind.dtype == dtype and kind.elements == 1
