"""The compiler: from a region to a program."""

from .compile_region import NAME, CompiledRegion, DLAOptions, compile_region
from .layer_tensors import boundary_shape
from .layers import BoundaryPort
from .lower_region import check_nodes
