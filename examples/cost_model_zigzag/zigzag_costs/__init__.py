"""Costs by ZigZag: how an accelerator of a given hardware file runs a layer best, in cycles and joules.

ZigZag (Mei et al., IEEE Transactions on Computers 70, 2021) searches the orders and tilings of a layer's
loops over a memory hierarchy. It knows convolutions and products; another cost model, `others`, has all
other operators, the link and the launches.
"""

import logging
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import zigzag
from zigzag.mapping.temporal_mapping import TemporalMappingType
from zigzag.stages.evaluation.cost_model_evaluation import CostModelStage
from zigzag.stages.main import MainStage
from zigzag.stages.mapping.spatial_mapping_generation import SpatialMappingGeneratorStage
from zigzag.stages.mapping.temporal_mapping_generator_stage import TemporalMappingGeneratorStage
from zigzag.stages.parser.accelerator_parser import AcceleratorParserStage
from zigzag.stages.parser.workload_parser import WorkloadParserStage
from zigzag.stages.results.reduce_stages import MinimalEnergyStage, MinimalLatencyStage
from zigzag.stages.workload_iterator import WorkloadStage

from byoc.costs import CostModel, Price, Task, Unknown, load_device_costs

INPUTS = Path(zigzag.__file__).parent / "inputs"
PICOJOULE = 1e-12
LOOPS = ("B", "K", "G", "OX", "OY", "C", "FX", "FY")


@dataclass(frozen=True)
class ZigZagCosts:
    """The cycles and joules of each convolution and product, by ZigZag; the rest by another model."""

    name: str = "zigzag"
    hw: Path = field(default=INPUTS / "hardware" / "tpu_like.yaml", metadata={"help": "the hardware"})
    mapping: Path = field(default=INPUTS / "mapping" / "tpu_like.yaml", metadata={"help": "its mapping"})
    clock: float = field(default=1e9, metadata={"help": "cycles a second"})
    bits: int = field(default=8, metadata={"help": "of weights and activations on the hardware"})
    effort: int = field(default=6, metadata={"help": "loops that are ordered; more take longer"})
    minimise: str = field(default="latency", metadata={"help": "latency or energy, of each layer"})
    others: str = field(default="dla", metadata={"help": "the cost model of all else"})
    known: dict[Any, Price] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the files, so that a wrong one is an error before anything is placed."""
        logging.getLogger("zigzag").setLevel(logging.ERROR)
        AcceleratorParserStage.parse_accelerator(str(self.hw))
        WorkloadParserStage.parse_mapping_data(str(self.mapping))

    @property
    def rest(self) -> CostModel:
        """The model of all else."""
        return load_device_costs(self.others)

    def execution(self, task: Task) -> Price | Unknown:
        """Return the price of a unit's layers; what is fused to them costs nothing."""
        layers = [sizes for part in task.parts or (task,) if (sizes := read_loops(part))]
        if not layers or not task.sized:
            return self.rest.execution(task)
        prices = [self.price_layer(*sizes) for sizes in layers]
        return Price(sum(each.seconds for each in prices), sum(each.joules for each in prices))

    def price_layer(self, sizes: tuple[int, ...], steps: tuple[int, ...]) -> Price:
        """Return the price of a layer: `sizes` of `LOOPS`, `steps` strides and dilations (x, y)."""
        key = sizes, steps
        if key not in self.known:
            (best, _), *_ = self.run_zigzag(make_layer(sizes, steps, self.bits))
            self.known[key] = Price(best.latency_total2 / self.clock, best.energy_total * PICOJOULE)
        return self.known[key]

    def run_zigzag(self, layer: dict[str, Any]) -> Any:
        """Return ZigZag's evaluation of a layer at its best mapping."""
        reduce = MinimalEnergyStage if self.minimise == "energy" else MinimalLatencyStage
        stages = [WorkloadParserStage, AcceleratorParserStage, WorkloadStage, reduce]
        stages += [SpatialMappingGeneratorStage, reduce, TemporalMappingGeneratorStage, CostModelStage]
        return MainStage(
            list_of_callables=stages,
            workload=[layer],
            accelerator=str(self.hw),
            mapping=str(self.mapping),
            loma_lpf_limit=self.effort,
            loma_show_progress_bar=False,
            nb_mappings_generated=1,
            enable_mix_spatial_mapping_generation=False,
            access_same_data_considered_as_no_access=True,
            temporal_mapping_type=TemporalMappingType.UNEVEN,
        ).run()

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the price of a transfer by the other model's link."""
        return self.rest.transfer(size, converted)

    def converting(self) -> bool:
        """Return False: what the host converts on the way is priced by the host's cost model."""
        return False

    def launching(self) -> Price:
        """Return the price of a launch by the other model."""
        return self.rest.launching()


def read_loops(task: Task) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the loop sizes, strides and dilations of a layer, None for what ZigZag does not know."""
    if task.op not in ("Conv", "MatMul", "Gemm") or not task.sized:
        return None
    x, w, y = task.inputs[0].shape, task.inputs[1].shape, task.outputs[0].shape
    if task.op == "Conv":
        if len(y) != 4:
            return None
        group = int(task.attributes.get("group", 1))
        strides = task.attributes.get("strides", [1, 1])
        dilations = task.attributes.get("dilations", [1, 1])
        sizes = (y[0], y[1] // group, group, y[3], y[2], w[1], w[3], w[2])
        return sizes, (strides[1], strides[0], dilations[1], dilations[0])
    depth = x[0] if task.attributes.get("transA") else x[-1]
    groups = prod(y[:-2]) if len(w) > 2 else 1
    rows = prod(y[:-1]) // groups
    return (1, y[-1], groups, rows, 1, depth, 1, 1), (1, 1, 1, 1)


def make_layer(sizes: tuple[int, ...], steps: tuple[int, ...], bits: int) -> dict[str, Any]:
    """Return a layer as ZigZag describes one."""
    stride_x, stride_y, dilation_x, dilation_y = steps
    return {
        "id": 0,
        "name": "layer",
        "operator_type": "Conv",
        "equation": "O[b][g][k][oy][ox]+=W[g][k][c][fy][fx]*I[b][g][c][iy][ix]",
        "dimension_relations": [
            f"ix={stride_x}*ox+{dilation_x}*fx",
            f"iy={stride_y}*oy+{dilation_y}*fy",
        ],
        "loop_dims": list(LOOPS),
        "loop_sizes": list(sizes),
        "operand_precision": {"W": bits, "I": bits, "O": 2 * bits, "O_final": bits},
        "operand_source": {"I": 0, "W": 0},
    }
