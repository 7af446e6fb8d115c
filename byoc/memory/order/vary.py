"""Other orders with the same peak: their buffers may lie better."""

from random import Random

from byoc.memory.live import Live, live

_ROUNDS = 16


def varied(lives: Live, seed: int) -> Live:
    """Return another order whose peak is not higher, by swapping steps that do not wait for each other.

    The same seed gives the same order; it may be the one that went in.
    """
    random = Random(seed)
    for _ in range(_ROUNDS):
        order = list(lives.order)
        for _ in range(max(1, len(order) // 4)):
            if len(order) < 2:
                break
            at = random.randrange(len(order) - 1)
            if order[at] not in lives.problem.before[order[at + 1]]:
                order[at], order[at + 1] = order[at + 1], order[at]
        tried = live(lives.problem, order, last_operand=random.random() < 0.5)
        if tried.peak <= lives.peak:
            lives = tried
    return lives
