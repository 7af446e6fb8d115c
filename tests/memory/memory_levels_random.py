"""Schedules at random, and the fewest bytes by trying everything."""

from itertools import product
from random import Random

from byoc.memory.scratchpad import Access, AccessSchedule, ScheduledStep


def random_schedule(seed: int, turns: int, largest: int = 6, alignment: int = 1) -> AccessSchedule:
    """A schedule of chains and branches, with updates, pins, repeated streaming and take-overs."""
    random = Random(seed)
    sizes = [alignment * random.randint(1, largest) for _ in range(random.randint(1, 2))]
    inputs = frozenset(range(len(sizes)))
    done, accesses = [], dict[int, int]()
    for number in range(turns):
        reads = random.sample(range(len(sizes)), min(len(sizes), random.randint(1, 3)))
        own = [_access(random, b, sizes[b], alignment, writes=random.random() < 0.1) for b in reads]
        over: tuple[tuple[int, int], ...] = ()
        if random.random() < 0.9:
            size = random.choice([sizes[reads[0]], alignment * random.randint(1, largest)])
            sizes.append(size)
            own.append(_access(random, len(sizes) - 1, size, alignment, writes=True))
            over = tuple(
                (len(sizes) - 1, a.buffer)
                for a in own[:-1]
                if sizes[a.buffer] == size and random.random() < 0.5 and not a.writes
            )
        accesses.update({a.buffer: number for a in own})
        done.append(ScheduledStep(f"t{number}", tuple(own), alignment * random.randint(0, 2), over))
    last = {b for b, number in accesses.items() if number == turns - 1}
    outputs = frozenset(b for b in range(len(sizes)) if b in last or random.random() < 0.1)
    names = tuple(f"b{b}" for b in range(len(sizes)))
    return AccessSchedule(names, tuple(sizes), tuple(done), inputs, outputs, alignment)


def _access(random: Random, buffer: int, size: int, alignment: int, writes: bool) -> Access:
    streamed = random.choice([None, None, None, 2 * size, max(1, size // 2)])
    staging = alignment * random.choice([0, 0, 1, 2])
    return Access(buffer, writes, streamed, staging, pinned=random.random() < 0.05)


def exhaustive(schedule: AccessSchedule, size: int) -> int | None:
    """The fewest bytes moved over all that can be resident and kept; None where nothing fits."""
    accesses = [(n, a) for n, turn in enumerate(schedule.turns) for a in turn.accesses]
    best = None
    for kinds in product("srk", repeat=len(accesses)):  # streamed, resident, resident and kept on
        bytes_ = _bytes(schedule, accesses, kinds, size)
        if bytes_ is not None and (best is None or bytes_ < best):
            best = bytes_
    return best


def _bytes(
    schedule: AccessSchedule, accesses: list[tuple[int, Access]], kinds: tuple[str, ...], size: int
) -> int | None:
    kind = {(turn, access.buffer): k for (turn, access), k in zip(accesses, kinds, strict=True)}
    held: set[int] = set()  # kept from turns before
    home = set(schedule.inputs)  # whose content is in system memory
    made = set(schedule.inputs)
    later = [
        {a.buffer for turn in schedule.turns[n + 1 :] for a in turn.accesses}
        for n in range(len(schedule.turns))
    ]
    moved = 0
    for number, turn in enumerate(schedule.turns):
        used, stay = turn.staging, set(held)
        here = []
        for access in turn.accesses:
            b, how = access.buffer, kind[number, access.buffer]
            bytes_ = schedule.sizes[b]
            if how == "s":
                if access.pinned or b in held:
                    return None
                used += access.staging
                moved += bytes_ if access.streamed is None else access.streamed
                if b in made and b not in home:
                    moved += bytes_
                    home.add(b)
                if access.writes:
                    home.add(b)
                made.add(b)
                continue
            if b in made and b not in held:
                moved += bytes_
                if b not in home:
                    moved += bytes_
                    home.add(b)
            if access.writes:
                home.discard(b)
            made.add(b)
            here.append(b)
            stay.add(b)
            if how == "r":
                stay.discard(b)
            elif b not in later[number]:
                return None  # kept for nothing: the same as not kept
        used += sum(schedule.sizes[b] for b in held | set(here))
        used -= _shared(schedule, number, held | set(here))
        if used > size:
            return None
        held = stay
    moved += sum(schedule.sizes[b] for b in schedule.outputs - home)
    return moved


def _shared(schedule: AccessSchedule, number: int, here: set[int]) -> int:
    """The most bytes that buffers made in a turn can share with those that die there."""
    pairs = [(w, r) for n, w, r in schedule.overwrites if n == number and {w, r} <= here]
    best = 0
    for chosen in product((False, True), repeat=len(pairs)):
        taken = [pair for pair, yes in zip(pairs, chosen, strict=True) if yes]
        alone = len({w for w, _ in taken}) == len({r for _, r in taken}) == len(taken)
        best = max(best, sum(schedule.sizes[w] for w, _ in taken) if alone else 0)
    return best
