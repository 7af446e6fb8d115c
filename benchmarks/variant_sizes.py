"""The size of bundles of one, two and four variants of a decoder, and the time that they take.

    python benchmarks/variant_sizes.py [--hidden N] [--wide N] [--vocabulary N] [--layers N]
        [--weights copy|link|reference]

The decoder has int4 weights and is built as by onnxruntime-genai's model builder. All of each variant is
one region of `reference`: a prefill of 64 tokens, and steps of one token with caches of several lengths.
Times are of the processor, against those of one variant; nothing is verified.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import process_time

import onnx

import byoc
from byoc.bundle import Sharing
from byoc.zoo import DecoderSize, make_decoder

_RULES = "target: npu\ncost_model: openvino-cpu\ncodegen: reference\ndtype: any\nops: [{op: '*'}]\n"
_CACHES = (256, 128, 512)


def main(size: DecoderSize, sharing: Sharing) -> None:
    """Print a line for each number of variants."""
    seconds: dict[int, float] = {}
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "npu.yaml").write_text(_RULES)
        small = write_model(folder / "small.onnx", replace(size, layers=1))
        time_bundle(small, folder / "small.byoc", 1, sharing)  # which imports what all need
        file = write_model(folder / "m.onnx", size)
        whole = sum(each.stat().st_size for each in (file, file.with_suffix(".data")))
        print(f"the model: {whole:,} bytes")
        for count in (1, 2, 4):
            output = folder / f"{count}.byoc"
            seconds[count] = time_bundle(file, output, count, sharing)
            sizes = {file: _measure(file) for file in output.rglob("*") if file.is_file()}
            weights, bundle = sizes[output / "weights.bin"], sum(sizes.values())
            models = sum(size for file, size in sizes.items() if file.suffix == ".onnx")
            print(
                f"{count} variants: weights.bin {weights:,}, models {models:,}, all {bundle:,} bytes, "
                f"{bundle / (weights + models):.4f} of both, {bundle / whole:.4f} of the model; "
                f"{seconds[count]:.1f} s, {seconds[count] / seconds[1]:.2f} of one variant's"
            )
            rmtree(output)


def write_model(file: Path, size: DecoderSize) -> Path:
    """Write a decoder with its weights in a file of their own; return its path."""
    model = make_decoder("int4", size=size)
    onnx.save(model, file, save_as_external_data=True, location=file.with_suffix(".data").name)
    return file


def time_bundle(model: Path, output: Path, count: int, sharing: Sharing) -> float:
    """Write a bundle of some variants; return the seconds of the processor."""
    variants = {"prefill": _give_sizes(64, 0, 64)}
    variants |= {f"decode_{length}": _give_sizes(1, length, length) for length in _CACHES}
    begin = process_time()
    byoc.partition(
        model,
        model.parent / "npu.yaml",
        strategy="all-supported",
        output=output,
        dims={"batch_size": 1},
        variants=dict(list(variants.items())[:count]),
        verify=False,
        weights=sharing,
    )
    return process_time() - begin


def _measure(file: Path) -> int:
    """Return the bytes of a file that no other has, 0 of one that is linked."""
    found = file.stat()
    return found.st_size if found.st_nlink == 1 else 0


def _give_sizes(sequence: int, past: int, total: int) -> dict[str, int | str]:
    return {
        "sequence_length": sequence,
        "past_sequence_length": past,
        "total_sequence_length": total,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--wide", type=int, default=2816)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--weights", choices=("copy", "link", "reference"), default="copy")
    asked = parser.parse_args()
    heads = asked.hidden // 64
    shape = DecoderSize(asked.layers, asked.hidden, heads, heads // 4, asked.wide, asked.vocabulary)
    main(shape, asked.weights)
