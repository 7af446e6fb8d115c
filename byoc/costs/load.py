"""Reading a cost model: a path or a built-in name to something that answers in seconds."""

from byoc.costs.model import Roofline
from byoc.plugins import COST_MODELS, find_file
from byoc.yamlfile import read_yaml


def load_cost_model(name: str) -> Roofline:
    """Return the cost model in a file, given by its path or a built-in name.

    Raises InputError with a line for every mistake in the file.
    """
    return read_yaml(find_file(COST_MODELS, name), Roofline)
