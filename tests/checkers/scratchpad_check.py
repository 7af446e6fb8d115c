"""A plan of two memories replayed action by action, by code that shares nothing with the planner.

Each byte of both memories has a tag: the buffer whose content it holds, and how often that buffer had
been written by then. What is read has to have the tag of what is meant.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from byoc.errors import InputError
from byoc.memory.scratchpad import LoadAction, RunAction, ScratchpadPlan, StoreAction
from byoc.memory.scratchpad._scratchpad_plan import Action

Tag = tuple[int, int] | None


class _Memory:
    """A memory of so many bytes, as spans (begin, end, tag) that do not overlap."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size
        self.spans: list[tuple[int, int, Tag]] = []

    def write(self, begin: int, size: int, tag: Tag) -> Iterator[str]:
        """Give bytes a tag; what lay there is gone."""
        end = begin + size
        if begin < 0 or end > self.size:
            yield f"bytes {begin} to {end} are outside the {self.name} of {self.size}"
            return
        rest = []
        for first, last, old in self.spans:
            rest += [
                (a, b, old) for a, b in ((first, min(last, begin)), (max(first, end), last)) if a < b
            ]
        self.spans = sorted([*rest, (begin, end, tag)], key=lambda span: span[0])

    def read(self, begin: int, size: int, tag: Tag) -> Iterator[str]:
        """Refuse bytes that do not all have the tag."""
        if begin < 0 or begin + size > self.size:
            yield f"bytes {begin} to {begin + size} are outside the {self.name} of {self.size}"
            return
        at = begin
        for first, last, found in self.spans:
            if first <= at < last and found == tag:
                at = last
        if at < begin + size:
            yield f"byte {at} of the {self.name} does not hold it"


class _Replay:
    def __init__(self, plan: ScratchpadPlan) -> None:
        self.plan = plan
        schedule = plan.schedule
        self.version = [0] * len(schedule.sizes)
        self.scratchpad = _Memory("scratchpad", plan.size)
        self.system = _Memory("arena", plan.arena)
        self.callers: dict[int, Tag] = {}  # inputs and outputs that have no home in the arena
        self.moved = {"loaded": 0, "stored": 0, "streamed": 0}
        self.turn = 0

    def complaints(self) -> Iterator[str]:
        plan = self.plan
        for buffer in sorted(plan.schedule.inputs):
            yield from self._write_home(buffer)
        for number, action in enumerate(plan.actions):
            for complaint in self._done(action):
                yield f"action {number}, {self._told(action)}: {complaint}"
        if self.turn != len(plan.schedule.turns):
            yield f"{self.turn} of {len(plan.schedule.turns)} turns are executed"
        for buffer in sorted(plan.schedule.outputs):
            for complaint in self._read_home(buffer):
                yield f"output {plan.schedule.names[buffer]}: {complaint}"
        for kind, bytes_ in self.moved.items():
            if bytes_ != getattr(plan, kind):
                yield f"{bytes_} bytes are {kind}, the plan says {getattr(plan, kind)}"
        if plan.bound > plan.moved:
            yield f"the bound of {plan.bound} bytes is above the {plan.moved} that the plan moves"

    def _done(self, action: Action) -> Iterator[str]:
        if isinstance(action, RunAction):
            yield from self._run(action)
            return
        size = self.plan.schedule.sizes[action.buffer]
        tag = self._tag(action.buffer)
        if isinstance(action, LoadAction):
            yield from self._read_home(action.buffer)
            yield from self.scratchpad.write(action.address, size, tag)
            self.moved["loaded"] += size
        elif isinstance(action, StoreAction):
            yield from self.scratchpad.read(action.address, size, tag)
            yield from self._write_home(action.buffer)
            self.moved["stored"] += size

    def _run(self, run: RunAction) -> Iterator[str]:
        schedule = self.plan.schedule
        if run.turn != self.turn:
            yield f"it is the turn of {self.turn}"
        self.turn += 1
        turn = schedule.turns[run.turn]
        staging = turn.staging
        for access, place in zip(turn.accesses, run.addresses, strict=True):
            if place is None:
                staging += access.staging
                size = schedule.sizes[access.buffer]
                self.moved["streamed"] += size if access.streamed is None else access.streamed
                if access.pinned:
                    yield f"{schedule.names[access.buffer]} is streamed, and has to be resident"
        if run.staging != staging:
            yield f"staging is of {run.staging} bytes, and the turn needs {staging}"
        yield from self._apart(run, staging)
        if staging:
            yield from self.scratchpad.write(run.area, staging, None)
        for access, place in zip(turn.accesses, run.addresses, strict=True):
            if self.version[access.buffer]:
                yield from self._read(access.buffer, place)
            elif not access.writes:
                yield f"{schedule.names[access.buffer]} has not been written"
        for access, place in zip(turn.accesses, run.addresses, strict=True):
            if access.writes:
                yield from self._write(access.buffer, place)

    def _apart(self, run: RunAction, staging: int) -> Iterator[str]:
        """Refuse places of one turn that overlap, unless one buffer may be written over the other."""
        schedule = self.plan.schedule
        turn = schedule.turns[run.turn]
        may = {*turn.may_overwrite, *((read, written) for written, read in turn.may_overwrite)}
        spans = {"scratchpad": [(run.area, run.area + staging, -1)], "arena": []}
        for access, place in zip(turn.accesses, run.addresses, strict=True):
            at = self.plan.homes[access.buffer] if place is None else place
            if at is not None:
                end = at + schedule.sizes[access.buffer]
                spans["arena" if place is None else "scratchpad"].append((at, end, access.buffer))
        names = {-1: "staging", **dict(enumerate(schedule.names))}
        for memory, found in spans.items():
            for (a, b, one), (c, d, other) in combinations(found, 2):
                allowed = a == c and (one, other) in may
                if a < d and c < b and not allowed:
                    yield f"{names[one]} and {names[other]} overlap in the {memory}"

    def _read(self, buffer: int, place: int | None) -> Iterator[str]:
        if place is None:
            yield from self._read_home(buffer)
        else:
            size = self.plan.schedule.sizes[buffer]
            yield from self._named(buffer, self.scratchpad.read(place, size, self._tag(buffer)))

    def _write(self, buffer: int, place: int | None) -> Iterator[str]:
        if place is None:
            yield from self._write_home(buffer, new=True)
            return
        self.version[buffer] += 1
        size = self.plan.schedule.sizes[buffer]
        yield from self._named(buffer, self.scratchpad.write(place, size, self._tag(buffer)))

    def _read_home(self, buffer: int) -> Iterator[str]:
        home, size = self.plan.homes[buffer], self.plan.schedule.sizes[buffer]
        if home is not None:
            yield from self._named(buffer, self.system.read(home, size, self._tag(buffer)))
        elif self.callers.get(buffer) != self._tag(buffer):
            yield f"{self.plan.schedule.names[buffer]} is not in system memory"

    def _write_home(self, buffer: int, new: bool | None = None) -> Iterator[str]:
        """Write what the buffer holds to its home; something new, or an input's first content."""
        if new or not self.version[buffer]:
            self.version[buffer] += 1
        schedule, home = self.plan.schedule, self.plan.homes[buffer]
        if home is not None:
            yield from self._named(
                buffer, self.system.write(home, schedule.sizes[buffer], self._tag(buffer))
            )
        elif not self.plan.counts_boundary and buffer in schedule.inputs | schedule.outputs:
            self.callers[buffer] = self._tag(buffer)
        else:
            yield f"{schedule.names[buffer]} has no home in system memory"

    def _tag(self, buffer: int) -> Tag:
        return buffer, self.version[buffer]

    def _named(self, buffer: int, complaints: Iterator[str]) -> Iterator[str]:
        for complaint in complaints:
            yield f"{self.plan.schedule.names[buffer]}: {complaint}"

    def _told(self, action: Action) -> str:
        schedule = self.plan.schedule
        if isinstance(action, RunAction):
            return f"run {schedule.turns[action.turn].name}"
        return f"{type(action).__name__.lower()} {schedule.names[action.buffer]}"


def objections(plan: ScratchpadPlan) -> Sequence[str]:
    """Return all that is wrong with a plan, a sentence each; nothing where it does what it says."""
    return list(_Replay(plan).complaints())


def check(plan: ScratchpadPlan) -> None:
    """Raise InputError, which names the action, where a plan does not do what it says.

    Refused are data that is not there or is stale, places of one turn that overlap, bytes outside
    the scratchpad or the arena, turns left out or out of order, and bytes moved that the plan counts
    otherwise.
    """
    if found := objections(plan):
        raise InputError(f"levels: {found[0]}")
