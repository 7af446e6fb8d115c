"""Planted faults against the verdict on bundles of trained quantized networks.

`python tests/zoo_suite/planted_faults.py [MODEL ...]` makes a bundle of each network for a rough machine
(tests/planted_layers.py), which rounds about one result of a hundred to the other integer, and verifies
it on samples: first as it is, then with each of twenty faults in one of its layers. Networks not yet
quantized are quantized on seeded samples. Printed are what is verified, the verdict, and what was named.
The exit code is 1 where the right machine is refused, a fault is not found, or another layer is named.
With `--rules RULES` the bundle is for these rules; with `--clean` no faults are planted, and the codegen
of the rules is used.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np  # noqa: E402 - needs the path
import planted_layers  # noqa: E402
import pytest  # noqa: E402
import vendors  # noqa: E402

import byoc  # noqa: E402
from byoc.bundle import Bundle, open_bundle  # noqa: E402
from byoc.samples import model_samples  # noqa: E402
from byoc.verification import LayerError, Verification  # noqa: E402

MODELS = ("yunet", "eff_word_net_qint8")
_SAMPLES = 4


def make_bundle(name: str, folder: Path, rules: str, codegen: str | None) -> Path:
    """Make the bundle of a model of the zoo, not verified, and samples in `data` beside it."""
    model = byoc.load_model(f"zoo:{name}")
    samples = [model_samples(model, seed) for seed in range(_SAMPLES)]
    data = folder / "data"
    data.mkdir()
    for number, sample in enumerate(samples):
        np.savez(data / f"{number}.npz", **sample)
    quantized = any(node.op_type == "QuantizeLinear" for node in model.proto.graph.node)
    precision = byoc.Precision() if quantized else byoc.Precision(quantize="int8", data=data)
    byoc.partition(
        f"zoo:{name}",
        rules,
        output=folder / "b",
        strategy="all-supported",
        cache=False,
        codegen=codegen,
        verify=False,
        precision=precision,
        shapes={key: value.shape for key, value in samples[0].items()},
    )
    return folder / "b"


def find_planted(bundle: Bundle) -> Iterator[tuple[planted_layers.PlantedFault, str]]:
    """Yield the faults with the tensor of the layer of the largest region that each is planted in."""
    regions = [region.load(inline=True) for _, region, _ in bundle.regions()]
    largest = max(regions, key=lambda model: len(planted_layers.list_layers(model)))
    for fault in planted_layers.FAULTS:
        yield fault, planted_layers.find_place(largest, fault)


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


def plant_all(name: str, rules: str) -> Iterator[tuple[str, bool]]:
    """Yield a row of the table for the right machine and for each fault, and whether it is right."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_bundle(name, Path(folder), rules, "rough")
        planted_layers.RoughMachine.fault = None
        found = byoc.verify(path, f"zoo:{name}", inputs=Path(folder) / "data")
        yield f"{name} | nothing | {describe(found)}", found.passed
        for fault, tensor in find_planted(open_bundle(path)):
            if not tensor:
                yield f"{name} | {fault.name} | no layer can have it |", True
                continue
            planted_layers.RoughMachine.fault, planted_layers.RoughMachine.tensor = fault, tensor
            found = byoc.verify(path, f"zoo:{name}", inputs=Path(folder) / "data")
            wrong = [error.tensor for error in list_wrong(found)]
            yield f"{name} | {fault.name} | {describe(found)}", not found.passed and wrong == [tensor]


def verify_clean(name: str, rules: str) -> Iterator[tuple[str, bool]]:
    """Yield a row of the table for a bundle of the rules' own codegen."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_bundle(name, Path(folder), rules, None)
        found = byoc.verify(path, f"zoo:{name}", inputs=Path(folder) / "data")
        regions = len(found.regions)
        layers = sum(len(r.layers.errors) for r in found.regions if r.layers is not None)
        yield (
            f"{name} | {regions} regions, {layers} layers compared alone | {describe(found)}",
            found.passed,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rules", default="dla")
    parser.add_argument("--clean", action="store_true")
    asked = parser.parse_intermixed_args(arguments)
    failed = 0
    with pytest.MonkeyPatch.context() as patch:
        vendors.install(patch, rough=planted_layers.RoughMachine)
        for name in asked.models:
            rows = verify_clean(name, asked.rules) if asked.clean else plant_all(name, asked.rules)
            for row, right in rows:
                failed += not right
                sys.stdout.write(f"| {row} |{'' if right else ' <- not as it should be'}\n")
                sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
