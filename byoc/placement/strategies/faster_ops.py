"""Each operator by itself: offloaded if it alone is faster."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.placement.feasible import make_feasible
from byoc.placement.problem import Problem
from byoc.placement.strategy import ALL_REQUIREMENTS, FUSIONS, LAUNCH, Placement


@dataclass(frozen=True)
class FasterOps:
    """Place each unit where its execution alone is fastest; ties stay on the host.
    The rule of onnx-mlir's placement heuristic FasterOps (onnx/onnx-mlir,
    src/Accelerators/NNPA/Conversion/ONNXToZHigh/DevicePlacementHeuristic.cpp, PlaceBeneficialOpsOnNNPA):
    an operator that the accelerator supports goes there if the cost model says that it is faster there
    than on the CPU, whatever its neighbours do. With several accelerators the fastest one counts. Hard
    limits are kept by moving units afterwards (`byoc.placement.feasible`).
    """

    name: ClassVar[str] = "faster-ops"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {LAUNCH, FUSIONS}

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, without a bound."""
        return Placement.from_labels(
            problem,
            make_feasible(problem, problem.costs.argmin(axis=1).astype(np.int64)),
            notes=("transfers played no part in the choice",),
            why_host="the operator alone is no faster on the accelerator",
        )
