"""byoc's provider of ONNX Runtime, a plug-in in C: where its library is.

import onnxruntime, onnx_byoc_provider

onnxruntime.register_execution_provider_library("byoc", onnx_byoc_provider.get_library_path())
"""

from pathlib import Path


def get_library_path() -> str:
    """Return the path of the library, which an application registers with onnxruntime."""
    return str(Path(__file__).with_name("libonnx_byoc_provider.so"))
