"""The passes that come with byoc, by name: where each class is, imported when it is asked for."""

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
