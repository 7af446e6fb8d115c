"""Generated decoders with a key-value cache, as the model builder of onnxruntime-genai writes them.

The operators, their attributes, and the names of inputs, outputs, nodes and dimensions are those of
onnxruntime-genai 0.18 for a network like Llama (Touvron et al., "LLaMA", 2023). Those for the CPU have
packed projections and rotate positions in GroupQueryAttention; those for DirectML do both apart. Weights
are seeded, and the same before rounding in every variant.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.model import build_node
from byoc.zoo._classic_models import IR_VERSION
from byoc.zoo._sample_inputs import UniformSpread, derive_seed, draw_uniform

# The widths of generated decoders, and the extents of their inputs.

WEIGHT_BLOCK = 32
"""Weights of 4 bits that share a scale."""

WeightKind = Literal["int4", "float16", "float32"]


@dataclass(frozen=True)
class DecoderSize:
    """The widths of a decoder; `context` is how many positions it can rotate."""

    layers: int = 3
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    wide: int = 352
    vocabulary: int = 1024
    context: int = 512

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.hidden // self.heads


@dataclass(frozen=True)
class DecoderShape:
    """The extents of a decoder's inputs: numbers, or the names that onnxruntime-genai gives them.

    `past` and `present` are the lengths of the cache before and after a run, `total` that of the mask.
    """

    batch: int | str = "batch_size"
    sequence: int | str = "sequence_length"
    past: int | str = "past_sequence_length"
    total: int | str = "total_sequence_length"
    present: int | str = "total_sequence_length"


def check_decoder_size(size: DecoderSize, weights: WeightKind) -> None:
    """Raise InputError for widths and heads that no decoder has."""
    if size.hidden % size.heads or size.heads % size.kv_heads or size.head % 2:
        raise InputError(
            f"zoo: no decoder has {size.heads} heads, {size.kv_heads} for keys, in {size.hidden}"
        )
    if weights == "int4" and (size.hidden % WEIGHT_BLOCK or size.wide % WEIGHT_BLOCK):
        raise InputError(
            f"zoo: int4 weights come in blocks of {WEIGHT_BLOCK}, not for {size.hidden} or {size.wide}"
        )


# Writing of graphs node by node, each tensor with its type, as exporters do.

Shape = Sequence[int | str | None] | None
"""Extents as numbers, as names or neither; None where not even the rank is stated."""


class GraphWriter:
    """A model that is being written: nodes, types and seeded weights are appended.

    Operators are named with their domain, as `com.microsoft.BiasGelu`; those of ONNX have none.
    """

    def __init__(self, name: str, opsets: dict[str, int], seed: str) -> None:
        self.model = onnx.ModelProto(ir_version=IR_VERSION, producer_name="byoc")
        for domain, version in opsets.items():
            self.model.opset_import.add(domain=domain, version=version)
        self.graph = self.model.graph
        self.graph.name = name
        self.seed = seed

    def add_input(self, name: str, dtype: int, shape: Shape) -> None:
        """Add an input of the graph."""
        self.graph.input.append(helper.make_tensor_value_info(name, dtype, shape))

    def add_output(self, name: str, dtype: int, shape: Shape) -> None:
        """Add an output of the graph."""
        self.graph.output.append(helper.make_tensor_value_info(name, dtype, shape))

    def state_type(self, name: str, dtype: int, shape: Shape) -> None:
        """State the type of a tensor that a node makes."""
        self.graph.value_info.append(helper.make_tensor_value_info(name, dtype, shape))

    def add_node(
        self,
        operator: str,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        **attributes: Any,
    ) -> None:
        """Add a node; inputs and outputs that are left out have empty names."""
        domain, _, kind = operator.rpartition(".")
        self.graph.node.append(build_node(kind, inputs, outputs, name, domain=domain, **attributes))

    def store(self, name: str, values: NDArray[Any]) -> str:
        """Store an initializer, and return its name."""
        self.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def draw(
        self, name: str, shape: tuple[int, ...], deviation: float, centre: float = 0.0
    ) -> NDArray[np.float32]:
        """Draw float32 values, seeded by the writer's seed and a name."""
        spread = UniformSpread(centre, deviation * sqrt(3.0))
        return draw_uniform(derive_seed(self.seed, name), shape, spread)


# Generated decoders with a key-value cache, as the model builder of onnxruntime-genai writes them.

_EPSILON = 1e-5  # of normalizations
_BRANCH = 0.5  # deviation of what attention adds
_SHARPNESS = 4.0  # deviation of the logits: greedy decoding chooses with a margin


def count_decoder_nodes(size: DecoderSize, *, fused: bool) -> int:
    """Count the nodes of `make_decoder` (`_decoder_families`) without constants."""
    return (11 if fused else 15) * size.layers + 9


def quantize_blocks(kernel: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Round a kernel `[K, N]` to 4 bits as MatMulNBits stores it, symmetric around the zero point 8.

    Returns the packed numbers `[N, K / 32, 16]`, the earlier of two in the lower half of a byte, and the
    scales `[N, K / 32]`.
    """
    rows, columns = kernel.shape
    blocks = kernel.T.reshape(columns, rows // WEIGHT_BLOCK, WEIGHT_BLOCK)
    scales = (abs(blocks).max(axis=2) / 7).astype(np.float32)
    numbers = (np.rint(blocks / scales[..., None]) + 8).astype(np.uint8)
    return numbers[..., ::2] | (numbers[..., 1::2] << 4), scales


def name_weight(node: str, part: str = "weight") -> str:
    """Return the builder's name of a node's weight, `model.x.MatMul.weight` for `/model/x/MatMul`."""
    return f"{node[1:].replace('/', '.')}.{part}"


class DecoderWriter(GraphWriter):
    """Writer of one decoder's graph, in the builder's order.

    `rotated` is the number of channels of a head that are rotated by position, 0 for all of them.
    """

    rotated = 0

    def __init__(self, weights: WeightKind, shape: DecoderShape, size: DecoderSize, fused: bool) -> None:
        super().__init__("main_graph", {"": 21, "com.microsoft": 1}, "decoder")
        self.weights, self.shape, self.size, self.fused = weights, shape, size, fused
        self.dtype = TensorProto.FLOAT16 if weights == "float16" else TensorProto.FLOAT

    def write(self) -> onnx.ModelProto:
        """Write the model."""
        size = self.size
        self._add_interface()
        self._add_constants()
        lengths = self._add_lengths()
        table = self._store_float(
            "model.embed_tokens.weight", self.draw("embedding", (size.vocabulary, size.hidden), 1.0)
        )
        stream = self._add_one("Gather", "/model/embed_tokens/Gather", (table, "input_ids"), size.hidden)
        branch = ""
        for layer in range(size.layers):
            stream, branch = self._add_layer(layer, stream, branch, lengths)
        last = f"/model/layers.{size.layers}/final_norm_layernorm"
        normal, _ = self._add_norm(last, stream, branch, is_last=True)
        head = self.draw("lm_head", (size.hidden, size.vocabulary), _SHARPNESS * size.hidden**-0.5)
        self._add_matmul("/lm_head/MatMul", normal, head, "logits")
        return self.model

    def _add_layer(
        self, layer: int, stream: str, branch: str, lengths: tuple[str, str]
    ) -> tuple[str, str]:
        """Add a layer behind a stream and the branch that is to be added to it; return the new ones."""
        prefix = f"/model/layers.{layer}"
        normal, stream = self._add_norm(f"{prefix}/input_layernorm", stream, branch)
        branch = self._add_attention(layer, normal, lengths)
        normal, stream = self._add_norm(f"{prefix}/post_attention_layernorm", stream, branch)
        return stream, self._add_feed_forward(f"{prefix}/mlp", normal)

    def _hidden(self, width: int) -> tuple[int | str, ...]:
        return self.shape.batch, self.shape.sequence, width

    def _add_interface(self) -> None:
        """Add the inputs and outputs of the graph."""
        shape, size = self.shape, self.size
        tokens = (shape.batch, shape.sequence)
        self.add_input("input_ids", TensorProto.INT64, tokens)
        self.add_input("attention_mask", TensorProto.INT64, (shape.batch, shape.total))
        if not self.fused:
            self.add_input("position_ids", TensorProto.INT64, tokens)
        self.add_output("logits", self.dtype, self._hidden(size.vocabulary))
        past, present = (
            (shape.batch, size.kv_heads, length, size.head) for length in (shape.past, shape.present)
        )
        for layer in range(size.layers):
            for part in ("key", "value"):
                self.add_input(f"past_key_values.{layer}.{part}", self.dtype, past)
                self.add_output(f"present.{layer}.{part}", self.dtype, present)

    def _add_constants(self) -> None:
        for text, values in (("[1]", np.array([1])), ("1", np.array(1))):
            name = f"/model/constants/INT64/{text}"
            tensor = onnx.numpy_helper.from_array(values.astype(np.int64), name)
            self.add_node(
                "Constant", name.replace("constants", "constant_nodes"), (), (name,), value=tensor
            )
        size = self.size
        # Rotation by position: Su et al., "RoFormer", 2021; the base is Llama's.
        width = self.rotated or size.head
        frequencies = 10_000.0 ** -(np.arange(0, width, 2) / width)
        angles = np.arange(size.context)[:, None] * frequencies
        self._store_float("cos_cache", np.cos(angles).astype(np.float32))
        self._store_float("sin_cache", np.sin(angles).astype(np.float32))

    def _add_lengths(self) -> tuple[str, str]:
        """Add what makes a mask into the two lengths that GroupQueryAttention takes; return them."""
        prefix = "/model/attn_mask_reformat/attn_mask_subgraph"
        one, first = (f"/model/constants/INT64/{text}" for text in ("[1]", "1"))
        batch, int64, int32 = (self.shape.batch,), TensorProto.INT64, TensorProto.INT32

        def add(operator: str, name: str, inputs: Sequence[str], extents: Any, **attributes: int) -> str:
            output = f"{prefix}/{name}/output_0"
            self.add_node(operator, f"{prefix}/{name}", inputs, (output,), **attributes)
            self.state_type(output, attributes.get("to", int64), extents)
            return output

        given = add("ReduceSum", "ReduceSum", ("attention_mask", one), batch, keepdims=0)
        last = add("Sub", "Sub", (given, one), batch)
        extents = add("Shape", "Shape", ("attention_mask",), (2,))
        total = add("Gather", "Gather", (extents, first), (), axis=0)
        return (
            add("Cast", "Sub/Cast", (last,), batch, to=int32),
            add("Cast", "Gather/Cast", (total,), None, to=int32),
        )

    def _add_norm(self, name: str, stream: str, branch: str, is_last: bool = False) -> tuple[str, str]:
        """Add a branch to the stream, if there is one, and normalize it; return both results."""
        weight = name_weight(name)
        self._store_float(weight, self.draw(weight, (self.size.hidden,), 0.1, 1.0))
        output, following = f"{name}/output_0", f"{name}/output_3"
        self.state_type(output, self.dtype, self._hidden(self.size.hidden))
        if not branch:
            first = {"axis": -1, "stash_type": 1}
            self.add_node(
                "SimplifiedLayerNormalization",
                f"{name}/LayerNorm",
                (stream, weight),
                (output,),
                epsilon=_EPSILON,
                **first,
            )
            return output, stream
        outputs = (output,) if is_last else (output, "", "", following)
        self.add_node(
            "com.microsoft.SkipSimplifiedLayerNormalization",
            f"{name}/SkipLayerNorm",
            (stream, branch, weight),
            outputs,
            epsilon=_EPSILON,
        )
        if not is_last:
            self.state_type(following, self.dtype, self._hidden(self.size.hidden))
        return output, following

    def _add_attention(self, layer: int, normal: str, lengths: tuple[str, str]) -> str:
        size, prefix = self.size, f"/model/layers.{layer}/attn"
        queries, keys = size.heads * size.head, size.kv_heads * size.head
        name = f"{prefix}/GroupQueryAttention"
        projected = self._add_projections(prefix, normal, {"q": queries, "k": keys, "v": keys})
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        rotation = ("cos_cache", "sin_cache") if self.fused else ("", "")
        # Positions, a bias and sinks, which the builder leaves out by empty names, end the inputs.
        self.add_node(
            "com.microsoft.GroupQueryAttention",
            name,
            (*projected, *past, *lengths, *rotation, "", "", ""),
            (f"{name}/output_0", *present),
            num_heads=size.heads,
            kv_num_heads=size.kv_heads,
            scale=1.0 / sqrt(size.head),
            local_window_size=-1,
            softcap=0.0,
            do_rotary=int(self.fused),
            rotary_interleaved=0,
        )
        self.state_type(f"{name}/output_0", self.dtype, self._hidden(queries))
        joined = self.draw(f"{prefix}/o", (queries, size.hidden), _BRANCH * queries**-0.5)
        return self._add_matmul(f"{prefix}/o_proj/MatMul", f"{name}/output_0", joined)

    def _add_projections(self, prefix: str, normal: str, widths: dict[str, int]) -> tuple[str, ...]:
        """Add the projections to queries, keys and values: one packed product, or three and rotation."""
        rows = self.size.hidden
        drawn = {p: self.draw(f"{prefix}/{p}", (rows, width), rows**-0.5) for p, width in widths.items()}
        if self.fused:
            packed = np.concatenate(list(drawn.values()), axis=1)
            return self._add_matmul(f"{prefix}/qkv_proj/MatMul", normal, packed), "", ""
        made = {
            p: self._add_matmul(f"{prefix}/{p}_proj/MatMul", normal, each) for p, each in drawn.items()
        }
        for part in ("q", "k"):
            made[part] = self._add_one(
                "com.microsoft.RotaryEmbedding",
                f"{prefix}/{part}_rotary/RotaryEmbedding",
                (made[part], "position_ids", "cos_cache", "sin_cache"),
                widths[part],
                interleaved=0,
                num_heads=0,
                rotary_embedding_dim=0,
            )
        return made["q"], made["k"], made["v"]

    def _add_feed_forward(self, prefix: str, normal: str) -> str:
        """Add a gated layer, its activation x * sigmoid(x) as two nodes."""
        hidden, wide = self.size.hidden, self.size.wide
        gate, up = (
            self._add_matmul(
                f"{prefix}/{part}_proj/MatMul",
                normal,
                self.draw(f"{prefix}/{part}", (hidden, wide), hidden**-0.5),
            )
            for part in ("gate", "up")
        )
        sigmoid = self._add_one("Sigmoid", f"{prefix}/act_fn/Sigmoid", (gate,), wide)
        active = self._add_one("Mul", f"{prefix}/act_fn/Mul", (gate, sigmoid), wide)
        gated = self._add_one("Mul", f"{prefix}/Mul", (active, up), wide)
        # A gate's power is about a quarter of what goes in.
        narrow = self.draw(f"{prefix}/down", (wide, hidden), 2 * _BRANCH * wide**-0.5)
        return self._add_matmul(f"{prefix}/down_proj/MatMul", gated, narrow)

    def _add_matmul(self, name: str, x: str, kernel: NDArray[np.float32], output: str = "") -> str:
        """Add a product with a kernel `[K, N]`, MatMulNBits for int4, and return its output."""
        weight = name_weight(name)
        rows, columns = kernel.shape
        if not output:
            output = f"{name}/output_0"
            self.state_type(output, self.dtype, self._hidden(columns))
        if self.weights != "int4":
            self.add_node("MatMul", name, (x, self._store_float(weight, kernel)), (output,))
            return output
        packed, scales = quantize_blocks(kernel)
        self.add_node(
            "com.microsoft.MatMulNBits",
            f"{name}_Q4",
            (x, self.store(f"{weight}_Q4", packed), self.store(f"{weight}_scales", scales)),
            (output,),
            K=rows,
            N=columns,
            bits=4,
            block_size=WEIGHT_BLOCK,
            accuracy_level=4,
        )
        return output

    def _add_one(
        self, operator: str, name: str, inputs: Sequence[str], width: int, **attributes: Any
    ) -> str:
        """Add a node whose one output is `[batch, sequence, width]`, and return that."""
        output = f"{name}/output_0"
        self.add_node(operator, name, inputs, (output,), **attributes)
        self.state_type(output, self.dtype, self._hidden(width))
        return output

    def _store_float(self, name: str, values: NDArray[np.float32]) -> str:
        return self.store(name, values.astype(np.float16 if self.weights == "float16" else np.float32))
