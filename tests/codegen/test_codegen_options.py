"""Options: text to the fields of a dataclass, and everything that is wrong with it said at once."""

from dataclasses import dataclass
from typing import Literal

import pytest

from byoc.codegen import CompileError, read_options, written_options


@dataclass(frozen=True)
class Options:
    threads: int = 1
    speed: Literal["low", "high"] = "low"
    ratio: float = 0.5
    fuse: bool = True
    name: str = "npu"

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ValueError(f"threads is {self.threads}, but must be at least 0")


def test_text_becomes_what_the_fields_are() -> None:
    given = {"threads": "4", "speed": "high", "ratio": "1e-3", "fuse": "No", "name": "b"}

    assert read_options(Options, given) == Options(4, "high", 0.001, False, "b")
    assert read_options(Options, {}) == Options()


def test_what_is_written_is_read_again() -> None:
    options = Options(7, "high", 0.25, False, "a b")

    assert read_options(Options, written_options(options)) == options


def test_everything_wrong_is_said_at_once() -> None:
    given = {"thread": "4", "threads": "many", "speed": "mid", "ratio": "half", "fuse": "perhaps"}

    with pytest.raises(CompileError) as caught:
        read_options(Options, given)

    assert str(caught.value) == (
        "there is no option 'thread' (did you mean threads?); "
        "there are threads, speed, ratio, fuse, name; "
        "the option threads is 'many', not a whole number; "
        "the option speed is 'mid', not one of low, high; "
        "the option ratio is 'half', not a number; "
        "the option fuse is 'perhaps', not true or false"
    )


def test_what_the_class_refuses_is_an_error_of_the_user() -> None:
    with pytest.raises(CompileError, match=r"^options: threads is -1, but must be at least 0$"):
        read_options(Options, {"threads": "-1"})


def test_a_class_without_fields_has_no_options() -> None:
    @dataclass(frozen=True)
    class Nothing:
        pass

    assert read_options(Nothing, {}) == Nothing()
    with pytest.raises(CompileError, match="there is no option 'fast'; there are none"):
        read_options(Nothing, {"fast": "1"})
