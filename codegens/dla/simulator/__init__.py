"""The simulator: it runs programs in numpy and checks every access."""

from .kernel_convolutions import FaultError, check_box, end_of
from .simulator import SimulationError, Simulator, find_memory_ends
