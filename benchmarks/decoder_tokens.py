"""What a token costs: bundles of a decoder that keep its cache, against onnxruntime with shared buffers.

    python benchmarks/decoder_tokens.py [--layers N] [--hidden N] [--tokens N] [--context N]

The decoder has int4 weights and is built as by onnxruntime-genai's model builder. In onnxruntime past
and present are bound to one buffer with IOBinding, which is the fastest that it can do. The bundles have
all of the model in one region of `reference`, only its attention, or only its products and what is
elementwise, in many regions; their sessions keep the cache in place
(`byoc.open_stateful(session, max_length=...)`) or let it grow.
At last one bundle of two variants keeps the cache in place, against padding and cutting it in each call.
All run on one thread and take turns, a token each; the ratio of a turn is in processor time, and the
median and the quartiles are printed.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import cpu_timed, machine
from numpy.typing import NDArray

import byoc
from byoc.onnxrt import with_threads
from byoc.zoo import DecoderSize, make_decoder

_COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\n"
    "link: {bandwidth: 1.0e+12}\n"
)
_RULES = "target: near\ncodegen: reference\ncost_model: near.yaml\ndtype: any\nregions: connected\nops: "
_WHOLE = "[{op: '*'}]\n"
_PIECES = "[{op: com.microsoft.MatMulNBits}, {op: [Sigmoid, Mul]}]\n"
_ATTENTION = "[{op: com.microsoft.GroupQueryAttention}]\n"
_WARM_UP = 4

Arrays = Mapping[str, NDArray[Any]]
Step = Callable[[Arrays], NDArray[Any]]


def main(layers: int, hidden: int, tokens: int, context: int) -> None:
    """Print a line for each way to run the decoder."""
    heads = hidden // 64
    size = DecoderSize(
        layers, hidden, heads, heads // 2, hidden * 11 // 4, 4096, context + tokens + _WARM_UP + 1
    )
    model = make_decoder("int4", size=size)
    shape = f"{layers} layers of {hidden}, context {context}"
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, {shape}")
    length = size.context
    cache = _make_cache(model, context)
    with TemporaryDirectory() as name, with_threads(1):
        folder = Path(name)
        steps = {"onnxruntime, one buffer": _share_buffers(_open_plain(model), cache, length)}
        for title, operators in (
            ("one region", _WHOLE),
            ("attention", _ATTENTION),
            ("pieces", _PIECES),
        ):
            session = _load_bundle(model, folder, operators)
            count = sum(stage.device != "host" for stage in session.stages)
            for kept, most in (("in place", length), ("growing", None)):
                stateful = byoc.open_stateful(session, max_length=most)
                stateful.reset(cache)
                step = _make_step(stateful)
                steps[f"bundle, {title} ({count}), {kept}"] = step
        _print_ratios(steps, context, tokens)
        if context > 64 + _WARM_UP + 1:
            _compare_variants(model, context, min(tokens, context - 64 - _WARM_UP))


def _compare_variants(model: onnx.ModelProto, length: int, tokens: int) -> None:
    """Print what a token takes where a variant updates its cache, against one that is padded and cut."""
    variants = {"read": (64, 0, 64), "step": (1, length, length)}
    names = ("sequence_length", "past_sequence_length", "total_sequence_length")
    with TemporaryDirectory() as name:
        sizes = {each: dict(zip(names, own, strict=True)) for each, own in variants.items()}
        session = _load_bundle(model, Path(name), _WHOLE, dims={"batch_size": 1}, variants=sizes)
        stateful = byoc.open_stateful(session)
        stateful({"input_ids": np.arange(64)[None], "attention_mask": np.ones((1, 64), np.int64)})
        kept = {past: np.array(array) for past, array in stateful.state.items()}
        ratios = []
        for turn in range(_WARM_UP + tokens):
            mask = np.ones((1, 65 + turn), np.int64)
            inputs = {"input_ids": np.array([[turn % 100]]), "attention_mask": mask}
            spent, found = cpu_timed(stateful, inputs)
            padded, other = cpu_timed(session, {**inputs, **kept})
            np.testing.assert_array_equal(found["logits"], other["logits"])
            kept = {past: other[present] for past, present in stateful.pairs.items()}
            ratios.append(spent / padded)
    low, middle, high = np.percentile(ratios[_WARM_UP:], (25, 50, 75))
    title = f"variants, cache of {length}, in place"
    print(f"{title}: {middle:.3f} ({low:.3f} to {high:.3f}) of padding and cutting it")


def _make_cache(model: onnx.ModelProto, context: int) -> dict[str, NDArray[Any]]:
    """Return a cache of random keys and values that has `context` positions."""
    random = np.random.default_rng(0)
    caches = [value for value in model.graph.input if value.name.startswith("past_key_values")]
    extents = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in caches}
    return {
        name: random.standard_normal((1, dims[1], context, dims[3]), np.float32)
        for name, dims in extents.items()
    }


def _open_plain(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _share_buffers(session: onnxruntime.InferenceSession, cache: Arrays, length: int) -> Step:
    """Return a step in onnxruntime, whose past and present are one buffer."""
    binding = session.io_binding()
    kept = []
    for name, start in cache.items():
        buffer = np.zeros((1, start.shape[1], length, start.shape[3]), np.float32)
        buffer[:, :, : start.shape[2]] = start
        place = ("cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)
        binding.bind_input(name, *place)
        binding.bind_output(name.replace("past_key_values", "present"), *place)
        kept.append(buffer)

    def step(inputs: Arrays) -> NDArray[Any]:
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output("logits")
        session.run_with_iobinding(binding)
        logits: NDArray[Any] = binding.get_outputs()[len(kept)].numpy()
        return logits

    return step


def _load_bundle(model: onnx.ModelProto, folder: Path, operators: str, **options: Any) -> Any:
    """Cut the decoder by a rule file that takes some operators, and load the bundle."""
    (folder / "near.yaml").write_text(_COSTS, encoding="utf-8")
    rules = folder / "near_rules.yaml"
    rules.write_text(_RULES + operators, encoding="utf-8")
    output = folder / "decoder.byoc"
    byoc.partition(model, str(rules), output=output, strategy="all-supported", what_if=False, **options)
    return byoc.load(output)


def _make_step(stateful: byoc.StatefulSession) -> Step:
    def step(inputs: Arrays) -> NDArray[Any]:
        logits: NDArray[Any] = stateful(inputs)["logits"]
        return logits

    return step


def _print_ratios(steps: Mapping[str, Step], context: int, tokens: int) -> None:
    """Run all steps in turn, and print what a token takes, and its ratio to the first one's."""
    seconds: dict[str, list[float]] = {title: [] for title in steps}
    for turn in range(_WARM_UP + tokens):
        inputs = {
            "input_ids": np.array([[turn % 100]]),
            "attention_mask": np.ones((1, context + turn + 1), np.int64),
        }
        expected = None
        for title, step in steps.items():
            spent, logits = cpu_timed(step, inputs)
            expected = logits if expected is None else expected
            np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)
            if turn >= _WARM_UP:
                seconds[title].append(spent)
    first = np.array(next(iter(seconds.values())))
    for title, spent in seconds.items():
        low, middle, high = np.percentile(np.array(spent) / first, (25, 50, 75))
        token = f"{np.median(spent) * 1e3:8.2f} ms a token"
        print(f"{title:34} {token}  {middle:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512, help="numbers of a token between layers")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--context", type=int, default=2048)
    chosen = parser.parse_args()
    main(chosen.layers, chosen.hidden, chosen.tokens, chosen.context)
