"""Stages in chains: each reads what those before it made, and no state is a bag of everything."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import pytest
from helpers.cutting import CHAIN, cut
from helpers.support import VANILLA, parse

import byoc
from byoc.errors import InputError
from byoc.pipeline import (
    PLANNING,
    PREPARATION,
    Chain,
    Each,
    Request,
    Resolved,
    Stage,
    list_emission,
    watch_stages,
)

MOST_FIELDS = 15


def list_kinds() -> list[type]:
    """Return the kinds of states and their parts: all classes of the module that has `Request`."""
    kinds = vars(sys.modules[Request.__module__]).values()
    return [each for each in kinds if isinstance(each, type) and each.__module__ == Request.__module__]


def test_no_state_and_no_part_has_more_than_15_fields() -> None:
    kinds = list_kinds()
    assert {Request, Resolved} < set(kinds)
    assert {each.__name__: len(fields(each)) for each in kinds if len(fields(each)) > MOST_FIELDS} == {}


def test_no_field_of_a_state_is_unchecked() -> None:
    types = {f"{kind.__name__}.{each.name}": each.type for kind in list_kinds() for each in fields(kind)}
    assert [name for name, said in types.items() if said == "Any"] == []


def list_ends(stages: Sequence[Stage[Any, Any]]) -> list[tuple[type, type]]:
    """Return the kinds of state that stages take and return, those of a variant for joint ones."""
    ends = []
    for stage in stages:
        read, made = get_type_hints(type(stage).run).values()
        ends.append((find_kind(read), find_kind(made)))
    return ends


def find_kind(hint: Any) -> type:
    if isinstance(hint, TypeVar):
        assert isinstance(hint.__bound__, type)
        return hint.__bound__
    found = get_args(hint)[0] if get_origin(hint) else hint
    assert isinstance(found, type)
    return found


def test_each_stage_takes_what_the_one_before_makes_and_makes_more() -> None:
    ends = list_ends([*PREPARATION, *PLANNING])
    assert ends[0][0] is Request
    for (_, made), (read, _) in pairwise(ends):
        assert issubclass(made, read), (made, read)
    emission = [*list_emission()]
    assert [type(stage).__name__ for stage in emission][-2:] == ["EstimateGains", "Pack"]
    # EstimateGains takes every state with a plan, and returns the same kind.
    ends = [each for each in list_ends(emission) if each[0] is not each[1]]
    for (_, made), (read, _) in pairwise(ends):
        assert made is read


def test_stages_are_watched_in_order_one_variant_after_the_other(tmp_path: Path) -> None:
    each = [type(stage).__name__ for stage in (*PREPARATION, *PLANNING, *list_emission())]
    seen: list[tuple[str, ...]] = []

    def watch(stage: Stage[Any, Any], made: Any) -> None:
        states = made if isinstance(made, list) else [made]
        if type(stage).__name__ in each:
            seen.append((type(stage).__name__, *(state.request.variant.name for state in states)))

    model = parse("g (float[n, 8] x) => (float[n, 8] y) { y = Relu(x) }")
    variants = {"one": {"n": 1}, "two": {"n": 2}}
    with watch_stages(watch):
        byoc.partition(model, VANILLA, output=tmp_path / "b", variants=variants, pad=False)
    expected: list[tuple[str, ...]] = [("Resolve", "one", "two")]
    for own in (each[1:4], each[4:11]):
        expected += [(name, variant) for variant in variants for name in own]
    for name in each[11:]:
        joint = name in {"Compile", "FindPadding", "Pack"}
        expected += [(name, *variants)] if joint else [(name, variant) for variant in variants]
    assert seen == expected
    cut(parse(CHAIN))
    assert seen == expected, "nobody watches any more"


def test_the_error_of_one_variant_has_its_name_once() -> None:
    class Fail:
        def run(self, state: Resolved) -> Resolved:
            raise InputError("no")

    class KeptError(InputError):
        pass

    class FailOtherwise:
        def run(self, state: Resolved) -> Resolved:
            raise KeptError("no")

    request = Request(parse(CHAIN), byoc.Options(VANILLA, variants={"a": {}}))
    (state,) = PREPARATION.stages[0].run(request)
    with pytest.raises(InputError, match=r"^variant a: no$"):
        Each(Chain.of(Fail())).run([state])
    with pytest.raises(KeptError, match=r"^no$"):
        Each(FailOtherwise()).run([state])
