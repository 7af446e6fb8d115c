"""Dataclasses whose methods are made when a class is first used, not when its module is imported.

`dataclasses.dataclass` compiles up to six functions a class from text. A partitioning run defines 700
such classes and uses half of them; compiling all took a fifth of its processor time, and those that are
used an eighth. Here a class has stand-ins for these functions. The first one that is used makes them:
the standard library reads the fields, `__init__` is compiled, and the other functions are closures over
the names of the fields. Nothing differs from the standard library's outcome, whose decorator type
checkers see.
"""

import dataclasses
import inspect
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, Field, InitVar, asdict, field, fields, is_dataclass, replace
from operator import attrgetter
from reprlib import recursive_repr
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
            copied = self._copy_class(plain)
            without = {"init": False, "repr": False, "eq": False}
            if not any("__dataclass_fields__" in vars(base) for base in self.kind.__mro__[1:]):
                without["frozen"] = False  # else it has to be as in the bases
            copied.__doc__ = (
                self.kind.__doc__ or "Else the library would write one from a base's `__init__`."
            )
            made = dict(vars(dataclasses.dataclass(**{**self.options, **without})(copied)))
            if any(map(_is_seldom, made["__dataclass_fields__"].values())):
                made = dict(vars(dataclasses.dataclass(**self.options)(self._copy_class(plain))))
                if self.options.get("frozen"):
                    made |= _make_frozen(self.kind, frozenset(each.name for each in fields(copied)))
            else:
                made |= self._make_functions(fields(copied))
            made["__doc__"] = self.kind.__doc__ or _describe(self.kind.__name__, made["__init__"])
            for name in ("init", "repr", "eq", "frozen"):  # which those of derived classes look at
                setattr(made["__dataclass_params__"], name, self.options.get(name, name != "frozen"))
            fresh = {"__doc__", *self.stand_ins, *(made.keys() - own.keys())}
            fresh |= {name for name in own.keys() & made.keys() if isinstance(own[name], Field)}
            for name in sorted(fresh - _OF_ONE_CLASS, key=lambda name: name == "__init__"):
                setattr(self.kind, name, made[name])
            for name in own.keys() - made.keys():
                # A field without a default is no attribute of the class.
                delattr(self.kind, name)
            self.stand_ins = {}

    def _copy_class(self, values: dict[str, Any]) -> Any:
        return type(self.kind)(self.kind.__name__, self.kind.__bases__, values)

    def _make_functions(self, every: tuple[Field[Any], ...]) -> dict[str, Any]:
        """Return the functions of the finished class, by name, but for those that it has of its own."""
        frozen, compared = self.options.get("frozen", False), self.options.get("eq", True)
        made: dict[str, Any] = {"__init__": _make_init(self.kind, every, frozen)}
        made["__repr__"] = _make_repr(tuple(each.name for each in every if each.repr))
        if frozen:
            made |= _make_frozen(self.kind, frozenset(each.name for each in every))
        if compared:
            made["__eq__"] = _make_equal(tuple(each.name for each in every if each.compare))
            hashed = (each.compare if each.hash is None else each.hash for each in every)
            names = tuple(each.name for each, is_hashed in zip(every, hashed, strict=True) if is_hashed)
            made["__hash__"] = _make_hash(names) if frozen else None
        return {name: value for name, value in made.items() if name in self.stand_ins}


def _is_seldom(each: Field[Any]) -> bool:
    """Return whether `_make_init` lacks a field: one for `__post_init__` alone, or named `self`."""
    kind = each.type
    named = isinstance(kind, str) and "InitVar" in kind
    return named or kind is InitVar or isinstance(kind, InitVar) or each.name == "self"


class _Omitted:
    """The default of a parameter whose field has a `default_factory`, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


def _make_init(kind: type, every: tuple[Field[Any], ...], frozen: bool) -> Any:
    """Compile the `__init__` of a class. Raises TypeError for a field without a default behind one with.

    What it needs besides has names that begin with two underscores, as no field has.
    """
    lines, values, annotations = [], dict[str, Any](__omitted=_Omitted(), __set=object.__setattr__), {}
    positional, by_keyword, optional = list[str](), list[str](), False
    for number, each in enumerate(every):
        default, value = "", each.name
        if each.default is not MISSING:
            default, values[f"__{number}"] = f"=__{number}", each.default
        elif each.default_factory is not MISSING:
            default, values[f"__{number}"] = "=__omitted", each.default_factory
            value = (
                f"__{number}() if {each.name} is __omitted else {each.name}"
                if each.init
                else f"__{number}()"
            )
        elif optional and each.init and not each.kw_only:
            raise TypeError(f"non-default argument {each.name!r} follows default argument")
        if each.init:
            (by_keyword if each.kw_only else positional).append(f"{each.name}{default}")
            optional = optional or bool(default and not each.kw_only)
            annotations[each.name] = each.type
        elif each.default_factory is MISSING:
            continue  # the class has the default, or something else sets it
        lines.append(f"__set(self, {each.name!r}, {value})" if frozen else f"self.{each.name} = {value}")
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join(["self", *positional, *["*"] * bool(by_keyword), *by_keyword])
    body = "\n  ".join(lines or ["pass"])
    made: dict[str, Any] = {}
    text = f"def make({', '.join(values)}):\n def __init__({parameters}):\n  {body}\n return __init__"
    around = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    # As the standard library does it: a call by name is as fast as any function's, and annotations that
    # are text can be looked up in the class's module.
    exec(text, around, made)  # noqa: S102
    init = made["make"](**values)
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    init.__module__ = kind.__module__
    init.__annotations__ = {**annotations, "return": None}
    return init


def _describe(name: str, init: Any) -> str:
    """Return the docstring of a class that states none: its name and signature."""
    signature = inspect.signature(init)
    shown = signature.replace(parameters=[*signature.parameters.values()][1:])
    return f"{name}{shown}".replace(" -> None", "")


def _make_repr(names: tuple[str, ...]) -> Any:
    @recursive_repr()
    def __repr__(self: object) -> str:  # noqa: N807 - its name in tracebacks
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__qualname__}({values})"

    return __repr__


def _get_values(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda each: tuple(getattr(each, name) for name in names)


def _make_equal(names: tuple[str, ...]) -> Any:
    values = _get_values(names)

    def __eq__(self: object, other: object) -> bool:  # noqa: N807 - its name in tracebacks
        if type(other) is type(self):
            return values(self) == values(other)
        return NotImplemented

    return __eq__


def _make_hash(names: tuple[str, ...]) -> Any:
    values = _get_values(names)

    def __hash__(self: object) -> int:  # noqa: N807 - its name in tracebacks
        return hash(values(self))

    return __hash__


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
        another, and Python itself takes `__hash__` from one with an `__eq__` of its own. What is seldom
        asked for is left to the standard library, too, and so is a class that may not be frozen.
        """
        if kind is None:
            return lambda decorated: dataclass(decorated, **options)
        at_once = options.keys() - {"frozen", "eq", "kw_only"}
        if at_once or {"__init__", "__eq__", "__setattr__", "__delattr__"} & vars(kind).keys():
            return dataclasses.dataclass(**options)(kind)
        _Unfinished(kind, options)
        return kind
