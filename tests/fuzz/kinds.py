"""The kinds of input that are fuzzed: what makes and changes them, and what they are held against."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import artifact_inputs
import bundle_inputs
import model_inputs
import rule_inputs
import small_inputs
from bundle_targets import Artifacts, Bundles, Packed
from targets import Calibrations, Conditions, Costs, Models, Rules
from text_inputs import TextInputs

CORPUS = Path(__file__).parent / "corpus"


class FuzzTarget(Protocol):
    """Something of byoc that takes input of others."""

    @property
    def suffix(self) -> str:
        """The suffix of an input as a file."""

    def prepare(self) -> None:
        """Make ready what is the same for all inputs."""

    def __call__(self, data: bytes) -> str:
        """Return what became of an input; raise for what must never happen."""


@dataclass(frozen=True)
class Kind:
    """A kind of input, and the rooms of byoc whose lines it should reach."""

    target: Callable[[Path], FuzzTarget]
    seeds: Callable[[], tuple[bytes, ...]]
    make: Callable[[random.Random], bytes]
    mutate: Callable[[bytes, random.Random], bytes]
    rooms: tuple[str, ...]


def _text_kind(
    target: Callable[[Path], FuzzTarget], inputs: Callable[[], TextInputs], *rooms: str
) -> Kind:
    return Kind(
        target,
        lambda: inputs().seeds,
        lambda chance: inputs().make(chance),
        lambda data, chance: inputs().mutate(data, chance),
        rooms,
    )


_BUNDLE_ROOMS = ("byoc/bundle", "byoc/runtime", "byoc/boundary/contracts")
KINDS = {
    "artifacts": Kind(
        Artifacts,
        artifact_inputs.artifact_seeds,
        artifact_inputs.make_artifact,
        artifact_inputs.mutate_artifact,
        ("codegens/dla/machine", "codegens/dla/simulator", "codegens/dla/region_artifact.py"),
    ),
    "bundles": Kind(
        Bundles, bundle_inputs.seeds, bundle_inputs.make, bundle_inputs.mutate, _BUNDLE_ROOMS
    ),
    "calibrations": _text_kind(
        Calibrations,
        small_inputs.calibration_inputs,
        "byoc/quantization/_calibration_file.py",
        "byoc/quantization/_calibrators.py",
        "byoc/support/_yamlfile.py",
        "byoc/support/_yamlfile.py",
        "byoc/support/_workspace.py",
        "byoc/support/_workspace.py",
    ),
    "conditions": _text_kind(Conditions, small_inputs.condition_inputs, "byoc/expressions"),
    "costs": _text_kind(
        Costs,
        small_inputs.cost_inputs,
        "byoc/costs/_cost_model.py",
        "byoc/costs/_cost_model.py",
        "byoc/costs/_measured_costs.py",
        "byoc/costs/_load_cost_model.py",
        "byoc/costs/_measured_costs.py",
        "byoc/costs/_graph_tasks.py",
        "byoc/costs/_roofline.py",
        "byoc/support/_yamlfile.py",
        "byoc/support/_yamlfile.py",
        "byoc/support/_workspace.py",
    ),
    "models": Kind(
        Models,
        model_inputs.seeds,
        model_inputs.make,
        model_inputs.mutate,
        ("byoc/model", "byoc/schemas", "byoc/planning", "byoc/patterns"),
    ),
    "packed": Kind(Packed, bundle_inputs.seeds, bundle_inputs.make, bundle_inputs.mutate, _BUNDLE_ROOMS),
    "rules": _text_kind(Rules, rule_inputs.inputs, "byoc/rules", "byoc/patterns", "byoc/expressions"),
}
