"""Plausible sizes of a model's open dimensions, by what their inputs seem to be."""

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

from byoc._dataclasses import dataclass, field
from byoc.model import Dim, GraphIndex, TensorType, add_dims, list_dim_names
from byoc.samples._size_limits import ExtentLimit, FittedSizes, find_limits, fit_sizes
from byoc.samples._size_relations import SizeRelations, TracedInputs, find_relations, trace_inputs

# What a size counts, the plausible size, and another one. A sequence has 128 tokens, as encoders of
# texts are usually tuned for: enough that accelerators are worth it, while at 16 tokens the host is
# predicted to be faster for most models (benchmarks/RESULTS.md, "Exports as they are").
_SIZES = {
    "batch": (1, 2),
    "past": (16, 0),
    "step": (1, 12),
    "sequence": (128, 11),
    "image": (224, 160),
    "map": (32, 48),
    "channels": (3, 3),
    "audio": (16_000, 12_000),
    "bands": (80, 80),
    "frames": (100, 64),
    "count": (8, 5),
}
IMAGE_CHANNELS = (1, 3, 4)
# What no table of positions limits: a batch, channels, and the steps of a decoder, which are few.
_UNLIMITED = ("batch", "channels", "bands", "past", "step")
# What a dimension's name says, the first that fits.
_NAMES = (
    ("past", r"past|cache|history|prefix"),
    ("batch", r"batch|^bsz?$|num_?(images|samples)"),
    ("image", r"height|width|^h$|^w$|^ysize$|^xsize$|image_?size|^rows$|^cols$"),
    ("channels", r"channel|^c$"),
    ("bands", r"^n_?mels?$|mel_?bands|^bins$"),
    ("audio", r"sample|audio|wave|pcm|signal"),
    ("frames", r"frame|time"),
    ("sequence", r"seq|len|token|word|text|prompt|context|steps?|total"),
    ("count", r"box|roi|anchor|class|label|query|point|num|count"),
)
_CACHE_NAME = re.compile(r"past|cache(?!_?pos)|(^|[._])(key|value)s?([._]|$)")
_AUDIO_NAME = re.compile(r"audio|wav|pcm|signal|speech|sound")
_TOTAL_NAME = re.compile(r"total|past.*(\+|plus|and).*seq|kv_?len")


@dataclass(frozen=True, eq=False)
class OpenSizes:
    """The open dimensions of a model's inputs, and sizes for them.

    `kinds` has what each counts, a key of `_SIZES`, for those whose size is free; `relations` determine
    the others.
    """

    traced: TracedInputs
    relations: SizeRelations
    kinds: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all open dimensions, in order; one without a name is called `input[axis]`."""
        shapes = [kind.shape for kind in self.traced.types.values() if kind and kind.shape]
        return tuple(
            dict.fromkeys(n for shape in shapes for dim in shape for n in sorted(list_dim_names(dim)))
        )

    def complete(self, free: Mapping[str, int]) -> dict[str, int]:
        """Return a size for each name, given those of the free ones."""
        sizes = {name: self._round(name, size) for name, size in free.items()}
        found = {name: self.relations.resolve(name, sizes) for name in self.names}
        return {name: 1 if size is None or size < 0 else size for name, size in found.items()}

    def _round(self, name: str, size: int) -> int:
        multiple = self.relations.multiples.get(name, 1)
        return -(-size // multiple) * multiple

    @cached_property
    def suggested(self) -> dict[str, int]:
        """A plausible size for each free name, moved where calculated extents would be 0."""
        return self.suggest({})

    @cached_property
    def limits(self) -> list[ExtentLimit]:
        """The limits that tables and masks in the model set to the sizes."""
        return find_limits(self.traced.index, self.names)

    @property
    def others(self) -> dict[str, int]:
        """Another size for each free name, not filled."""
        return {name: _SIZES[kind][1] for name, kind in self.kinds.items()}

    def suggest(self, given: Mapping[str, int]) -> dict[str, int]:
        """Return the given sizes, and plausible ones of the other free names, filled."""
        return dict(self.explain(given).sizes)

    def explain(self, given: Mapping[str, int]) -> FittedSizes:
        """Return the sizes of `suggest`, with the reasons of those that the model says something of."""
        plausible = {name: _SIZES[kind][0] for name, kind in self.kinds.items()}
        filled = self.fill({**plausible, **given}, given)
        groups: dict[str, list[str]] = {}
        for name, kind in self.kinds.items():
            if name not in given and kind not in _UNLIMITED:
                # The sides of an image change together, and other names one after the other.
                groups.setdefault(kind if kind in ("image", "map") else name, []).append(name)
        fitted = fit_sizes(filled, [*groups.values()], self.limits, self.complete)
        reasons = dict(fitted.reasons)
        for name, kind in self.kinds.items():
            if kind == "sequence" and name not in given and fitted.sizes[name] == filled[name]:
                reasons[name] = ", ".join(filter(None, ("a usual length", reasons.get(name))))
        return FittedSizes(fitted.sizes, reasons)

    def fill(self, free: Mapping[str, int], given: Collection[str] = ()) -> dict[str, int]:
        """Return sizes of the free names at which no calculated extent is 0, as far as there are such.

        An extent that is calculated from others (`seq // 32`) may be 0 at plausible sizes, and an input
        without elements shows nothing. Sizes of names in `given` stay. Where the past of a decoder has
        the size 0, extents that are calculated from it may be 0.
        """
        movable = [name for name in free if name not in given and (free[name] or name != self.past)]
        last = {name for name in movable if self.kinds.get(name) in ("batch", "channels")}
        emptied = {name for name in free if self.kinds.get(name) == "past" and not free[name]}
        needed = [
            (dim, 0 if self.relations.list_all_names(dim) & emptied else 1) for dim in self._calculated
        ]

        def count_empty(sizes: Mapping[str, int]) -> int:
            rounded = {name: self._round(name, size) for name, size in sizes.items()}
            extents = ((self.relations.resolve(dim, rounded), least) for dim, least in needed)
            return sum(extent is not None and extent < least for extent, least in extents)

        return fill_extents(free, movable, last, count_empty)

    @cached_property
    def _calculated(self) -> tuple[str, ...]:
        """The extents of inputs that are calculated from others."""
        dims = dict.fromkeys(dim for _, _, _, dim in _list_places(self.traced))
        return tuple(dim for dim in dims if dim not in self.kinds)

    @cached_property
    def past(self) -> Dim:
        """The extent of what a decoder remembers of the steps before; 0 for a model without it."""
        for name, kind in self.traced.types.items():
            if kind and kind.shape and len(kind.shape) >= 3 and _CACHE_NAME.search(name.lower()):
                return kind.shape[-2]
        return 0

    @cached_property
    def total(self) -> Dim:
        """The extent of the past and the sequence: what a mask covers, where there is a past."""
        for name, kind in self.traced.types.items():
            if self.past != 0 and kind and len(kind.shape or ()) == 2 and "mask" in name.lower():
                assert kind.shape is not None
                return kind.shape[-1]
        return add_dims(self.past, self.sequence)

    @cached_property
    def sequence(self) -> Dim:
        """The extent of the sequence that is read now, 1 where there is none."""
        return _find_sequence(self.traced)


def explain_sizes(index: GraphIndex, given: Mapping[str, int] | None = None) -> FittedSizes:
    """Return a plausible size for each open dimension of a model's inputs, by name, and why it is so.

    Those in `given` have that size, and others that are related to them follow. No input has an extent
    of 0 unless the given sizes or the relations leave no other.

    A dimension without a name is called `input[axis]`, such as `x[0]`. The sizes fit together as far as
    the operators of the model say so; nothing is run.
    """
    sizes, given = find_open_sizes(index), given or {}
    found = sizes.explain(given)
    return FittedSizes({**sizes.complete(found.sizes), **given}, found.reasons)


def find_open_sizes(index: GraphIndex) -> OpenSizes:
    """Find the open dimensions of a model's inputs, what they count, and how they are related."""
    traced = trace_inputs(index)
    relations = find_relations(traced)
    sizes = OpenSizes(traced, relations)
    _relate_totals(sizes)
    free = [name for name in sizes.names if name not in relations.meanings]
    # What a related name stands for may be a name that stands alone in no input.
    for name in list(relations.meanings):
        free += [
            inner for inner in sorted(list_dim_names(relations.meanings[name])) if inner not in free
        ]
    free = [name for name in free if name not in relations.meanings]
    return OpenSizes(traced, relations, _find_kinds(traced, free, sizes))


def _relate_totals(sizes: OpenSizes) -> None:
    """Take note that a total length is that of the past and of the sequence."""
    past, sequence = sizes.past, sizes.sequence
    if past == 0:
        return
    total = add_dims(past, sequence)
    for name in sizes.names:
        if name not in (past, sequence) and _TOTAL_NAME.search(name.lower()):
            sizes.relations.equate(name, total)
    for name, kind in sizes.traced.types.items():
        if kind and kind.shape and "mask" in name.lower() and kind.shape[-1] not in (past, sequence):
            sizes.relations.equate(kind.shape[-1], total)


def _find_sequence(traced: TracedInputs) -> Dim:
    """Return the second extent of token ids, or of what is embedded already."""
    for name, kind in traced.types.items():
        if not kind or not kind.shape or len(kind.shape) < 2 or _CACHE_NAME.search(name.lower()):
            continue
        if re.search(r"(ids|tokens?|embeds)$", name.lower()) and "position" not in name.lower():
            return kind.shape[1]
    return 1


def _find_kinds(traced: TracedInputs, free: list[str], sizes: OpenSizes) -> dict[str, str]:
    found: dict[str, str] = {}
    places: dict[str, tuple[str, TensorType, int, bool]] = {}
    for name, kind, axis, dim in _list_places(traced):
        for inner in list_dim_names(dim):
            if inner not in places or (dim == inner and not places[inner][3]):
                places[inner] = (name, kind, axis, dim == inner)
    for dim in free:
        name, kind, axis, _ = places.get(dim, ("", TensorType("float32", (None,)), 0, False))
        found[dim] = _classify(dim, name, kind, axis)
    if sizes.past != 0:
        sequence = list_dim_names(sizes.sequence)
        # A past may be calculated from the sequence: `total - seq`.
        past = list_dim_names(sizes.past) - sequence or list_dim_names(sizes.past)
        for dim in past & set(found):
            found[dim] = "past"
        read = {dim for _, kind, axis, dim in _list_places(traced) if axis == 1 and "int" in kind.dtype}
        for dim in (read | sequence) & set(found) - past:
            found[dim] = "step"
    return found


def _list_places(traced: TracedInputs) -> Iterator[tuple[str, TensorType, int, str]]:
    for name, kind in traced.types.items():
        if kind is None:
            continue
        for axis, dim in enumerate(kind.shape or ()):
            if isinstance(dim, str):
                yield name, kind, axis, dim


def _classify(dim: str, name: str, kind: TensorType, axis: int) -> str:
    """Classify a dimension by its name, or by its place in an input."""
    if dim != f"{name}[{axis}]":
        for what, pattern in _NAMES:
            if re.search(pattern, dim.lower()):
                return _adapt(what, kind)
    if axis == 0:
        return "batch"
    rank = len(kind.shape or ())
    if rank >= 4:
        return _classify_image_axis(name, kind, axis)
    if rank == 2 and _AUDIO_NAME.search(name.lower()):
        return "audio"
    return "sequence" if rank == 3 or "int" in kind.dtype else "count"


def _classify_image_axis(name: str, kind: TensorType, axis: int) -> str:
    assert kind.shape is not None
    if _CACHE_NAME.search(name.lower()):
        return "past" if axis == len(kind.shape) - 2 else "count"
    last = kind.shape[-1] in IMAGE_CHANNELS and kind.shape[1] not in IMAGE_CHANNELS
    if axis == (len(kind.shape) - 1 if last else 1):
        return "channels"
    return _adapt("image", kind)


def _adapt(what: str, kind: TensorType) -> str:
    """Replace `image` by `count` or `map` where the input is no image."""
    shape = kind.shape or ()
    if what != "image":
        return what
    if len(shape) < 3:
        return "count"
    if len(shape) == 3:
        return "map"
    channels = {shape[1], shape[-1]}
    is_image = not channels.isdisjoint(IMAGE_CHANNELS) or not isinstance(shape[1], int)
    return "image" if is_image and len(shape) == 4 else "map"


# Sizes of open dimensions moved until the extents that are calculated from them hold elements.

CountEmpty = Callable[[Mapping[str, int]], int]
"""Returns how many extents have no elements at given sizes."""

# The longest distance that is tried is 2**16.
_MAX_DOUBLINGS = 16


def fill_extents(
    sizes: Mapping[str, int], movable: Sequence[str], last: Collection[str], count_empty: CountEmpty
) -> dict[str, int]:
    """Return sizes at which as few extents as possible have no elements.

    Only sizes of names in `movable` change, by the least distance that helps. Larger sizes are preferred
    to smaller ones, and those in `last` (a batch) are changed only where the others do not help as much.
    What no change helps stays as it is.
    """
    filled = dict(sizes)
    empty = count_empty(filled)
    while empty:
        moves = _list_moves(filled, movable, last, count_empty)
        best = min(moves, key=count_empty, default=None)  # the first of those that help most
        if best is None:
            break
        filled, empty = best, count_empty(best)
    return filled


def _list_moves(
    sizes: Mapping[str, int], movable: Sequence[str], last: Collection[str], count_empty: CountEmpty
) -> Iterator[dict[str, int]]:
    """Yield sizes at which fewer extents are empty, the preferred ones first."""
    usual = [name for name in movable if name not in last]
    groups = [*([name] for name in usual), usual, *([name] for name in movable if name in last), movable]
    for direction in (1, -1):
        for names in groups:
            found = _move(sizes, names, direction, count_empty)
            if found is not None:
                yield found


def _move(
    sizes: Mapping[str, int], names: Collection[str], direction: int, count_empty: CountEmpty
) -> dict[str, int] | None:
    """Return sizes in which names are moved by the least distance that helps, None if none does."""
    empty = count_empty(sizes)

    def move_by(distance: int) -> dict[str, int]:
        return {**sizes, **{name: max(1, sizes[name] + direction * distance) for name in names}}

    def helps(distance: int) -> bool:
        return count_empty(move_by(distance)) < empty

    doubled = (2**power for power in range(_MAX_DOUBLINGS + 1))
    enough = next((distance for distance in doubled if helps(distance)), None)
    if enough is None:
        return None
    between = range(enough // 2 + 1, enough)
    return move_by(enough // 2 + 1 + bisect_left(between, True, key=helps))
