"""Dataclasses whose methods are compiled when a class is first used, not when its module is imported.

`dataclasses.dataclass` compiles about five functions a class. A partitioning run defines 700 such
classes and uses half of them; compiling all took a fifth of its processor time. Here a class has
stand-ins for these functions. The first one that is used puts the standard library's decorator to
work, after which nothing differs from its outcome. Type checkers see the standard library's decorator.
"""

import dataclasses
from dataclasses import KW_ONLY, MISSING, Field, asdict, field, fields, is_dataclass, replace
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass

__all__ = [
    "KW_ONLY",
    "MISSING",
    "Field",
    "asdict",
    "dataclass",
    "field",
    "fields",
    "is_dataclass",
    "replace",
]

_ALWAYS = ("__init__", "__repr__", "__match_args__", "__dataclass_fields__", "__dataclass_params__")
_WHERE_FROZEN = ("__setattr__", "__delattr__")
_WHERE_COMPARED = ("__eq__", "__hash__")
_OF_ONE_CLASS = frozenset({"__dict__", "__weakref__", "__classcell__"})
_lock = RLock()  # two threads may be the first to use a class


class _Unfinished:
    """A class that `dataclasses.dataclass` has not seen yet, and the options for it."""

    def __init__(self, kind: type, options: dict[str, bool]) -> None:
        self.kind, self.options = kind, options
        # The compared ones are asked of instances that were unpickled, thus never saw `__init__`.
        names: tuple[str, ...] = _ALWAYS
        names += _WHERE_FROZEN if options.get("frozen") else ()
        names += _WHERE_COMPARED if options.get("eq", True) else ()
        self.stand_ins = {name: _StandIn(self, name) for name in names if name not in vars(kind)}
        for name, stand_in in self.stand_ins.items():
            setattr(kind, name, stand_in)

    def finish(self) -> None:
        """Make the class a dataclass.

        The standard library does so to a copy, whose attributes are then taken over one by one,
        `__init__` last: no other thread can make an instance of a class that is half finished.
        """
        with _lock:
            if not self.stand_ins:
                return
            own = {name: value for name, value in vars(self.kind).items() if name not in _OF_ONE_CLASS}
            plain = {name: value for name, value in own.items() if name not in self.stand_ins}
            copied = type(self.kind)(self.kind.__name__, self.kind.__bases__, plain)
            made = dict(vars(dataclasses.dataclass(**self.options)(copied)))
            if self.options.get("frozen"):
                made |= _make_frozen(self.kind, frozenset(made["__dataclass_fields__"]))
            fresh = {"__doc__", *self.stand_ins, *(made.keys() - own.keys())}
            fresh |= {name for name in own.keys() & made.keys() if isinstance(own[name], Field)}
            for name in sorted(fresh - _OF_ONE_CLASS, key=lambda name: name == "__init__"):
                setattr(self.kind, name, made[name])
            for name in own.keys() - made.keys():
                # A field without a default is no attribute of the class.
                delattr(self.kind, name)
            self.stand_ins = {}


def _make_frozen(kind: Any, names: frozenset[str]) -> dict[str, Any]:
    """Return methods that refuse to write to fields of a class; its copy's test for the copy."""

    def refuse(instance: object, name: str, action: str) -> None:
        if type(instance) is kind or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot {action} field {name!r}")

    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807 - its name in tracebacks
        refuse(self, name, "assign to")
        super(kind, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:  # noqa: N807 - its name in tracebacks
        refuse(self, name, "delete")
        super(kind, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


class _StandIn:
    """The attribute of an unfinished class: whoever asks for it gets the finished class's."""

    def __init__(self, unfinished: _Unfinished, name: str) -> None:
        self.unfinished, self.name = unfinished, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        self.unfinished.finish()
        # Of the class that has this stand-in, since `super()` asks for a base's.
        found = getattr(self.unfinished.kind, self.name)
        return found if instance is None or not hasattr(found, "__get__") else found.__get__(instance)


if not TYPE_CHECKING:

    def dataclass(kind=None, /, **options):
        """Do as `dataclasses.dataclass`, but later.

        At once where a stand-in could not notice the first use or would change the class: `slots` make
        another class than the decorated one, a class with an `__init__` of its own never asks for
        another, and Python itself takes `__hash__` from one with an `__eq__` of its own.
        """
        if kind is None:
            return lambda decorated: dataclass(decorated, **options)
        at_once = options.get("slots") or options.get("order") or not options.get("init", True)
        if at_once or {"__init__", "__eq__"} & vars(kind).keys():
            return dataclasses.dataclass(**options)(kind)
        _Unfinished(kind, options)
        return kind
