"""The most memory of a process that runs a decoder, against onnxruntime with shared buffers.

    python benchmarks/session_memory.py [--layers 16] [--hidden 1536] [--context 2048]

The decoders and bundles are those of `decoder_tokens.py`, their weights in a file. Each runs in a
process of its own on one thread, once with the prompt in pieces of 64 tokens, once with all of it at
once, then 8 tokens. Printed are the peak and what is kept in the end, in MiB, all libraries included,
and the ratio of the peak to that of onnxruntime. Linux only.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
from decoder_tokens import _ATTENTION, _COSTS, _PIECES, _RULES, _WHOLE, Arrays, Step, _share_buffers

import byoc
from byoc.onnxrt import with_threads
from byoc.zoo import DecoderSize, make_decoder

_BUNDLES = {"whole": _WHOLE, "attention": _ATTENTION, "pieces": _PIECES}
_PIECE, _TOKENS, _ROOM = 64, 8, 32


def main(layers: int, hidden: int, context: int) -> None:
    """Make the bundles, and print a line for each process."""
    heads = hidden // 64
    size = DecoderSize(layers, hidden, heads, heads // 2, hidden * 11 // 4, 4096, context + _ROOM)
    with TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "m.onnx"
        onnx.save(make_decoder("int4", size=size), model, save_as_external_data=True, location="m.data")
        (folder / "near.yaml").write_text(_COSTS)
        for bundle, operators in _BUNDLES.items():
            (folder / "rules.yaml").write_text(_RULES + operators)
            options = {"strategy": "all-supported", "what_if": False, "verify": False}
            byoc.partition(model, folder / "rules.yaml", output=folder / bundle, **options)
        for piece in (_PIECE, context):
            first = 0
            for way in ("onnxruntime", *_BUNDLES):
                command = [sys.executable, __file__, "--run", way, name, str(piece)]
                done = subprocess.run(
                    [*command, "--context", str(context)], stdout=subprocess.PIPE, check=True
                )
                peak, kept = map(int, done.stdout.split())
                first = first or peak
                print(f"{way:12} prompt by {piece:5}: peak {peak}, kept {kept}, {peak / first:.3f}")


def run(way: str, folder: Path, piece: int, context: int) -> None:
    """Read a prompt and make tokens; print the peak of this process, and what it has in the end."""
    with with_threads(1):
        step = _open_plain(folder, context) if way == "onnxruntime" else _open(folder / way, context)
    for end in range(piece, context + 1 - _TOKENS, piece) or (context - _TOKENS,):
        count = min(piece, end)
        step({"input_ids": np.arange(count)[None] % 100, "attention_mask": np.ones((1, end), np.int64)})
    for token in range(1, _TOKENS + 1):
        mask = np.ones((1, end + token), np.int64)
        step({"input_ids": np.array([[token]]), "attention_mask": mask})
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    found = {line.partition(":")[0]: line.split() for line in lines}
    print(*(int(found[name][1]) // 1024 for name in ("VmHWM", "VmRSS")))


def _open(bundle: Path, context: int) -> Step:
    stateful = byoc.open_stateful(byoc.load(bundle), max_length=context + _ROOM)
    return lambda inputs: stateful(inputs)["logits"]


def _open_plain(folder: Path, context: int) -> Step:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    path = folder / "m.onnx"
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    empty: Arrays = {
        value.name: np.empty((1, value.shape[1], 0, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values")
    }
    return _share_buffers(session, empty, context + _ROOM)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--run", nargs=3, metavar=("WAY", "FOLDER", "PIECE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        run(chosen.run[0], Path(chosen.run[1]), int(chosen.run[2]), chosen.context)
    else:
        main(chosen.layers, chosen.hidden, chosen.context)
