"""Dataclasses that their first use finishes: nothing differs from those of the standard library."""

import copy
import dataclasses
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from importlib import import_module
from threading import Barrier, Thread
from typing import Any, ClassVar, get_type_hints

import pytest

import byoc
from byoc._dataclasses import dataclass

Count = int  # for an annotation that is text
OPTIONS = [
    {},
    {"frozen": True},
    {"eq": False},
    {"frozen": True, "eq": False},
    {"frozen": True, "kw_only": True},
    {"frozen": True, "order": True},
]
FIRST_USES: dict[str, Callable[[type], object]] = {
    "fields": lambda kind: [each.name for each in dataclasses.fields(kind)],
    "signature": lambda kind: str(inspect.signature(kind)),
    "match": lambda kind: kind.__match_args__,  # type: ignore[attr-defined]
    "instance": lambda kind: kind(size=2).size,
    "subclass": lambda kind: type("Sub", (kind,), {})(size=3).name,
    "hash": lambda kind: kind.__hash__ is None,
}


def make(options: dict[str, bool], decorator: Any) -> type:
    """Return a class with a method, a default, a made default and a base, decorated twice."""

    class Base:
        size: int
        name: str = "none"

        def double(self) -> int:
            return 2 * self.size

    decorated = decorator(**options)(Base)

    class Made(decorated):  # type: ignore[misc,valid-type]
        parts: list[int] = dataclasses.field(default_factory=list)
        quiet: int = dataclasses.field(default=1, repr=False, compare=False)
        fixed: int = dataclasses.field(default=2, init=False, hash=False)
        own: list[int] = dataclasses.field(default_factory=list, init=False)
        named: "Count" = dataclasses.field(default=3, kw_only=True)
        _private: int = 4
        shared: ClassVar[int]

        def __post_init__(self) -> None:
            self.own.append(self.size)

    Made.__qualname__ = "Made"
    return decorator(**options)(Made)  # type: ignore[no-any-return]


def describe(kind: type) -> dict[str, object]:
    """Return what users can see of a dataclass and of two equal instances."""
    one, other = kind(size=1), kind(size=1)

    def attempt(action: Callable[[], object]) -> object:
        try:
            return action()
        except Exception as error:
            return type(error).__name__

    return {
        "repr": repr(one),
        "own": one.own,
        "equal": one == other,
        "unequal": [one == kind(size=1, quiet=5), one == kind(size=1, named=5), one == 1],
        "hash": attempt(lambda: hash(one) == hash(other)),
        "order": attempt(lambda: one < other),  # type: ignore[operator]
        "set": attempt(lambda: setattr(one, "size", 3)),
        "delete": attempt(lambda: delattr(one, "size")),
        "replaced": dataclasses.replace(other, size=4).double(),
        "copied": copy.deepcopy(other).parts,
        "fields": [(each.name, each.type, each.kw_only) for each in dataclasses.fields(kind)],
        "signature": str(inspect.signature(kind)),
        "hints": get_type_hints(kind.__init__),  # type: ignore[misc]
        "doc": kind.__doc__,
        "match": kind.__match_args__,  # type: ignore[attr-defined]
        "positional": attempt(lambda: kind(1, "two").name),
        "names": sorted(set(vars(kind)) - {"__doc__", "__static_attributes__", "__firstlineno__"}),
    }


@pytest.mark.parametrize("first_use", FIRST_USES.values(), ids=FIRST_USES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_nothing_differs_from_the_standard_library(
    options: dict[str, bool], first_use: Callable[[type], object]
) -> None:
    late, plain = make(options, dataclass), make(options, dataclasses.dataclass)

    assert first_use(late) == first_use(plain)
    assert describe(late) == describe(plain)


@pytest.mark.parametrize("name", ["init", "repr", "match_args", "order"])
def test_a_function_that_is_not_wanted_is_not_made(name: str) -> None:
    def describe_plainly(decorator: Any) -> dict[str, object]:
        class Plain:
            size: int = 1

        kind = decorator(**{name: False})(Plain)
        found = {each: each in vars(kind) for each in ("__init__", "__repr__", "__match_args__")}
        return {**found, "size": kind().size}

    assert describe_plainly(dataclass) == describe_plainly(dataclasses.dataclass)


@pytest.mark.parametrize("frozen", [False, True], ids=["changeable", "frozen"])
def test_what_is_seldom_asked_for_is_as_in_the_standard_library(frozen: bool) -> None:
    """No text of an instance, fields for `__post_init__` alone, a field `self`, a setter of its own."""

    def show(decorator: Any) -> list[object]:
        @decorator(frozen=frozen, repr=False)
        class Quiet:
            size: int = 1

        @decorator(frozen=frozen)
        class Adding:
            size: int
            more: dataclasses.InitVar[int] = 3
            named: "dataclasses.InitVar[int]" = 4

            def __post_init__(self, more: int, named: int) -> None:
                object.__setattr__(self, "size", self.size + more + named)

        @decorator(frozen=frozen)
        class Derived(Adding):
            last: int = 5

        own = {"__annotations__": {"self": int, "size": int}}
        named = decorator(frozen=frozen)(type("Named", (), own))
        found: list[object] = [Quiet() == Quiet(1), "object at" in repr(Quiet()), Adding(1).size]
        found += [repr(Derived(1, 2, 3)), repr(Derived(1)), repr(named(1, 2))]
        found += [named(1, 2) == named(1, 2)]
        try:

            @decorator(frozen=frozen)
            class Setting:
                size: int

                def __setattr__(self, name: str, value: object) -> None:
                    object.__setattr__(self, name, 7)

            found.append(repr(Setting(1)))
        except TypeError as error:
            found.append(str(error))
        for each in (Derived(1), named(1, 2)):
            try:
                each.size = 9
                found.append(each.size)
            except dataclasses.FrozenInstanceError as error:
                found.append(str(error))
        return found

    assert show(dataclass) == show(dataclasses.dataclass)


@dataclass(frozen=True)
class Kept:
    """At the module's level, where pickle finds it."""

    size: int


@pytest.mark.parametrize(
    "use", [repr, hash, lambda kept: kept.__eq__(kept), lambda kept: setattr(kept, "size", 2)]
)
def test_an_unpickled_instance_is_finished_by_its_first_use(use: Callable[[object], object]) -> None:
    @dataclass(frozen=True)
    class Fresh:
        size: int

    expected, instance = Kept(1), object.__new__(Fresh)
    instance.__dict__.update(expected.__dict__)

    def outcome(kept: object) -> str:
        try:
            return repr(use(kept)).replace(type(kept).__qualname__, "")
        except dataclasses.FrozenInstanceError as error:
            return str(error)

    assert outcome(instance) == outcome(expected)
    assert pickle.loads(pickle.dumps(expected)) == expected  # noqa: S301 - our own bytes


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"eq": False}], ids=str)
def test_a_class_with_its_own_equality_is_hashed_as_there(options: dict[str, bool]) -> None:
    def make_equal(decorator: Any) -> type:
        class Named:  # noqa: PLW1641 - whether it is hashed is what is tested
            size: int

            def __eq__(self, other: object) -> bool:
                return True

        return decorator(**options)(Named)  # type: ignore[no-any-return]

    late, plain = make_equal(dataclass), make_equal(dataclasses.dataclass)

    assert (late.__hash__ is None) == (plain.__hash__ is None)
    assert late(1) == late(2)


def test_threads_that_use_a_class_at_once_finish_it_once() -> None:
    for _ in range(50):
        kind, made, barrier = make({"frozen": True}, dataclass), list[object](), Barrier(8)

        def use(kind: type = kind, made: list[object] = made, barrier: Barrier = barrier) -> None:
            barrier.wait()
            made.append(kind(size=5))

        threads = [Thread(target=use) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

        assert made == [kind(size=5)] * 8


def test_every_dataclass_of_byoc_can_be_finished() -> None:
    """A mistake that the standard library reports at once is found here, not by the first user."""
    modules = [
        import_module(each.name)
        for each in pkgutil.walk_packages(byoc.__path__, "byoc.")
        if not each.name.endswith("__main__")
    ]
    classes = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and "__dataclass_fields__" in vars(each)
    }

    assert len(classes) > 700
    for each in classes:
        assert isinstance(dataclasses.fields(each), tuple)
        assert type(vars(each)["__dataclass_fields__"]) is dict
