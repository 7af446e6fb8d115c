"""The compiler: from a region to a program."""

from .compile_region import (
    CompiledRegion,
    StoredResult,
    check_nodes,
    compile_region,
    lower_region,
)
from .emission import WeightPiece, fill_weights, have_same_program
from .layers import BoundaryPort, LayerNetwork
from .output_shapes import boundary_shape
