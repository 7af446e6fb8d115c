"""What would change if a rule were relaxed: the nodes and the compute that one constraint keeps out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from byoc.explain.collect import Refusal

# Where the model's own form is what is missing: no rule that could be relaxed.
_OF_THE_MODEL = ".quantized"


@dataclass(frozen=True, slots=True)
class Gain:
    """A constraint that alone keeps nodes out: where it stands, of which operator, and how much.

    `operations` is the compute of the `nodes`; `place` the constraint's path in the rule file.
    """

    place: str
    what: str
    nodes: int
    operations: float


def gains(refusals: Iterable[Refusal]) -> list[Gain]:
    """Return what each constraint would gain if it alone were dropped, the most compute first.

    A node counts for a constraint when nothing else of some rule stands against it.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for refusal in refusals:
        for key in dict.fromkeys(_lone(refusal)):
            found.setdefault(key, []).append(refusal.operations)
    rows = [Gain(place, what, len(each), sum(each)) for (place, what), each in found.items()]
    return sorted(rows, key=lambda gain: (-gain.operations, -gain.nodes, gain.place, gain.what))


def _lone(refusal: Refusal) -> Iterator[tuple[str, str]]:
    """Yield each constraint that is the only one of its rule against a node."""
    for reasons in [attempt.objections for attempt in refusal.attempts] or [refusal.reasons]:
        places = {reason.place for reason in reasons}
        place = places.pop() if len(places) == 1 else ""
        if place and not place.endswith(_OF_THE_MODEL):
            yield place, refusal.op
