"""The contracts of boundary tensors: everything that host and region must agree on about their bytes."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.boundary.contracts._boundary_nodes import UNKNOWN_LAYOUT, RegionContext, is_conversion
    from byoc.boundary.contracts._contract_check import check_contracts
    from byoc.boundary.contracts._region_view import (
        RegionContracts,
        TensorContract,
        find_convolution_weights,
        pack_weight,
        read_region_contracts,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
