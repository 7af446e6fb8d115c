"""Costs of an NPU in Python: what a YAML file cannot say.

The DMA of this NPU moves bursts of 4 KiB, and its multipliers work on 16 output channels at a time.
Everything else is the roofline in `files/npu-sheet.yaml`.
"""

from math import ceil

from byoc.costs import Price, Task, Unknown, load_cost_model

BURST = 4096
LANES = 16


class NPUCosts:
    """The roofline of the data sheet, with whole bursts and whole groups of channels."""

    name = "npu"

    def __init__(self) -> None:
        """Read the data sheet, which is installed with this package."""
        self.sheet = load_cost_model("npu-sheet")

    def execution(self, task: Task) -> Price | Unknown:
        """Return the seconds of an operator or composite; idle lanes cost what busy ones do."""
        price = self.sheet.execution(task)
        convolutions = [part for part in task.parts or (task,) if part.op == "Conv"]
        if not price or not convolutions or convolutions[0].outputs[0] is None:
            return price
        channels = convolutions[0].outputs[0].shape[1]
        busy = channels / (ceil(channels / LANES) * LANES)
        return Price(price.seconds / busy, price.joules)

    def transfer(self, size: int, converted: int = 0) -> Price:
        """Return the seconds to send a tensor of `size` bytes, in whole bursts."""
        return self.sheet.transfer(ceil(size / BURST) * BURST, converted)

    def converting(self) -> bool:
        """Return False: what the host converts on the way is priced by the host's cost model."""
        return False

    def launching(self) -> Price:
        """Return the seconds to start a region."""
        return self.sheet.launching()
