"""The compiler: from a region to a program."""

from .compile_region import NAME, CompiledRegion, DLAOptions, compile_region
from .emission import WeightPiece, fill_weights, have_same_program
from .layers import BoundaryPort, LayerNetwork
from .lower_region import check_nodes, lower_region
from .output_shapes import boundary_shape
