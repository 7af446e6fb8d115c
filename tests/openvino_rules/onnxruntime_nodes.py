"""Models of one node of operators that onnxruntime has and ONNX has not: few bits, rotary embeddings."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from helpers.asking import Data, Question
from helpers.one_node_models import OneNode
from onnx import helper, numpy_helper

from byoc.onnxrt import open_session, run_session, without_optimizations

_RTOL, _ATOL = 1e-3, 1e-4
_OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]

# How a product differs from K=64, N=48, blocks of 32, 4 bits.
_PRODUCTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank 3": {"rows": (2, 5)},
    "8 bits": {"bits": 8},
    "2 bits": {"bits": 2},
    "zero points": {"zeros": np.uint8},
    "zero points, 8 bits": {"zeros": np.uint8, "bits": 8},
    "zero points of floats": {"zeros": np.float32},
    "three blocks": {"zeros": np.uint8, "columns": 96},
    "a block too long": {"zeros": np.uint8, "columns": 80},
    "blocks of 128": {"columns": 256, "block": 128},
    "blocks of 16": {"block": 16},
    "a bias": {"bias": True},
    "float32": {"accuracy_level": 1},
    "int8 activations": {"accuracy_level": 4},
    "groups": {"groups": True},
}
_ROTATIONS: dict[str, dict[str, Any]] = {
    "plain": {"num_heads": 4},
    "interleaved": {"num_heads": 4, "interleaved": 1},
    "rank 4": {"rank": 4},
    "rank 4, interleaved": {"rank": 4, "interleaved": 1},
    "scaled": {"num_heads": 4, "scale": 2.0},
    "one position": {"num_heads": 4, "position": True},
    "a part": {"num_heads": 4, "rotary_embedding_dim": 8},
}


def contrib_nodes() -> Iterator[OneNode]:
    """Yield the models; what they compute is onnxruntime's word."""
    for name, how in _PRODUCTS.items():
        yield _ask(f"MatMulNBits, {name}", *_product(**how))
    for name, how in _ROTATIONS.items():
        yield _ask(f"RotaryEmbedding, {name}", *_rotation(**how))


def _product(
    *,
    bits: int = 4,
    columns: int = 64,
    block: int = 32,
    rows: tuple[int, ...] = (4,),
    zeros: Any = None,
    bias: bool = False,
    groups: bool = False,
    **attributes: int,
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a MatMulNBits and its input."""
    drawn = np.random.default_rng(0)
    count, blocks = 48, -(-columns // block)
    packed = count * ((blocks * bits + 7) // 8)
    stored = {
        "w": drawn.integers(0, 256, (count, blocks, block * bits // 8)).astype(np.uint8),
        "s": (drawn.random(count * blocks) * 0.02 + 0.01).astype(np.float32),
    }
    if zeros is np.uint8:
        stored["z"] = drawn.integers(0, 256, packed).astype(np.uint8)
    elif zeros is not None:
        stored["z"] = (drawn.random(count * blocks) * 8).astype(zeros)
    if groups:
        stored["g"] = (np.arange(columns) // block).astype(np.int32)
    if bias:
        stored["b"] = drawn.normal(size=count).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits",
        ["x", *(name if name in stored else "" for name in "wszgb")],
        ["y"],
        domain="com.microsoft",
        K=columns,
        N=count,
        bits=bits,
        block_size=block,
        **attributes,
    )
    x = drawn.normal(size=(*rows, columns)).astype(np.float32)
    return _make_model(node, {"x": x}, [*rows, count], stored), {"x": x}


def _rotation(
    rank: int = 3, position: bool = False, **attributes: Any
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return a RotaryEmbedding and its inputs: batch 2, length 5, 4 heads of 16."""
    drawn = np.random.default_rng(0)
    half = attributes.get("rotary_embedding_dim", 16) // 2
    angles = np.outer(np.arange(32), 10.0 ** -np.linspace(0, 3, half)).astype(np.float32)
    shape = [2, 5, 64] if rank == 3 else [2, 4, 5, 16]
    at = np.array([3]) if position else np.tile(np.arange(5), (2, 1))
    inputs = {"x": drawn.normal(size=shape).astype(np.float32), "at": at}
    node = helper.make_node(
        "RotaryEmbedding", ["x", "at", "c", "d"], ["y"], domain="com.microsoft", **attributes
    )
    return _make_model(node, inputs, shape, {"c": np.cos(angles), "d": np.sin(angles)}), inputs


def _make_model(
    node: onnx.NodeProto, inputs: dict[str, Any], shape: list[int], stored: dict[str, Any]
) -> onnx.ModelProto:
    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, kinds[name], value.shape)
            for name, value in inputs.items()
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return helper.make_model(graph, opset_imports=_OPSETS, ir_version=10)


def _ask(name: str, model: onnx.ModelProto, inputs: dict[str, Any]) -> OneNode:
    with without_optimizations():
        expected = run_session(open_session(model), inputs)
    question = Question(model.SerializeToString(), (Data(inputs, expected, _RTOL, _ATOL),))
    return OneNode(name, "onnxruntime", model, question)
