"""Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""

from byoc.onnxrt._onnxruntime import (
    INSTALL_HINT,
    has_runtime,
    measure_node_seconds,
    open_session,
    output_types,
    run_session,
    session_runner,
    sharing_threads,
    without_optimizations,
)
