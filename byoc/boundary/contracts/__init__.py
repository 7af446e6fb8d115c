"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""

from byoc.boundary.contracts._axis_terms import UNKNOWN_LAYOUT
from byoc.boundary.contracts._boundary_nodes import is_conversion
from byoc.boundary.contracts._constant_contracts import find_convolution_weights, pack_weight
from byoc.boundary.contracts._contract_check import RegionContext, check_contracts
from byoc.boundary.contracts._region_view import RegionContracts, read_region_contracts
from byoc.boundary.contracts._tensor_contract import TensorContract
