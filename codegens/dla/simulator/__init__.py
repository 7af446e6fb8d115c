"""The simulator: it runs programs in numpy and checks every access."""

from .simulator import SimulationError, Simulator
from .tagged_memory import FaultError, check_box, end_of
