"""Reading a cost model: a path or a name to something that answers in seconds."""

from byoc.costs.model import Roofline
from byoc.errors import InputError
from byoc.plugins import COST_MODELS, find_file
from byoc.yamlfile import read_yaml


def load_cost_model(name: str) -> Roofline:
    """Return the cost model in a file, given by its path or the name of an installed one.

    Raises InputError with a line for every mistake in the file.
    """
    return read_yaml(find_file(COST_MODELS, name), Roofline)


def load_host_costs(name: str) -> Roofline:
    """Return a cost model for the host, which is reached by no link and launches nothing.

    Raises InputError as `load_cost_model` does, and when the model is one of an accelerator.
    """
    costs = load_cost_model(name)
    if costs.link is not None or costs.launch:
        raise InputError(f"{name}: the host's cost model has neither link nor launch")
    return costs


def load_device_costs(name: str) -> Roofline:
    """Return a cost model for an accelerator.

    Raises InputError as `load_cost_model` does, and when the model has no link: then every transfer
    would be free without anybody having said so.
    """
    costs = load_cost_model(name)
    if costs.link is None:
        raise InputError(
            f"{name}: an accelerator's cost model needs a link "
            "(of memory that both share, the bandwidth is .inf)"
        )
    return costs
