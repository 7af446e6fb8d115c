"""Large random problems: layered graphs and transformers, by seed."""

import numpy as np

from byoc.placement import Problem

_LINK = 2e9
_LATENCY = 5e-6
LAUNCH = 50e-6


def layered(units: int, width: int = 64, seed: int = 0) -> Problem:
    """Layers of `width` units that each read one to three results of the four layers before."""
    rng = np.random.default_rng(seed)
    layer = np.arange(units) // width
    consumers: list[list[int]] = [[] for _ in range(units + 1)]
    count = rng.choice([1, 1, 1, 2, 3], units)
    back = rng.choice([1, 1, 1, 2, 3, 4], (units, 3))
    column = rng.integers(0, width, (units, 3))
    for unit in range(units):
        for i in range(count[unit]):
            made = (layer[unit] - back[unit, i]) * width + column[unit, i]
            consumers[made + 1 if made >= 0 else 0].append(unit)
    return _priced(rng, units, consumers, refused=0.2)


def transformer(units: int, seed: int = 0) -> Problem:
    """Blocks of attention and a feed-forward part with residuals; what is refused repeats."""
    rng = np.random.default_rng(seed)
    # Where each of a block's units reads from: the number of units back.
    reads = [
        (1,),
        (1,),
        (2,),
        (3,),
        (3,),
        (1, 4),
        (1,),
        (1, 5),
        (1,),
        (1, 10),
        (1,),
        (1,),
        (1,),
        (1,),
        (1, 5),
    ]
    block = len(reads)
    consumers: list[list[int]] = [[] for _ in range(units + 1)]
    for unit in range(units):
        for back in reads[unit % block]:
            consumers[max(0, unit - back + 1)].append(unit)
    open_to = rng.random((units // block + 1, block)) > np.array([0.3, *[0.02] * 5, 0.5, *[0.05] * 8])
    return _priced(rng, units, consumers, refused=~open_to.ravel()[:units])


def _priced(
    rng: np.random.Generator, units: int, consumers: list[list[int]], refused: float | np.ndarray
) -> Problem:
    host = rng.lognormal(-9.5, 1.2, units)
    device = host / rng.lognormal(1.2, 0.8, units) + 1e-6
    device[rng.random(units) < refused] = np.inf
    moved = _LATENCY + rng.lognormal(11, 1.2, units + 1) / _LINK
    unread = np.array([not ends for ends in consumers])
    return Problem.build(
        seconds=np.column_stack([host, device]),
        producer=np.arange(-1, units),
        consumers=consumers,
        is_output=unread,
        to_device=moved[:, np.newaxis],
        to_host=moved[:, np.newaxis],
        launch=[LAUNCH],
    )
