"""Accuracy of quantized networks: byoc, onnxruntime's quantizer and NNCF, same data and operators.

    pip install scikit-image scikit-learn pillow
    python benchmarks/quantized_accuracy.py --model ppocr_cls_v2 --model yunet
    python benchmarks/quantized_accuracy.py --nncf PYTHON     # of an environment with nncf
    python benchmarks/quantized_accuracy.py --journal FILE    # goes on from there when started again
    python benchmarks/quantized_accuracy.py --write FOLDER    # models and samples, and no figures

Ranges are measured on 16 samples, figures on 64 others (`--samples`, `--seed`): signal to noise in
decibels of the worst output and of all on average, and how far the task's answers are those of the float
model (`model_tasks.py`). Milliseconds are predicted; seconds are the processor time that byoc and NNCF
took to quantize, on one thread each if OMP_NUM_THREADS is 1.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import onnx.utils
from model_tasks import measure_agreement
from nncf_quantize import KINDS
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from realistic_samples import SAMPLE_MAKERS, Sample, make_samples

import byoc
from byoc import zoo
from byoc.model import convert_opset
from byoc.numerics import compute_powers, convert_to_db
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.rules import load_rules

CALIBRATION, WRITTEN = 16, 6
SCALES_BY_CHANNEL = (
    13  # the operator set from which on onnxruntime's quantizer can give each channel a scale
)
Outputs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Figures:
    """Signal to noise (dB) of the worst and the mean output, the task's agreement, predicted seconds.

    `spent` are the seconds of processor time that quantizing took.
    """

    worst: float
    mean: float
    task: float
    seconds: float | None = None
    spent: float | None = None


class NncfError(Exception):
    """NNCF did not quantize a model."""


@dataclass
class Case:
    """A trained model of fixed shapes in a folder, its samples, and what it computes in floats."""

    name: str
    folder: Path
    count: int
    seed: int
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        """Write the model and the samples, and run the model."""
        self.path = self.folder / f"{self.name}.onnx"
        onnx.save(_fix_shapes(self.name), self.path)
        self.samples = make_samples(self.name, CALIBRATION, 0)
        self.held_out = make_samples(self.name, self.count, self.seed)
        self.data = self.folder / "calibration"
        self.data.mkdir()
        for number, sample in enumerate(self.samples):
            np.savez(self.data / f"{number:03}.npz", **dict(sample))
        self.expected = _run(onnx.load(self.path), self.held_out)

    def measure(self, proto: onnx.ModelProto, **more: Any) -> Figures:
        """Return the figures of a quantized model on the held-out samples."""
        return self.compare(_run(proto, self.held_out), **more)

    def compare(self, outputs: Outputs, **more: Any) -> Figures:
        """Return the figures of what was computed for the held-out samples."""
        decibels = list(_measure_outputs(self.expected, outputs))
        task = measure_agreement(self.name, self.expected, outputs)
        return Figures(min(decibels), float(np.mean(decibels)), task, **more)


def write_case(name: str, folder: Path) -> None:
    """Write a model and a few of its samples, `model.onnx` and `.npz` files, to a new folder."""
    folder.mkdir(parents=True)
    onnx.save(_fix_shapes(name), folder / "model.onnx")
    for number, sample in enumerate(make_samples(name, WRITTEN, 0)):
        np.savez(folder / f"{number:03}.npz", **dict(sample))


def _fix_shapes(name: str) -> onnx.ModelProto:
    """Return a model of the zoo in floats, with the shapes that the samples have."""
    proto = _read_floats(zoo.load(name))
    wanted = SAMPLE_MAKERS[name].output
    if wanted:
        inputs = [value.name for value in proto.graph.input]
        proto = onnx.utils.Extractor(proto).extract_model(inputs, [wanted])
    stored = {tensor.name for tensor in proto.graph.initializer}
    del proto.graph.value_info[:]
    kept = [value for value in proto.graph.input if value.name not in stored]
    wanted = SAMPLE_MAKERS[name].shapes
    used = {read for node in proto.graph.node for read in node.input}
    del proto.graph.input[:]
    for value in kept:
        if value.name in wanted:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(value.name, 1, wanted[value.name])
            )
        elif value.name in used:
            proto.graph.input.append(value)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    proto.ir_version = max(proto.ir_version, 8)
    if next(each.version for each in proto.opset_import if not each.domain) < SCALES_BY_CHANNEL:
        convert_opset(proto, SCALES_BY_CHANNEL, None)
    return onnx.shape_inference.infer_shapes(proto)


def _read_floats(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model without QuantizeLinear, and with weights that are stored as floats.

    These weights have no more values than the integers that they came as.
    """
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    rounded = {node.output[0]: node for node in made.graph.node if node.op_type == "QuantizeLinear"}
    del made.graph.node[:]
    for node in proto.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            reference = onnx.reference.ReferenceEvaluator(node, opsets={"": 21})
            values = {read: stored[read] for read in node.input if read}
            made.graph.initializer.append(
                onnx.numpy_helper.from_array(reference.run(None, values)[0], node.output[0])
            )
        elif node.op_type == "DequantizeLinear" and node.input[0] in rounded:
            source = rounded[node.input[0]].input[0]
            made.graph.node.append(onnx.helper.make_node("Identity", [source], [node.output[0]]))
        elif node.output[0] not in rounded:
            made.graph.node.append(node)
    return made


def _run(proto: onnx.ModelProto, samples: Sequence[Sample]) -> Outputs:
    with without_optimizations():
        session = open_session(proto)
    return [run_session(session, sample) for sample in samples]


def _measure_outputs(expected: Outputs, actual: Outputs) -> Iterator[float]:
    for name in expected[0]:
        pairs = [
            compute_powers(one[name], other[name]) for one, other in zip(expected, actual, strict=True)
        ]
        signal, noise = np.sum(pairs, axis=0)
        yield min(convert_to_db(float(signal), float(noise)), 99.0)


def list_operators(rules: str) -> list[str]:
    """Return the operators that a target takes quantized."""
    target = load_rules(rules)
    return sorted({op for rule in target.rules.ops if rule.quantized for op in rule.op})


def measure_byoc(case: Case, rules: str, *, effort: str) -> Figures:
    """Return the figures of byoc's plan with all that the target takes in integers on the target.

    Without an effort it is from ranges by minmax, as `byoc calibrate` writes them, else from samples.
    """
    if effort:
        given = byoc.Precision(quantize="int8", data=case.data, effort=effort)
    else:
        given = byoc.Precision(quantize="int8", calibration=byoc.calibrate(case.path, case.samples))
    start = time.process_time()
    result = byoc.partition(case.path, rules=rules, precision=given, strategy="all-supported")
    spent = time.process_time() - start
    return case.measure(result.model, seconds=result.report.predicted.seconds, spent=spent)


def measure_noisy_inputs(case: Case, decibels: float) -> Figures:
    """Return the figures of the float model with white noise in its inputs, so far below them."""
    generator = np.random.default_rng(case.seed)
    noisy = []
    for sample in case.held_out:
        sizes = {
            name: np.sqrt(np.mean(value**2)) * 10 ** (-decibels / 20) for name, value in sample.items()
        }
        noisy.append(
            {
                name: value + generator.normal(0, sizes[name], value.shape).astype(np.float32)
                for name, value in sample.items()
            }
        )
    return case.compare(_run(onnx.load(case.path), noisy))


def measure_onnxruntime(case: Case, rules: str) -> Figures:
    """Return the figures of onnxruntime's static quantizer: QDQ, int8, scales by weight channel."""

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.samples = iter(case.samples)

        def get_next(self) -> Any:
            return next(self.samples, None)

    prepared, made = case.folder / "prepared.onnx", case.folder / "onnxruntime.onnx"
    quant_pre_process(str(case.path), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(made),
        Reader(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=list_operators(rules),
        per_channel=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
    )
    return case.measure(onnx.load(made))


def measure_nncf(case: Case, rules: str, python: str, kind: str, limit: float) -> Figures:
    """Return the figures of NNCF, which runs in another interpreter for at most `limit` seconds."""
    made = case.folder / f"nncf-{kind}.onnx"
    program = Path(__file__).with_name("nncf_quantize.py")
    request = {"operators": list_operators(rules), "kind": kind}
    command = [python, str(program), str(case.path), str(case.data), str(made), json.dumps(request)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise NncfError(f"not finished after {limit:g} s") from error
    if done.returncode:
        raise NncfError(f"fails: {done.stderr.strip().splitlines()[-1][:80]}")
    return case.measure(onnx.load(made), spent=float(done.stdout.splitlines()[-1]))


def list_quantizers(given: argparse.Namespace) -> dict[str, Callable[[Case], Figures]]:
    """Return what is compared: how a case is measured, by the quantizer's name in the table."""
    wanted = given.only or ["byoc", "onnxruntime", "nncf"]
    if "nncf" in wanted and given.nncf is None:
        print("NNCF is left out: say which interpreter has it (--nncf PYTHON)")
        wanted = [each for each in wanted if each != "nncf"]
    found: dict[str, Callable[[Case], Figures]] = {
        f"input {noise:g} dB": partial(measure_noisy_inputs, decibels=noise) for noise in given.noise
    }
    if "byoc" in wanted:
        for effort in ("", "quick", "normal", "thorough"):
            found[f"byoc {effort or 'minmax'}"] = partial(measure_byoc, rules=given.rules, effort=effort)
    if "onnxruntime" in wanted:
        found["onnxruntime"] = partial(measure_onnxruntime, rules=given.rules)
    for kind in KINDS if "nncf" in wanted else ():
        found[f"nncf {kind}"] = partial(
            measure_nncf, rules=given.rules, python=given.nncf, kind=kind, limit=given.limit
        )
    named = given.quantizer or found
    return {name: each for name, each in found.items() if name in named}


def measure_or_explain(measure: Callable[[Case], Figures], case: Case) -> dict[str, Any]:
    """Return the figures of a quantizer by their names, or why NNCF has none under `failure`."""
    try:
        return asdict(measure(case))
    except NncfError as error:
        return {"failure": str(error)}


def format_row(name: str, what: str, found: Mapping[str, Any]) -> str:
    """Return a line of the table."""
    if "failure" in found:
        return f"{name:22} {what:14} {found['failure']}"
    predicted = "" if found["seconds"] is None else f"{found['seconds'] * 1e3:8.3f} ms"
    spent = "" if found["spent"] is None else f"{found['spent']:6.1f} s"
    figures = f"{found['worst']:6.1f} {found['mean']:6.1f}  {found['task']:5.3f}"
    return f"{name:22} {what:14} {figures} {predicted:11} {spent}"


class Journal:
    """The rows that were measured, a line of JSON each, in a file that the same command goes on from."""

    def __init__(self, path: Path | None, **settings: Any) -> None:
        """Read the rows of a file that were measured with the same settings; None keeps no rows."""
        self.path = path
        self.settings = settings
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        rows = [json.loads(line) for line in lines]
        self.rows = {
            (row["model"], row["quantizer"]): row["found"] for row in rows if row["settings"] == settings
        }

    def add(self, model: str, quantizer: str, found: Mapping[str, Any]) -> None:
        """Append a row."""
        self.rows[model, quantizer] = found
        if self.path is not None:
            row = {"model": model, "quantizer": quantizer, "settings": self.settings, "found": found}
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def print_rows(
    name: str,
    quantizers: Mapping[str, Callable[[Case], Figures]],
    given: argparse.Namespace,
    journal: Journal,
) -> None:
    """Measure what the journal lacks of a model, and print all its rows."""
    with tempfile.TemporaryDirectory() as folder:
        case = None
        for what, measure in quantizers.items():
            if (name, what) not in journal.rows:
                case = case or Case(name, Path(folder), given.samples, given.seed)
                journal.add(name, what, measure_or_explain(measure, case))
            print(format_row(name, what, journal.rows[name, what]), flush=True)


def main() -> None:
    """Print the table of the models and quantizers that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model", action="append", choices=[*SAMPLE_MAKERS], help="this model; all unless given"
    )
    parser.add_argument("--rules", default="dla", help="the rule file of the accelerator")
    parser.add_argument(
        "--only", choices=("byoc", "onnxruntime", "nncf"), action="append", help="only this quantizer"
    )
    parser.add_argument(
        "--quantizer",
        action="append",
        metavar="NAME",
        help='only the one that the table calls so, as "byoc normal" or "nncf full"',
    )
    parser.add_argument("--samples", type=int, default=64, help="so many samples are held out")
    parser.add_argument("--seed", type=int, default=77, help="the seed of those (0: the ranges')")
    parser.add_argument(
        "--noise",
        type=float,
        action="append",
        default=[],
        metavar="DB",
        help="the float model as well, with noise so far below its inputs",
    )
    parser.add_argument("--nncf", metavar="PYTHON", help="the interpreter of an environment with nncf")
    parser.add_argument(
        "--limit", type=float, default=3600, metavar="SECONDS", help="what NNCF may take for a model"
    )
    parser.add_argument(
        "--journal", type=Path, metavar="FILE", help="keep rows here, and go on from them"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="write models and samples for planted_faults.py"
    )
    given = parser.parse_args()
    if given.write is not None:
        for name in given.model or SAMPLE_MAKERS:
            write_case(name, given.write / name)
        return
    quantizers = list_quantizers(given)
    journal = Journal(given.journal, rules=given.rules, samples=given.samples, seed=given.seed)
    print(f"{'model':22} {'quantizer':14} {'worst':>6} {'mean':>6}  {'task':5} predicted   quantizing")
    for name in given.model or SAMPLE_MAKERS:
        print_rows(name, quantizers, given, journal)


if __name__ == "__main__":
    main()
