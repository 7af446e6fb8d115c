"""Random weights with which the signal neither dies out nor explodes, whatever the network.

One pass over a sample: each layer that multiplies is scaled so that its output has the standard
deviation asked for (Mishkin and Matas, "All you need is a good init", 2015), in the order they run.
"""

from collections.abc import Callable

import torch
from torch import nn

# Buffers of normalizations; other buffers are masks and tables, which are structure.
STATISTICS = ("running_mean", "running_var", "weight", "bias")

Target = Callable[[str], float]


def heal(model: nn.Module, arguments: tuple[torch.Tensor, ...], target: Target, positions: str) -> None:
    """Give `model` new random weights in place.

    `target` gives the standard deviation wanted of a layer's output, by the layer's name;
    parameters whose names contain one of `positions` (comma-separated) are added to the signal as
    they are, and get a standard deviation of 0.5.
    """
    torch.manual_seed(0)
    _untie(model)
    with torch.no_grad():
        statistics = [each for each in model.named_buffers() if each[0].rpartition(".")[2] in STATISTICS]
        for name, tensor in (*model.named_parameters(), *statistics):
            if tensor.is_floating_point():
                _fill(name, tensor, positions.split(",") if positions else [])
        handles = [
            module.register_forward_hook(_scaling(target(name)))
            for name, module in model.named_modules()
            if _multiplies(module)
        ]
        model(*arguments)
        for handle in handles:
            handle.remove()


def _untie(model: nn.Module) -> None:
    """Give layers that share a table of embeddings one of their own: the two want different scales."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for module in model.modules():
        if not isinstance(module, nn.Embedding) and id(getattr(module, "weight", None)) in tables:
            module.weight = nn.Parameter(module.weight.detach().clone())


def _multiplies(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return weight is not None and weight.dim() > 1 and not isinstance(module, nn.Embedding)


def _fill(name: str, tensor: torch.Tensor, positions: list[str]) -> None:
    kind = name.rpartition(".")[2]
    if any(part in name for part in positions):
        tensor.normal_(0.0, 0.5)
    elif kind in ("running_var", "gamma", "layer_scale", "lambda1"):
        tensor.uniform_(0.7, 1.3)
    elif kind in ("running_mean", "bias", "beta"):
        tensor.uniform_(-0.2, 0.2)
    elif kind == "weight" and tensor.dim() == 1:
        tensor.uniform_(0.7, 1.3)
    elif kind == "weight" and "embed" in name and tensor.dim() == 2:
        tensor.normal_(0.0, 1.0)
    elif tensor.dim() > 1:
        tensor.normal_(0.0, 1.0 / max(1, tensor[0].numel()) ** 0.5)


def _scaling(target: float) -> Callable[..., torch.Tensor | None]:
    done = []

    def scale(module: nn.Module, _: object, output: torch.Tensor) -> torch.Tensor | None:
        deviation = float(output.std()) if output.numel() > 1 else 0.0
        if done or deviation < 1e-6:
            return None
        done.append(True)  # a layer that runs again (a head shared by levels) keeps its first scale
        module.weight.mul_(target / deviation)
        if getattr(module, "bias", None) is not None:
            module.bias.mul_(target / deviation)
        return output * (target / deviation)

    return scale
