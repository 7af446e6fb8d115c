"""Axis terms: the position of each axis of a tensor, or block of an axis, after Transposes and Reshapes.

Each dimension of a packed tensor is an `AxisTerm`: an axis of the plain tensor (size 0; whole, or the
rest of it after blocks are split off), or a block of an axis. Layouts are written in the notation of
`byoc.model._layouts`, but are derived here independently of it, so that an error in either one is
detected.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from byoc.model import IMAGE, Dim

UNKNOWN_LAYOUT = "?"
"""The layout of a contract whose conversion steps lead to no layout that has a name."""


class AxisTerm(NamedTuple):
    """A dimension of a packed tensor: an axis of the plain tensor, or a block of `size` elements."""

    axis: int
    size: int = 0


AxisTerms = tuple[AxisTerm, ...]


class AxisStep(NamedTuple):
    """A Transpose (`order`), or a Reshape (`order` is None) with the shapes before and after it."""

    order: tuple[int, ...] | None
    before: tuple[Dim, ...] = ()
    after: tuple[Dim, ...] = ()


def plain_terms(rank: int) -> AxisTerms:
    """Return the terms of a tensor in ONNX's own layout."""
    return tuple(AxisTerm(axis) for axis in range(rank))


def apply_step(terms: AxisTerms, step: AxisStep) -> AxisTerms | None:
    """Return the terms after a step from those before it, or None if it belongs to no layout."""
    if step.order is not None:
        return tuple(terms[i] for i in step.order) if len(step.order) == len(terms) else None
    groups = _match_dims(step.before, step.after)
    if groups is None or len(terms) != len(groups):
        return _merge_blocks(terms, step)
    terms_after: list[AxisTerm] = []
    for term, (_, *others) in zip(terms, groups, strict=True):
        sizes = [step.after[i] for i in others]  # numbers, or the dimensions would not match
        terms_after.append(term)
        terms_after += [AxisTerm(term.axis, size) for size in sizes if isinstance(size, int)]
    return tuple(terms_after)


def revert_step(terms: AxisTerms, step: AxisStep) -> AxisTerms | None:
    """Return the terms before a step from those after it, or None if it belongs to no layout."""
    if step.order is None:
        return apply_step(terms, AxisStep(None, step.after, step.before))
    if len(step.order) != len(terms):
        return None
    return tuple(terms[step.order.index(dim)] for dim in range(len(terms)))


def _merge_blocks(terms: AxisTerms, step: AxisStep) -> AxisTerms | None:
    """Return the terms after a Reshape that joins blocks with the axis they were split off from."""
    groups = _match_dims(step.after, step.before)
    if groups is None or len(terms) != len(step.before):
        return None
    terms_after: list[AxisTerm] = []
    for group in groups:
        first, *others = (terms[dim] for dim in group)
        if any(term.axis != first.axis or not term.size for term in others):
            return None
        terms_after.append(AxisTerm(first.axis, first.size * prod(term.size for term in others)))
    return tuple(terms_after)


def format_terms(terms: AxisTerms) -> str:
    """Return a layout in the notation of rule files; empty for the plain layout.

    A layout outside that notation (another rank than 4, an axis after a block) is described by its axes:
    `axes 0, 2, 1`.
    """
    if terms == plain_terms(len(terms)):
        return ""
    axes = max(term.axis for term in terms) + 1
    if axes != len(IMAGE):
        return "axes " + ", ".join(f"{axis}" + f" by {size}" * bool(size) for axis, size in terms)
    return "".join(f"{size}{IMAGE[axis].lower()}" if size else IMAGE[axis] for axis, size in terms)


def parse_terms(layout: str, rank: int) -> AxisTerms | None:
    """Parse a layout in the notation of rule files; None if it is not a layout of images."""
    if not layout:
        return plain_terms(rank)
    terms, size = [], ""
    for letter in layout:
        if letter.isdigit():
            size += letter
        elif letter.upper() in IMAGE:
            terms.append(AxisTerm(IMAGE.index(letter.upper()), int(size or 0)))
            size = ""
        else:
            return None
    return tuple(terms)


def pack_shape(shape: Sequence[Dim], terms: AxisTerms) -> tuple[Dim, ...]:
    """Return the shape of a plain tensor in a layout; extents are rounded up to whole blocks."""
    found: list[Dim] = []
    for axis, size in terms:
        dim = shape[axis]
        blocks = prod(term.size for term in terms if term.axis == axis and term.size)
        found.append(
            size or (-(-dim // blocks) if isinstance(dim, int) else dim if blocks == 1 else None)
        )
    return tuple(found)


def unpack_shape(shape: Sequence[Dim], terms: AxisTerms) -> tuple[Dim, ...] | None:
    """Return the plain shape of a transposed tensor, or None if its layout has blocks."""
    if len(shape) != len(terms) or any(term.size for term in terms):
        return None
    return tuple(shape[terms.index(AxisTerm(axis))] for axis in range(len(terms)))


def _match_dims(whole: Sequence[Dim], split: Sequence[Dim]) -> tuple[tuple[int, ...], ...] | None:
    """Return for each dimension of one shape the dimensions of another into which it is split."""
    groups: list[tuple[int, ...]] = []
    at = 0
    for dim in whole:
        if at >= len(split):
            return None
        inner, product = [at], split[at]
        at += 1
        while isinstance(dim, int) and isinstance(product, int) and product < dim and at < len(split):
            following = split[at]
            if not isinstance(following, int):
                return None
            inner.append(at)
            product *= following
            at += 1
        if isinstance(dim, int) and isinstance(product, int) and product != dim:
            return None
        groups.append(tuple(inner))
    return tuple(groups) if at == len(split) else None
