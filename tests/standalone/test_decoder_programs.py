"""Decoders as programs in C: forms of their operators against onnxruntime, also in big endian."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from byoc.errors import InputError
from byoc.standalone import export_c, verify_program
from byoc.zoo import DecoderShape, DecoderSize, make_decoder

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
STRICT = "cc -std=c99 -pedantic -Wall -Wextra -Werror -O1"
BIG_ENDIAN = ("s390x-linux-gnu-gcc -static -std=c99 -Wall -Wextra -Werror -O1", "qemu-s390x")
CONTRIB = "com.microsoft"
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


class DecoderOperators:
    """A model of operators side by side, each with inputs and outputs of its own."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(11)
        self.graph = onnx.GraphProto(name="net")

    def add(
        self,
        kind: str,
        operands: Sequence[tuple[int, ...] | np.ndarray | None],
        results: Sequence[tuple[int, ...] | None],
        domain: str = CONTRIB,
        **attributes: object,
    ) -> None:
        """Add an operator: shapes are inputs, arrays constants; None is left out."""
        number, names = len(self.graph.node), []
        for at, operand in enumerate(operands):
            name = f"{kind}_{number}_{at}" if operand is not None else ""
            if isinstance(operand, tuple):
                self.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, operand))
            elif operand is not None:
                self.graph.initializer.append(numpy_helper.from_array(operand, name))
            names.append(name)
        made = [f"y_{number}_{at}" if shape is not None else "" for at, shape in enumerate(results)]
        self.graph.node.append(helper.make_node(kind, names, made, domain=domain, **attributes))
        for name, shape in zip(made, results, strict=True):
            if shape is not None:
                output = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                self.graph.output.append(output)

    def draw(self, *shape: int) -> np.ndarray:
        """Return random floats."""
        return self.random.standard_normal(shape).astype(np.float32)

    def draw_numbers(self, *shape: int) -> np.ndarray:
        """Return random bytes."""
        return self.random.integers(0, 256, shape, np.uint8)

    def build(self) -> onnx.ModelProto:
        """Return the model."""
        versions = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(self.graph, opset_imports=versions, ir_version=10)


def add_attention(
    net: DecoderOperators,
    lengths: tuple[int, ...],
    count: int,
    past: int,
    total: int,
    *,
    heads: tuple[int, int] = (4, 2),
    head: int = 16,
    packed: bool = True,
    rotated: int = 16,
    **attributes: object,
) -> None:
    """Add a GroupQueryAttention of `count` new positions; sequences have `lengths` with them."""
    batch, length = len(lengths), max(past, total)
    queries, keys = (number * head for number in heads)
    rows: list[Any] = [(batch, count, queries + 2 * keys), None, None]
    if not packed:
        rows = [(batch, count, queries), (batch, count, keys), (batch, count, keys)]
    cache = (batch, heads[1], past, head) if past else None
    angles = [net.draw(length + 3, rotated // 2) for _ in range(2)] if rotated else []
    sizes = [np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
    results = [(batch, count, queries), *[(batch, heads[1], length, head)] * 2]
    attributes = {"num_heads": heads[0], "kv_num_heads": heads[1], **attributes}
    attributes["do_rotary"] = int(bool(rotated))
    net.add("GroupQueryAttention", [*rows, cache, cache, *sizes, *angles], results, **attributes)


def add_attentions(net: DecoderOperators) -> None:
    """Add prompts, tokens, and several tokens behind a cache, in all forms."""
    add_attention(net, (5,), 5, 0, 5)  # a prompt
    add_attention(net, (5, 5), 5, 0, 5, packed=False, rotated=0, scale=0.5)
    add_attention(net, (4,), 4, 9, 4)  # into a cache that is longer
    add_attention(net, (8, 3), 1, 12, 12, heads=(6, 3))  # a token, at other positions of two sequences
    add_attention(net, (12,), 1, 12, 12, heads=(3, 1), head=48, rotated=48, packed=False)
    add_attention(net, (7,), 3, 20, 20, rotary_interleaved=1)  # several tokens
    add_attention(net, (11,), 2, 9, 11, head=32, rotated=16)  # a cache that grows
    add_attention(net, (9,), 1, 8, 9, heads=(2, 2), head=48, rotated=32, softcap=3.0)
    add_attention(net, (6,), 1, 10, 10, local_window_size=10)  # a window that reaches everything


def add_norms(net: DecoderOperators) -> None:
    """Add normalizations of rows, and of what is added before."""
    plain, skip = "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"
    net.add(plain, [(2, 3, 20), net.draw(20)], [(2, 3, 20)], "", epsilon=1e-3)
    net.add(plain, [(3, 4, 5), net.draw(4, 5)], [(3, 4, 5)], "", axis=1)
    x, bias = (2, 3, 35), net.draw(35)
    net.add(skip, [x, x, net.draw(35), bias], [x, None, None, x], epsilon=1e-2)
    net.add(skip, [x, (1, 3, 35), net.draw(35)], [x])
    net.add(skip, [x, (3, 35), net.draw(35)], [x, None, None, x])


def add_products(net: DecoderOperators) -> None:
    """Add products by weights of four bits, and one of eight, which emx-onnx-cgen has."""
    for rows, depth, cols, block, zeros, bias in (
        ((1, 1), 64, 24, 32, False, False),
        ((2, 3), 80, 7, 32, True, True),
        ((5,), 48, 9, 16, True, False),
        ((1, 4), 200, 5, 128, False, True),
    ):
        blocks = -(-depth // block)
        weights = net.draw_numbers(cols, blocks, block // 2)
        operands = [(*rows, depth), weights, abs(net.draw(cols, blocks)), None, None, None]
        operands[3] = net.draw_numbers(cols, (blocks + 1) // 2) if zeros else None
        operands[5] = net.draw(cols) if bias else None
        sizes = {"K": depth, "N": cols, "block_size": block}
        net.add("MatMulNBits", operands, [(*rows, cols)], bits=4, accuracy_level=4, **sizes)
    wide = [(2, 64), net.draw_numbers(5, 2, 32), abs(net.draw(5, 2))]
    net.add("MatMulNBits", wide, [(2, 5)], bits=8, K=64, N=5, block_size=32)


def add_rotations(net: DecoderOperators) -> None:
    """Add rotations by position of queries or keys."""
    positions = np.array([[4, 5, 6]])
    angles = [net.draw(9, 8) for _ in range(2)]
    net.add("RotaryEmbedding", [(1, 3, 32), positions, *angles], [(1, 3, 32)])
    net.add("RotaryEmbedding", [(1, 2, 3, 16), positions, *angles], [(1, 2, 3, 16)], interleaved=1)
    options = {"num_heads": 2, "rotary_embedding_dim": 16}
    net.add("RotaryEmbedding", [(1, 3, 64), positions, *angles], [(1, 3, 64)], **options)


@pytest.fixture(scope="module")
def operators() -> onnx.ModelProto:
    """Return a model of all operators of decoders."""
    net = DecoderOperators()
    for add in (add_attentions, add_norms, add_products, add_rotations):
        add(net)
    return net.build()


def check(model: onnx.ModelProto | str, folder: Path, big: bool) -> None:
    """Export a model, build it, here or for a big-endian machine, and run it."""
    export_c(model, output=folder, byte_order="big" if big else "little")
    found = verify_program(folder, *(BIG_ENDIAN if big else (STRICT,)))
    assert found.passed, found.problem
    assert max(each.error for each in found.outputs) < 2e-6
    assert found.arena_bytes == found.plan_bytes


@needs_compiler
@pytest.mark.parametrize("big", [False, True], ids=["here", "s390x"])
def test_operators_of_decoders(operators: onnx.ModelProto, big: bool, tmp_path: Path) -> None:
    if big and not all(shutil.which(command.split()[0]) for command in BIG_ENDIAN):
        pytest.skip("a compiler or an emulator is not installed")
    check(operators, tmp_path / "out", big)


@needs_compiler
@pytest.mark.parametrize("family", ["llama", "qwen", "phi"])
def test_a_token_of_a_decoder(family: Any, tmp_path: Path) -> None:
    """A whole decoder with a cache of a fixed length, as genai writes it, all of it in C."""
    size = DecoderSize(vocabulary=96, layers=2, hidden=128, heads=4, kv_heads=2, wide=96, context=32)
    check(
        make_decoder("int4", DecoderShape(1, 1, 16, 16, 16), size, family=family),
        tmp_path / "out",
        False,
    )


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"smooth_softmax": 1}, "smooth_softmax is 1, and must be 0"),
    ({"local_window_size": 3}, "local_window_size is 3, less than the 12 of its cache"),
]


@pytest.mark.parametrize(("attributes", "reason"), REFUSALS)
def test_what_has_no_function(attributes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    net = DecoderOperators()
    add_attention(net, (8,), 1, 12, 12, **attributes)
    with pytest.raises(InputError, match=f"GroupQueryAttention.* has no function in C: {reason}"):
        export_c(net.build(), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()
