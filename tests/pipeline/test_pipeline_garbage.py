"""How often Python looks for cyclic garbage while byoc plans, and afterwards."""

import gc
import threading
from collections.abc import Iterator

import pytest

from byoc.support import collect_rarely


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_the_search_is_rarer_inside_and_as_before_afterwards() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(KeyError), collect_rarely():
        assert gc.get_threshold()[0] > 10_000
        with collect_rarely():
            assert gc.get_threshold()[0] > 10_000
        assert gc.get_threshold()[0] > 10_000
        raise KeyError
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("first", [0, 10_000_000])
def test_a_search_that_is_off_or_rarer_stays_so(first: int) -> None:
    gc.set_threshold(first, 10, 10)
    with collect_rarely():
        assert gc.get_threshold()[0] == first


def test_threads_may_overlap() -> None:
    gc.set_threshold(700, 10, 10)
    begun, may_end = threading.Event(), threading.Event()

    def plan() -> None:
        with collect_rarely():
            begun.set()
            may_end.wait()

    other = threading.Thread(target=plan)
    with collect_rarely():
        other.start()
        begun.wait()
    assert gc.get_threshold()[0] > 10_000
    may_end.set()
    other.join()
    assert gc.get_threshold() == (700, 10, 10)
