"""Schemas of operators: what ONNX, and onnxruntime where it is installed, say of each."""

from typing import TYPE_CHECKING

from byoc._doors import open_door

if TYPE_CHECKING:
    from byoc.model.schemas._operator_schema import (
        DTYPE_NUMBERS,
        DTYPES,
        INSTALL_HINT,
        FormalParameter,
        OperatorSchema,
        OperatorVersions,
        describe_unknown_operator,
        find_operator,
        find_schemas,
        get_schema,
        has_kernel,
        has_runtime_schemas,
        list_onnx_domains,
        list_onnx_operators,
        make_operator_name,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
