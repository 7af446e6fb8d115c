"""Generated graphs of 1,000 to 100,000 nodes, for measurements of scale."""

from typing import Any

import onnx
from numpy.typing import NDArray

from byoc.errors import InputError, suggest_nearest
from byoc.zoo.provider import ZooEntry
from byoc.zoo.samples import make_photo
from byoc.zoo.transformer import count_transformer_nodes, make_transformer

_LAYERS = {"transformer_1k": 31, "transformer_10k": 303, "transformer_100k": 3031}


class GeneratedTransformers:
    """Transformers of about 1,000, 10,000 and 100,000 nodes."""

    def entries(self) -> tuple[ZooEntry, ...]:
        """Return them by size."""
        return tuple(
            ZooEntry(
                name=name,
                family="language encoder",
                source=f"generated, {layers} layers",
                licence="Apache-2.0",
                weights="random, seeded",
                nodes=count_transformer_nodes(layers),
            )
            for name, layers in _LAYERS.items()
        )

    def load(self, name: str) -> onnx.ModelProto:
        """Make a model of the depth that its name gives; raises `InputError` for other names."""
        return make_transformer(_count_layers(name))

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        """Return embedded tokens, `[1, tokens, hidden]`; raises `InputError` as `load` does."""
        _count_layers(name)
        (value,) = make_transformer(1).graph.input  # any depth takes the same
        _, *shape = (dim.dim_value for dim in value.type.tensor_type.shape.dim)
        return {value.name: make_photo(seed, 1, *shape)[0]}


def _count_layers(name: str) -> int:
    if name not in _LAYERS:
        raise InputError(
            f"zoo: no generated model named {name!r}{suggest_nearest(name, _LAYERS)}; "
            f"available: {', '.join(_LAYERS)}"
        )
    return _LAYERS[name]
