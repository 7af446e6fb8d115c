"""Passes: plug-ins that rewrite a model before it is annotated, or a region before it is compiled."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.passes._affine_folding import FoldBatchNormalization
    from byoc.passes._clean_set import (
        FORM_NAMES,
        MOVING_FORM_NAMES,
        describe_clean_pass,
        list_clean_passes,
        list_offered_forms,
    )
    from byoc.passes._cleaning import CleanedModel, CleanPass, SimplifyParts, apply_edits, clean_model
    from byoc.passes._folded_scales import FoldScales
    from byoc.passes._idle_clamps import CLAMPS
    from byoc.passes._pass_plugins import (
        MODEL_SCOPE,
        REGION_SCOPE,
        LoadedPass,
        Pass,
        PassEffect,
        PassFailedError,
        PassProcess,
        apply_pass,
        count_operators,
        find_interface_change,
        is_changed,
        load_pass,
        load_passes,
        load_region_pass,
        merge_effects,
    )
    from byoc.passes._planar_forms import PooledMean
    from byoc.passes._quantized_operators import ReadQuantizedOperators
    from byoc.passes._simplify import GraphEdits
    from byoc.passes._twin_forms import VIEW_KEY, ChosenForm, TwinForm, find_forms, find_twins
else:
    __getattr__, __dir__, __all__ = open_door(__name__)

BUILT_IN = {
    "drop-clamps": "byoc.passes._idle_clamps:DropClamps",
    "drop-dropout": "byoc.passes._clean_set:DropDropout",
    "drop-identity": "byoc.passes._clean_set:DropIdentity",
    "drop-nan-guards": "byoc.passes._cleaning:DropNanGuards",
    "explicit-pads": "byoc.passes._affine_folding:ExplicitPads",
    "flatten-to-reshape": "byoc.passes._clean_set:FlattenToReshape",
    "flat-form": "byoc.passes._flat_forms:FlatForm",
    "fold-batchnorm": "byoc.passes._affine_folding:FoldBatchNormalization",
    "fold-scales": "byoc.passes._folded_scales:FoldScales",
    "fold-shapes": "byoc.passes._clean_set:FoldShapes",
    "frame-form": "byoc.passes._frame_forms:FrameForm",
    "narrow-doubles": "byoc.passes._narrow_forms:NarrowDoubles",
    "narrow-integers": "byoc.passes._narrow_forms:NarrowIntegers",
    "planar-form": "byoc.passes._planar_forms:PlanarForm",
    "pooled-mean": "byoc.passes._planar_forms:PooledMean",
    "read-quantized": "byoc.passes._quantized_operators:ReadQuantizedOperators",
    "simplify": "byoc.passes._simplify:Simplify",
}
"""Where each pass that comes with byoc is, by name; imported when it is asked for."""
