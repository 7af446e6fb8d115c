"""The clean-up passes that run without being asked for."""

from collections.abc import Collection

from byoc.errors import InputError, suggest_nearest
from byoc.passes._affine_folding import ExplicitPads, FoldBatchNormalization
from byoc.passes._cleaning import CleanPass, DropNanGuards
from byoc.passes._flat_forms import FlatForm
from byoc.passes._folded_scales import FoldScales
from byoc.passes._folded_shapes import DropDropout, DropIdentity, FlattenToReshape, FoldShapes
from byoc.passes._frame_forms import FrameForm
from byoc.passes._idle_clamps import DropClamps
from byoc.passes._narrow_forms import NarrowDoubles, NarrowIntegers
from byoc.passes._planar_forms import PlanarForm, PooledMean
from byoc.passes._quantized_operators import ReadQuantizedOperators
from byoc.passes._twin_forms import TwinForm

ALL_PASSES = "all"
# Dropout behind shapes: where a folded Shape alone read what reads its mask, it does nothing either.
_ALWAYS = (DropIdentity(), FoldShapes(), DropDropout(), ExplicitPads(), DropNanGuards())
_SOMETIMES = (FlattenToReshape(), FoldBatchNormalization(), ReadQuantizedOperators(), DropClamps())
_OFFERED: tuple[TwinForm, ...] = (
    PooledMean(),
    PlanarForm(),
    FrameForm(),
    FlatForm(),
    NarrowIntegers(),
    NarrowDoubles(),
)
FORM_NAMES = frozenset(form.name for form in _OFFERED)
"""The names of the forms of nodes that targets are offered."""
MOVING_FORM_NAMES = frozenset(form.name for form in _OFFERED if form.moves_data)
"""The names of those for which data is moved."""


def list_clean_passes(  # noqa: PLR0913 - one for each pass that only some targets want
    reshape: bool,
    batchnorm: bool,
    left_out: Collection[str] = (),
    *,
    quantized: bool = False,
    products: bool = False,
    clamps: Collection[str] | None = None,
) -> tuple[CleanPass, ...]:
    """Return the passes that clean a model, in their order.

    `reshape` says that Flatten is to become Reshape, `batchnorm` that BatchNormalization is to be
    folded, `quantized` that operators of integers are to be read as QDQ groups, `products` that only
    products of what is quantized as a model runs are to be read so. `clamps` are the clamping operators
    that targets have; clamps of quantized tensors stay where it is None. `left_out` are names of passes
    that are not wanted, or `all`. Raises InputError for a name that none of them has.
    """
    known = {each.name: each for each in (*_ALWAYS, *_SOMETIMES)}
    names = (*known, *(form.name for form in _OFFERED), ALL_PASSES)
    for name in left_out:
        if name not in names:
            there = ", ".join(names)
            hint = suggest_nearest(name, names)
            what = "no pass that runs without being asked for"
            raise InputError(f"{name}: {what}{hint}; there are {there}")
    if ALL_PASSES in left_out:
        return ()
    wanted = {
        FlattenToReshape.name: reshape,
        FoldBatchNormalization.name: batchnorm,
        ReadQuantizedOperators.name: quantized or products,
        DropClamps.name: clamps is not None,
    }
    known[DropClamps.name] = DropClamps(",".join(sorted(clamps or ())))
    if not quantized:
        known[ReadQuantizedOperators.name] = ReadQuantizedOperators(dynamic_only=True)
    return tuple(each for name, each in known.items() if name not in left_out and wanted.get(name, True))


def list_offered_forms(left_out: Collection[str] = ()) -> tuple[TwinForm, ...]:
    """Return the forms of nodes that targets are offered, but for those of some names, or `all`."""
    return () if ALL_PASSES in left_out else tuple(f for f in _OFFERED if f.name not in left_out)


def describe_clean_pass(name: str) -> str:
    """Return when a pass runs without being asked for; empty for one that has to be asked for."""
    if name in {each.name for each in _ALWAYS}:
        return "always"
    sometimes = {
        FlattenToReshape.name: "where rules speak of Reshape and not of Flatten",
        FoldBatchNormalization.name: "where rules want folded_batchnorm",
        FoldScales.name: "before a model is quantized",
        ReadQuantizedOperators.name: "where rules take QDQ groups, and none operators of integers, "
        "or rules want real_products",
        DropClamps.name: "where rules take quantized operators",
        **{form.name: "where rules take nodes in this form, and not as they are" for form in _OFFERED},
    }
    return sometimes.get(name, "")
