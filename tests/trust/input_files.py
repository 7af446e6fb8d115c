"""A file of each kind that byoc reads, as a user has it, and the command that reads it.

`KINDS` are the rows of the table of SECURITY.md by their names there. Each makes its files in a box's
`theirs` and returns the words of a command line, or a function that does in Python what a verb does not.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, parse
from input_box import MODEL, Box

import byoc
from byoc.bundle import open_bundle, pack_folder

Words = Sequence[str | Path]
Read = Words | Callable[[], object]
"""The words of a command line, or what reads a file in Python."""
COST_FILE = """
name: theirs
kind: roofline
peak: {float32: 1e9}
bandwidth: 1e9
link: {bandwidth: 1e9, latency: 1e-6}
"""
STUDY_FILE = """
models: model.onnx
rules: [vanilla.yaml]
strategies: [all-supported]
"""
PLACEMENT_FILE = "format: 1\nnodes: {a: dla, y: host}\n"
RANGES_FILE = "format: 2\nmethod: minmax\ntensors:\n" + "".join(
    f"  {name}: {{low: -1.0, high: 1.0}}\n" for name in "xay"
)
PROBLEM = {
    "maxSizePerFPGA": 100,
    "maxFPGAs": 1,
    "maxCPUs": 1,
    "nodes": [
        {"id": 1, "supportedOnFpga": True, "cpuLatency": 2, "fpgaLatency": 1, "size": 1},
        {"id": 2, "supportedOnFpga": True, "cpuLatency": 2, "fpgaLatency": 1, "size": 1},
    ],
    "edges": [{"sourceId": 1, "destId": 2, "cost": 1}],
}
FAULT = {
    **{"format": 1, "region": "dla_0", "target": "dla", "codegen": "reference"},
    **{"codegen_options": {}, "weights": "", "operation": "y", "op": "Relu", "operations": ["Relu"]},
    **{"told": "it is off", "thresholds": {}},
}
GENAI = {"model": {"decoder": {"filename": "model.onnx", "inputs": {"input_ids": "input_ids"}}}}
GENAI_MODEL = "net (int64[1, n] input_ids) => (float[1, n] y) { y = Cast <to = 1> (input_ids) }"


@dataclass(frozen=True)
class Kind:
    """A kind of files: how one is read, and the programs that reading it starts (words of commands)."""

    read: Callable[[Box], Words]
    executes: Sequence[str] = field(default=())
    needs: Sequence[str] = field(default=())


@cache
def find_bundle(emit: str | None = None) -> Path:
    """Return a bundle of the model whose region codegen `dla` compiled, which nobody may change."""
    root = Path(mkdtemp(prefix="byoc-tests-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(root / "data"))  # another user's key
        byoc.partition(
            parse(MODEL), VANILLA, output=root / "b", strategy="all-supported", codegen="dla", emit=emit
        )
    return root / "b"


def copy_bundle(box: Box, emit: str | None = None, signed: bool = False) -> Path:
    """Copy the bundle into the stranger's folder, unless `signed` without its signature."""
    bundle = Path(shutil.copytree(find_bundle(emit), box.theirs / "b"))
    if not signed:
        (bundle / "signature.json").unlink()
    return bundle


def pack_bundle(box: Box) -> Path:
    """Pack the bundle into a zip of the stranger's."""
    folder = copy_bundle(box)
    packed = box.theirs / "b.zip"
    pack_folder(folder, open_bundle(folder).manifest.files, packed)
    return packed


def make_program(box: Box) -> Path:
    """Export the model as a program in C, as this machine signs it."""
    byoc.export_c(parse(MODEL), output=box.theirs / "program")
    return box.theirs / "program"


def make_fault(box: Box, **changes: object) -> Path:
    """Write a fault of codegen `reference`."""
    folder = box.theirs / "fault"
    folder.mkdir()
    onnx.save(parse(MODEL), folder / "model.onnx")
    np.savez(folder / "inputs.npz", x=np.ones((1, 4), np.float32))
    (folder / "fault.json").write_text(json.dumps({**FAULT, **changes}))
    return folder


def make_genai(box: Box, config: object = None) -> Path:
    """Write a folder of onnxruntime-genai."""
    folder = box.theirs / "genai"
    folder.mkdir()
    onnx.save(parse(GENAI_MODEL), folder / "model.onnx")
    (folder / "genai_config.json").write_text(json.dumps(config or GENAI))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def make_samples(box: Box) -> Path:
    """Write a folder with a sample."""
    folder = box.theirs / "samples"
    folder.mkdir()
    np.savez(folder / "a.npz", x=np.ones((1, 4), np.float32))
    return folder


def partition(box: Box, *words: str | Path, model: str | Path = "model.onnx") -> Words:
    """Return the words that partition the stranger's model and write a bundle."""
    rules = () if "--rules" in words else ("--rules", box.theirs / "vanilla.yaml")
    chosen = ("--strategy", "all-supported", "-o", box.mine / "out.byoc")
    return ("partition", box.theirs / model, *rules, *words, *chosen)


def use_costs(box: Box, text: str = COST_FILE) -> Words:
    """Return the words that plan by a cost model of the stranger's."""
    return partition(box, "--cost-model", box.write("costs.yaml", text))


def use_rules(box: Box, text: str) -> Words:
    """Return the words that partition by a rule file of the stranger's."""
    return partition(box, "--rules", box.write("rules.yaml", text))


def run_study(box: Box, text: str = STUDY_FILE) -> Words:
    """Return the words that run a study in this process's own children."""
    return ("study", box.write("study.yaml", text), "-o", box.mine / "results.csv", "--jobs", "1")


def calibrate(box: Box, folder: Path) -> Words:
    """Return the words that calibrate the model on a folder of samples."""
    model = box.theirs / "model.onnx"
    return ("calibrate", model, "--data", folder, "-o", box.mine / "ranges.yaml")


def use_ranges(box: Box, text: str = RANGES_FILE) -> Words:
    """Return the words that quantize by a file of ranges."""
    return partition(box, "--quantize", "int8", "--calibration", box.write("ranges.yaml", text))


def use_placement(box: Box, text: str = PLACEMENT_FILE) -> Words:
    """Return the words that place by a saved placement."""
    return partition(box, "--placement", box.write("placement.yaml", text))


def place(box: Box, content: object = None) -> Words:
    """Return the words that solve a problem file."""
    problem = box.write("problem.json", json.dumps(content or PROBLEM))
    return ("place", problem, "--objective", "latency", "-o", box.mine / "placed.json")


def report_trace(box: Box, content: object = None) -> Words:
    """Return the words that draw a page with a trace."""
    event = {
        **{"name": "y", "cat": "host", "ph": "X", "ts": 0.0, "dur": 1.0, "pid": 1, "tid": 1},
        "args": {"device": "host"},
    }
    trace = box.write("trace.json", json.dumps(content or {"traceEvents": [event]}))
    return ("report", copy_bundle(box), "--trace", trace, "-o", box.mine / "page.html")


def make_driver(box: Box) -> Path:
    """Build the driver of the codegen `dla`."""
    library = box.theirs / "libdla.so"
    byoc.make_driver(copy_bundle(box, "epcontext"), library)
    return library


def run_driver(box: Box, driver: str | Path) -> Words:
    """Return the words that run the bundle in onnxruntime by a driver."""
    chosen = ("--runtime", "ort-plugin", "--driver", f"dla={driver}")
    return ("run", box.theirs / "b", "--inputs", "random", *chosen)


_WORKER = "-P -m byoc.codegen._worker_process"
KINDS: Mapping[str, Kind] = {
    "bundle": Kind(lambda box: ("inspect", copy_bundle(box))),
    "bundle to run": Kind(lambda box: ("run", copy_bundle(box), "--inputs", "random"), (_WORKER,)),
    "zip": Kind(lambda box: ("run", pack_bundle(box), "--inputs", "random"), (_WORKER,)),
    "program in C": Kind(
        lambda box: ("verify", make_program(box)), ("cc", "model_test"), ("cc", "emx_onnx_cgen")
    ),
    "fault": Kind(lambda box: ("verify", make_fault(box)), (_WORKER,)),
    "model": Kind(partition),
    "rule file": Kind(lambda box: use_rules(box, VANILLA.read_text())),
    "cost model": Kind(use_costs),
    "study": Kind(run_study, ("-P -c",)),
    "problem file": Kind(place),
    "calibration data": Kind(lambda box: calibrate(box, make_samples(box))),
    "ranges": Kind(use_ranges),
    "placement file": Kind(use_placement),
    "genai folder": Kind(lambda box: partition(box, model=make_genai(box))),
    "driver": Kind(lambda box: run_driver(box, make_driver(box)), ("cc", _WORKER), ("plug-ins",)),
    "trace": Kind(report_trace),
}
"""The kinds that a verb reads from a path; `provider option` and the others are tried in Python."""
