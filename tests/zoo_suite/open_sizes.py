"""Variants of a BERT of open length, and of a YOLOX of open image size.

    python tests/zoo_suite/open_sizes.py [CODEGEN ...] [MODEL ...]

Each is cut into variants for each codegen; every operator is offered to it, and `dla` has its own rules.
The bundle runs inputs of the sizes of its variants, and of sizes in between, which are padded to the
next one or refused. Printed are the largest error of all runs against plain onnxruntime without
optimizations, as a share of an output's range, and how many sizes ran as they are, padded, and were
refused. Codegens and models may be named (`dla bert`). The exit code is 1 where an error is beyond the
tolerance of verification, or a size of a variant is refused.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np  # noqa: E402 - needs the path
import onnx  # noqa: E402
from helpers.decoding import Run, plain  # noqa: E402
from helpers.open_size_models import open_bert, open_yolox  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

import byoc  # noqa: E402
from byoc.errors import InputError  # noqa: E402

CODEGENS = ("reference", "openvino", "c", "dla")
_RULES = "target: npu\ncost_model: openvino-cpu\ndtype: any\nops: [{op: '*'}]\n"
_TOLERANCE = 1e-4
_SEEDS = 2

Sizes = tuple[int, ...]
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class OpenModel:
    """A model with open extents: `dims` names them, `variants` and `between` are sizes of these."""

    make: Callable[[], onnx.ModelProto]
    make_inputs: Callable[[np.random.Generator, Sizes], Arrays]
    dims: tuple[str, ...]
    variants: tuple[Sizes, ...]
    between: tuple[Sizes, ...]
    fixed: Mapping[str, int] = field(default_factory=dict)


def _make_text(random: np.random.Generator, sizes: Sizes) -> Arrays:
    """Return the ids of two texts of a length in all; the mask leaves out the end, but one token."""
    (length,) = sizes
    ids = random.integers(0, 30_000, (1, length))
    mask = (np.arange(length) <= random.integers(0, length)).astype(np.int64)[None]
    types = (np.arange(length) > length // 2).astype(np.int64)[None]
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def _make_image(random: np.random.Generator, sizes: Sizes) -> Arrays:
    return {"images": random.uniform(0, 255, (1, 3, *sizes)).astype(np.float32)}


MODELS = {
    "bert": OpenModel(
        open_bert,
        _make_text,
        ("length",),
        ((16,), (64,), (128,)),
        ((1,), (2,), (15,), (17,), (40,), (63,), (65,), (100,), (127,), (129,)),
        {"batch": 1},
    ),
    "yolox": OpenModel(
        open_yolox,
        _make_image,
        ("h", "w"),
        ((128, 128), (160, 224), (320, 320)),
        ((96, 96), (128, 160), (160, 160), (320, 224), (352, 352)),
    ),
}


@dataclass
class Outcome:
    """What became of sizes: how many ran as they are and padded, the refused, and the largest error."""

    exact: int = 0
    padded: int = 0
    refused: list[Sizes] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    worst: float = 0.0


def measure(name: str, codegen: str, folder: Path) -> bool:
    """Print the line of a model and a codegen; return whether all is as it should be."""
    model = MODELS[name]
    proto = model.make()
    output = folder / f"{name}-{codegen}.byoc"
    variants = {
        f"at_{'_'.join(map(str, sizes))}": dict(zip(model.dims, sizes, strict=True))
        for sizes in model.variants
    }
    result = byoc.partition(
        proto,
        _write_rules(codegen, folder),
        codegen=codegen,
        strategy="all-supported",
        what_if=False,
        dims=dict(model.fixed),
        variants=variants,
        output=output,
    )
    found = _run_sizes(model, byoc.load(output), plain(proto))
    counts = [each.report.nodes for each in result.variants]
    share = sum(each.offloaded for each in counts) / sum(each.total for each in counts)
    regions = sum(len(each.regions()) for each in byoc.open_bundle(output).variants)
    refused = ", ".join("x".join(map(str, sizes)) for sizes in found.refused) or "none"
    sys.stdout.write(
        f"| `{name}` | `{codegen}` | {len(variants)} | {share:.0%} | {regions} | {found.exact} | "
        f"{found.padded} | {refused} | {found.worst:.1e} |\n"
    )
    sys.stdout.flush()
    for reason in sorted(found.reasons):
        sys.stderr.write(f"  {reason}\n")
    return found.worst <= _TOLERANCE and not set(model.variants) & set(found.refused)


def _run_sizes(model: OpenModel, session: Any, original: Run) -> Outcome:
    """Run inputs of all sizes, and compare what comes out."""
    found = Outcome()
    for sizes in (*model.variants, *model.between):
        for seed in range(_SEEDS):
            inputs = dict(model.make_inputs(np.random.default_rng(seed), sizes))
            try:
                outputs = session(inputs)
            except InputError as error:
                found.refused.append(sizes)
                found.reasons.add(str(error))
                break
            found.worst = max(found.worst, *_list_errors(outputs, original(inputs)))
        else:
            if sizes in model.variants:
                found.exact += 1
            else:
                found.padded += 1
    return found


def _list_errors(found: Arrays, expected: Arrays) -> Iterator[float]:
    """Yield the largest error of each output, as a share of its range."""
    for name, value in expected.items():
        assert found[name].shape == value.shape, (name, found[name].shape, value.shape)
        span = float(np.ptp(value)) or 1.0
        yield float(np.abs(found[name] - value).max() / span)


def _write_rules(codegen: str, folder: Path) -> str | Path:
    if codegen == "dla":
        return codegen
    path = folder / "npu.yaml"
    path.write_text(_RULES, encoding="utf-8")
    return path


def main(words: list[str]) -> int:
    """Print the table. Return 0, or 1 where a line is not as it should be."""
    codegens = [word for word in words if word in CODEGENS] or CODEGENS
    models = [word for word in words if word in MODELS] or MODELS
    sys.stdout.write(
        "| model | codegen | variants | nodes | regions | as they are | padded | refused | error |\n"
        f"|{'---|' * 9}\n"
    )
    with TemporaryDirectory() as name:
        results = [measure(model, codegen, Path(name)) for model in models for codegen in codegens]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
