"""What a prompt takes that is read in pieces, against one call of a variant that is long enough.

    python benchmarks/prompt_pieces.py MODEL [--prompt 500] [--rounds 25] [--codegen reference]

MODEL is an exported decoder whose cache a Concat makes longer (`benchmarks/decoder_exports.py` writes
such). A bundle has variants for 64, 256 and 512 tokens without a past, for 64 and 256 behind caches of
several lengths, and for one token, all of one region. Sessions that see some of them read a prompt in
turn, on one thread. Of each way the pieces are printed, and the processor time as a ratio to that of
one call in the same round: the median and the quartiles, beside the ratio that the plans predict. The
logits of all ways have to be those of one call.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import cpu_timed, machine

import byoc
from byoc.onnxrt import with_threads
from byoc.padding import list_cache_lengths
from byoc.samples import find_decoder_inputs
from byoc.zoo import load_model

_RULES = "target: npu\ncost_model: openvino-cpu\ndtype: any\nops: [{op: '*'}]\n"
_LENGTHS = {
    "read_64": (64, 0),
    "read_256": (256, 0),
    "read_512": (512, 0),
    "more_64_256": (64, 256),
    "more_64_512": (64, 512),
    "more_64_768": (64, 768),
    "more_256_512": (256, 512),
    "more_256_768": (256, 768),
    "step": (1, 768),
}
_WAYS = {
    "one call of 512": ["read_512", "step"],
    "64 behind 768": ["read_64", "more_64_768", "step"],
    "64 behind 256, 512, 768": ["read_64", "more_64_256", "more_64_512", "more_64_768", "step"],
    "256 behind 768": ["read_256", "more_256_768", "step"],
    "256 behind 512": ["read_256", "more_256_512", "step"],
    "all but 512": [name for name in _LENGTHS if name != "read_512"],
}


def main(chosen: argparse.Namespace) -> None:
    """Print a line for each way to read the prompt."""
    print(f"{machine()}, {chosen.codegen}, a prompt of {chosen.prompt}, processor time")
    with TemporaryDirectory() as folder, with_threads(1):
        whole = byoc.load(_write_bundle(chosen.model, chosen.codegen, Path(folder)))
        entries = whole.bundle.manifest.variants
        predicted = {each.name: each.report.predicted.seconds for each in entries}
        sessions = {
            way: byoc.open_stateful(
                replace(
                    whole,
                    sessions={name: whole.sessions[name] for name in names},
                    paddings={name: rule for name, rule in whole.paddings.items() if name in names},
                )
            )
            for way, names in _WAYS.items()
        }
        decoder = find_decoder_inputs(load_model(chosen.model))
        inputs = decoder.make_step(decoder.draw_prompt(0, chosen.prompt)[:1], 0, {})
        seconds: dict[str, list[float]] = {way: [] for way in sessions}
        for turn in range(chosen.rounds + 2):
            expected = None
            for way, session in sessions.items():
                session.reset()
                spent, found = cpu_timed(session, inputs)
                logits = found[decoder.logits]
                expected = logits if expected is None else expected
                np.testing.assert_allclose(logits, expected, atol=1e-5 * np.ptp(expected))
                if turn >= 2:
                    seconds[way].append(spent)
        first = np.array(seconds["one call of 512"])
        plans = {way: _list_calls(session, inputs) for way, session in sessions.items()}
        costs = {way: sum(predicted[name] for name in calls) for way, calls in plans.items()}
        for way, calls in plans.items():
            low, middle, high = np.percentile(np.array(seconds[way]) / first, (25, 50, 75))
            plan = costs[way] / costs["one call of 512"]
            print(
                f"{way:24} {len(calls):2} calls {np.median(seconds[way]) * 1e3:6.1f} ms  "
                f"{middle:.2f} ({low:.2f} to {high:.2f}), by the plans {plan:.2f}"
            )


def _write_bundle(path: Path, codegen: str, folder: Path) -> Path:
    """Write the bundle of all variants, and return its path."""
    rules, output = folder / "npu.yaml", folder / "m.byoc"
    rules.write_text(_RULES, encoding="utf-8")
    model = load_model(path)
    tokens, past = find_decoder_inputs(model).sequence, list_cache_lengths(model)[0]
    byoc.partition(
        path,
        rules,
        codegen=codegen,
        strategy="all-supported",
        what_if=False,
        verify=False,
        output=output,
        dims={(model.index.get_shape(name) or ("",))[0]: 1 for name in model.index.inputs},
        variants={name: {tokens: size, past: before} for name, (size, before) in _LENGTHS.items()},
        static_cache=True,
    )
    return output


def _list_calls(session: byoc.StatefulSession, inputs: dict[str, Any]) -> list[str]:
    """Return the variants that read a prompt, in their order."""
    trace = byoc.Trace()
    session.reset()
    session.run(inputs, trace)
    return [event.variant for event in trace.events]  # each is one region


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--codegen", default="reference")
    main(parser.parse_args())
