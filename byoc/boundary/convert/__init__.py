"""The boundary stage: regions take boundary tensors in the dtypes and layouts of their targets.

Tensors are cast and quantized, brought into layouts, and transposed on the host as little as possible.
"""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.boundary.convert._convert_boundary import ConvertedModel, convert_boundary
    from byoc.boundary.convert._tensor_transfers import (
        AskedTranspose,
        BoundaryFormat,
        Conversion,
        RegionBoundary,
        TransposeOffer,
        TransposeShares,
        find_own_quantization,
        make_transfer_lookup,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
