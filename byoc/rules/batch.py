"""The limit on the batch: dimension 0 of a model's inputs, and the nodes that depend on it."""

from collections.abc import Iterator, Mapping

from byoc.graph.index import GraphIndex
from byoc.rules.host import get_body_node
from byoc.rules.objections import Objection, make_unknown


def check_batch(index: GraphIndex, most: int, place: str) -> Mapping[int, Objection]:
    """Return the objections to nodes that depend on an input with a batch of more than `most`.

    Inputs of rank 2 or more have a batch. All nodes in a body of such a node depend on it, too.
    """
    if index.outer is not None:
        around = check_batch(index.outer, most, place).get(get_body_node(index))
        return {} if around is None else dict.fromkeys(range(len(index.nodes)), around)
    found: dict[int, Objection] = {}
    for tensor, objection in _check_inputs(index, most, place):
        pending = [tensor]
        while pending:
            for reader in index.consumers.get(pending.pop(), ()):
                if reader not in found:
                    found[reader] = objection
                    pending.extend(index.nodes[reader].output)
    return found


def _check_inputs(index: GraphIndex, most: int, place: str) -> Iterator[tuple[str, Objection]]:
    for name in index.inputs:
        known = index.types.get(name)
        if known is None or (known.shape is not None and len(known.shape) < 2):
            continue
        batch = known.shape[0] if known.shape else None
        if not isinstance(batch, int):
            yield name, make_unknown(place, f"the batch of the model's input '{name}'")
        elif batch > most:
            text = f"the batch of the model's input '{name}' is {batch}, at most {most} is supported"
            yield name, Objection(place, text)
