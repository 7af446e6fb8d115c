"""What a token costs with caches of one length, against the model whose Concat makes them longer.

    python benchmarks/static_cache_tokens.py [--models NAME,NAME] [--contexts N,N] [--tokens N]
        [--codegens NAME,NAME]

A bundle of the zoo's decoder has one variant that reads a token, all of it one region, with a cache that
holds the context and the tokens; its session keeps the state. The original runs in onnxruntime, with its
optimizations, and what it gives is fed back. All run on one thread and take turns, a token each; the
ratio of a turn is in processor time, and the median and the quartiles are printed.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
from common import cpu_timed, machine
from numpy.typing import NDArray

import byoc
from byoc.onnxrt import with_threads
from byoc.samples import DecoderInputs, find_decoder_inputs
from byoc.zoo import load_model

_RULES = "target: npu\ncost_model: openvino-cpu\ndtype: any\nops: [{op: '*'}]\n"
_WARM_UP = 4

Arrays = Mapping[str, NDArray[Any]]
Step = Callable[[Arrays], NDArray[Any]]


def main(models: list[str], contexts: list[int], tokens: int, codegens: list[str]) -> None:
    """Print a line for each model, context and codegen."""
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, processor time of a token")
    with TemporaryDirectory() as folder, with_threads(1):
        for name in models:
            for context in contexts:
                _measure(name, context, tokens, codegens, Path(folder))


def _measure(name: str, context: int, tokens: int, codegens: list[str], folder: Path) -> None:
    """Run all ways to compute a token in turn, and print their ratios to the first one's."""
    model = load_model(f"zoo:{name}")
    decoder = find_decoder_inputs(model)
    shapes = decoder.find_shapes(context, 1)
    random = np.random.default_rng(0)
    state = {p.past: random.standard_normal(shapes[p.past], np.float32) for p in decoder.pairs}
    steps = {"onnxruntime": _run_original(model.proto.SerializeToString(), decoder, state)}
    for codegen in codegens:
        length = context + tokens + _WARM_UP + 1
        steps[codegen] = _run_bundle(name, length, codegen, folder, state)
    kept = decoder.make_kept(0, 1)
    seconds: dict[str, list[float]] = {title: [] for title in steps}
    for turn in range(_WARM_UP + tokens):
        inputs = decoder.make_step(np.array([[turn % 100]]), context + turn, kept)
        expected = None
        for title, step in steps.items():
            spent, logits = cpu_timed(step, inputs)
            expected = logits if expected is None else expected
            np.testing.assert_allclose(logits, expected, atol=1e-4 * np.ptp(expected))
            if turn >= _WARM_UP:
                seconds[title].append(spent)
    first = np.array(seconds["onnxruntime"])
    for title, spent in seconds.items():
        low, middle, high = np.percentile(np.array(spent) / first, (25, 50, 75))
        where = f"{name}, {context} tokens, {title}"
        print(f"{where:44} {np.median(spent) * 1e3:7.2f} ms  {middle:.3f} ({low:.3f} to {high:.3f})")


def _run_original(model: bytes, decoder: DecoderInputs, state: Arrays) -> Step:
    """Return a step in onnxruntime, whose cache a Concat makes longer."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    kept = dict(state)

    def step(inputs: Arrays) -> NDArray[Any]:
        found = dict(zip(names, session.run(names, {**inputs, **kept}), strict=True))
        kept.update((pair.past, found[pair.present]) for pair in decoder.pairs)
        logits: NDArray[Any] = found[decoder.logits]
        return logits

    return step


def _run_bundle(name: str, length: int, codegen: str, folder: Path, state: Arrays) -> Step:
    """Return a step of a bundle whose caches are so long."""
    rules = folder / "npu.yaml"
    rules.write_text(_RULES, encoding="utf-8")
    output = folder / f"{name}-{length}-{codegen}.byoc"
    byoc.partition(
        f"zoo:{name}",
        rules,
        codegen=codegen,
        strategy="all-supported",
        what_if=False,
        output=output,
        variants={"step": {"sequence_length": 1, "past_sequence_length": length}},
        static_cache=True,
    )
    stateful = byoc.open_stateful(byoc.load(output))
    stateful.reset(state)

    def step(inputs: Arrays) -> NDArray[Any]:
        logits: NDArray[Any] = stateful(inputs)["logits"]
        return logits

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="t5_cached")
    parser.add_argument("--contexts", default="64,2048", help="tokens in the cache before the first")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--codegens", default="reference,openvino,c")
    chosen = parser.parse_args()
    main(
        chosen.models.split(","),
        [int(context) for context in chosen.contexts.split(",")],
        chosen.tokens,
        chosen.codegens.split(","),
    )
