"""Rewriting of nodes to compute in float16 or bfloat16 where the operators' schemas allow it.

Reduction of Transposes on the host: merge, cancel, and move them where they cost the fewest bytes.
"""

from byoc.boundary.convert._convert_boundary import ConvertedModel, convert_boundary
from byoc.boundary.convert._model_editor import BoundaryFormat, RegionBoundary
from byoc.boundary.convert._tensor_transfers import (
    Conversion,
    find_own_quantization,
    make_transfer_lookup,
)
