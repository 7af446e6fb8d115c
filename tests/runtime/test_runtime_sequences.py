"""Sequences are forked, cut back and reordered; a call that does not go on from a state is told so."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import cut
from helpers.support import parse
from numpy.typing import NDArray

import byoc
from byoc.errors import InputError

DECODER = "zoo:decoder_int4"
PROMPT = [3, 1, 4]
VARIANTS = {
    "prefill": {"sequence_length": 8, "past_sequence_length": 0, "total_sequence_length": 8},
    "decode": {"sequence_length": 1, "past_sequence_length": 32, "total_sequence_length": 32},
}
COUNTER = """
counter (float[2, 3] state, float[2, 3] x) => (float[2, 3] next, float[2, 3] y) {
  next = Add (state, x)
  y = Sigmoid (next)
}
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("decoder") / "b"
    cut(DECODER, path, verify=False)
    return byoc.load(path)


@pytest.fixture(scope="module")
def with_variants(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("variants") / "b"
    variants = {name: {**dims, "batch_size": 1} for name, dims in VARIANTS.items()}
    byoc.partition(
        DECODER, "dla", output=path, strategy="all-supported", verify=False, variants=variants
    )
    return byoc.load(path)


@pytest.fixture(scope="module")
def in_float16(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A decoder in float16, open and in variants: its activations are rounded to no integers."""
    folder = tmp_path_factory.mktemp("float16")
    variants = {name: {**dims, "batch_size": 1} for name, dims in VARIANTS.items()}
    cut("zoo:decoder_fp16", folder / "open", verify=False)
    cut("zoo:decoder_fp16", folder / "variants", verify=False, variants=variants)
    return byoc.load(folder / "open"), byoc.load(folder / "variants")


@pytest.fixture(params=["growing", "of a maximal length", "of variants, on the device"])
def begin(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """What begins a sequence, with each kind of state."""
    if request.param == "growing":
        session = request.getfixturevalue("loaded")
        return lambda: byoc.open_stateful(session)
    if request.param == "of a maximal length":
        session = request.getfixturevalue("loaded")
        return lambda: byoc.open_stateful(session, max_length=16)
    session = request.getfixturevalue("with_variants")
    return lambda: byoc.open_stateful(session)


def step(session: Any, tokens: Sequence[Sequence[int]], before: int) -> NDArray[Any]:
    """Return the logits behind the last of some tokens, a row for each row of them."""
    ids = np.array(tokens, np.int64)
    mask = np.ones((len(ids), before + ids.shape[1]), np.int64)
    found: NDArray[Any] = session({"input_ids": ids, "attention_mask": mask})["logits"][:, -1]
    return found


def run_anew(begin: Callable[[], Any], tokens: Sequence[int]) -> NDArray[Any]:
    """Return the logits behind tokens: a prompt, and one more in each call."""
    session = begin()
    found = step(session, [PROMPT], 0)
    for place, token in enumerate(tokens[len(PROMPT) :], len(PROMPT)):
        found = step(session, [[token]], place)
    return found


def test_a_fork_goes_on_by_itself(begin: Callable[[], Any]) -> None:
    session = begin()
    step(session, [PROMPT], 0)
    step(session, [[7]], 3)
    other = session.fork()
    for token in (5, 8):
        for each, own in ((session, [token]), (other, [token + 1])):
            np.testing.assert_allclose(
                step(each, [own], 4), run_anew(begin, [*PROMPT, 7, *own]), rtol=1e-4, atol=1e-5
            )
            each.truncate(4)


def test_a_saved_state_goes_on_in_another_session(begin: Callable[[], Any], tmp_path: Path) -> None:
    session = begin()
    step(session, [PROMPT], 0)
    session.save(tmp_path / "state.npz")
    other = begin()
    other.load(tmp_path / "state.npz")
    np.testing.assert_allclose(
        step(other, [[5]], 3), run_anew(begin, [*PROMPT, 5]), rtol=1e-4, atol=1e-5
    )


def test_what_cannot_be_saved_or_loaded(loaded: Any, tmp_path: Path) -> None:
    session = byoc.open_stateful(loaded)
    with pytest.raises(InputError, match=r"^there is no state to save: a call makes it$"):
        session.save(tmp_path / "state.npz")
    np.savez(tmp_path / "other.npz", state=np.zeros(3))
    with pytest.raises(InputError, match=r"other\.npz: input '.*' is missing: it is no state of"):
        session.load(tmp_path / "other.npz")
    step(session, [PROMPT], 0)
    cut_short = {name: value[..., :3] for name, value in session.state.items()}
    np.savez(tmp_path / "short.npz", **cut_short)
    with pytest.raises(InputError, match=r"short\.npz: input '.*' is float32\[1, 2, 3, 3\], the model"):
        session.load(tmp_path / "short.npz")


def test_what_is_taken_back_was_never_there(begin: Callable[[], Any]) -> None:
    session = begin()
    step(session, [PROMPT], 0)
    for place, token in enumerate([9, 2, 6], 3):
        step(session, [[token]], place)
    session.truncate(4)
    np.testing.assert_allclose(
        step(session, [[5]], 4), run_anew(begin, [*PROMPT, 9, 5]), rtol=1e-4, atol=1e-5
    )
    session.truncate(0)
    np.testing.assert_allclose(step(session, [PROMPT], 0), run_anew(begin, PROMPT), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [[2, 0, 0], [1], [0, 1, 2, 2, 1]])
def test_rows_are_those_that_were_chosen(rows: list[int], loaded: Any) -> None:
    """As of beams: each row goes on from the one that it was."""
    prompts = [[3, 1, 4], [1, 5, 9], [2, 6, 5]]
    session = byoc.open_stateful(loaded)
    step(session, prompts, 0)
    session.reorder(rows)
    tokens = [[8 + place] for place in range(len(rows))]
    found = step(session, tokens, 3)
    for place, row in enumerate(rows):
        alone = byoc.open_stateful(loaded)
        step(alone, [prompts[row]], 0)
        np.testing.assert_allclose(
            found[place], step(alone, [tokens[place]], 3)[0], rtol=1e-4, atol=1e-5
        )


def test_what_cannot_be_taken_back_or_reordered(loaded: Any, tmp_path: Path) -> None:
    session = byoc.open_stateful(loaded)
    session.truncate(0)  # nothing is there yet
    step(session, [PROMPT], 0)
    with pytest.raises(InputError, match=r"^a length of 4: the state has 3$"):
        session.truncate(4)
    with pytest.raises(InputError, match=r"^a length of -1: the state has 3$"):
        session.truncate(-1)
    with pytest.raises(InputError, match=r"^a length of 1\.5: the state has 3$"):
        session.truncate(1.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^no row 1: the state has 1$"):
        session.reorder([0, 1])
    with pytest.raises(InputError, match=r"^no row 0\.5: the state has 1$"):
        session.reorder([0.5])  # type: ignore[list-item]
    cut(parse(COUNTER), tmp_path / "b")
    counter = byoc.open_stateful(byoc.load(tmp_path / "b"), {"state": "next"})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    counter({"x": x})
    with pytest.raises(InputError, match=r"^input 'state' does not grow: a fork\(\) keeps what it was$"):
        counter.truncate(1)
    counter.reorder([1, 1])
    np.testing.assert_array_equal(counter.state["state"], x[[1, 1]])
    with pytest.raises(InputError, match=r"^input 'state' is float32\[1, 3\], the model takes float32"):
        counter.reorder([0])


def test_a_call_that_does_not_go_on_from_the_state_is_one_sentence(loaded: Any) -> None:
    session = byoc.open_stateful(loaded)
    step(session, [PROMPT, PROMPT], 0)
    with pytest.raises(InputError) as caught:
        step(session, [[5]], 3)
    assert str(caught.value) == (
        "input 'input_ids' has 1 along batch_size, the state 2: reset() begins another sequence, "
        "reorder(rows) changes the rows of this one"
    )
    session.reset()
    with pytest.raises(
        InputError, match=r"^input 'input_ids' is empty: a call takes at least one token$"
    ):
        step(session, [[]], 0)


def test_no_token_and_a_state_of_unequal_lengths_are_one_sentence(in_float16: tuple[Any, Any]) -> None:
    for session in map(byoc.open_stateful, in_float16):
        with pytest.raises(InputError, match=r"^input 'input_ids' is empty: a call takes at least one"):
            _ask(session, [], 0)
        session.reset()
        _ask(session, [1, 2, 3], 0)
        state = dict(session.state)
        name = next(iter(state))
        for own in ({**state, name: state[name][:, :, :2]}, {name: state[name]}):
            session.reset(own)
            with pytest.raises(
                InputError, match=r"^the state has \d along .*: reset\(\) takes values of o"
            ):
                _ask(session, [5], 3)


def test_a_mask_of_another_length_is_one_sentence(loaded: Any) -> None:
    session = byoc.open_stateful(loaded)
    step(session, [PROMPT], 0)
    with pytest.raises(InputError) as caught:
        step(session, [[5]], 5)
    assert str(caught.value) == (
        "input 'attention_mask' is 6 long: the state has 3 tokens and the call brings 1, "
        "so that it takes 4"
    )


def _ask(
    session: Any, tokens: Sequence[int], before: int, trace: byoc.Trace | None = None
) -> NDArray[Any]:
    """Return the logits of all tokens of a call."""
    mask = np.ones((1, before + len(tokens)), np.int64)
    places = np.arange(before, before + len(tokens))[None]
    inputs = {"input_ids": np.array([tokens]), "attention_mask": mask, "position_ids": places}
    found: NDArray[Any] = session.run(inputs, trace)["logits"]
    return found


def _assert_near(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.float64) - expected).max()
    assert error < 5e-3 * np.ptp(expected), "float16 has 11 bits, and sums are in another order"


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32])
def test_a_prompt_of_any_length_is_read_in_pieces(count: int, in_float16: tuple[Any, Any]) -> None:
    """The variants read 8 tokens without a past, and one behind at most 31."""
    whole, session = map(byoc.open_stateful, in_float16)
    tokens = np.random.default_rng(count).integers(0, 1000, count).tolist()
    trace = byoc.Trace()
    _assert_near(_ask(session, tokens, 0, trace), _ask(whole, tokens, 0))
    ran = {event.variant for event in trace.events}
    assert ran == ({"prefill"} if count <= 8 else {"prefill", "decode"})
    if count < 32:  # the sequence goes on as one that was read at once
        _assert_near(_ask(session, [5], count), _ask(whole, [5], count))


def test_a_second_prompt_is_read_behind_the_first(in_float16: tuple[Any, Any]) -> None:
    first, second = [3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
    whole, session = map(byoc.open_stateful, in_float16)
    for each in (session, whole):
        _ask(each, first, 0)
    _assert_near(_ask(session, second, 5), _ask(whole, second, 5))


def test_a_prompt_that_the_state_has_no_room_for_says_how_far_it_came(
    in_float16: tuple[Any, Any],
) -> None:
    session = byoc.open_stateful(in_float16[1])
    with pytest.raises(InputError, match=r"^after 32 of 33 tokens: no variant takes these inputs: "):
        _ask(session, [*range(33)], 0)


# What a call returns has no entry for each token, or one for each pair: the state shows what it can.
SUMMED = """summed (int64[1, seq] ids, float[1, past, 4] old) => (float[1, 4] y, float[1, total, 4] new)
  <int64[1] axes = {1}, float[6, 4] table = {TABLE}, float[4] kept = {0, 1, 1, 1}> {
  g = Gather (table, ids)
  MIXED
  new = Concat <axis = 1> (old, s)
  y = ReduceSum <keepdims = 0> (new, axes)
}"""
TABLE = ", ".join(str(value) for value in range(24))
ALONE = "s = Tanh (g)"
AHEAD = "m = ReduceMean <axes = [1], keepdims = 1> (g) s = Add (g, m)"
INFINITE = "k = Log (kept) s = Add (f, k)"  # -inf in one of four values, whatever the tokens are


def _cut_summed(
    mixed: str, folder: Path, lengths: Sequence[tuple[int, int]] = ((2, 0), (1, 2), (1, 3))
) -> Any:
    model = parse(SUMMED.replace("MIXED", mixed).replace("TABLE", TABLE))
    variants = {f"v{seq}_{past}": {"seq": seq, "past": past} for seq, past in lengths}
    folder.mkdir(exist_ok=True)
    cut(model, folder / "b", variants=variants)
    return byoc.open_stateful(byoc.load(folder / "b"), {"old": "new"})


def test_the_state_shows_that_a_prompt_can_be_read_in_pieces(tmp_path: Path) -> None:
    session = _cut_summed(ALONE, tmp_path)
    ids = np.array([[1, 4, 2, 5]])
    kept = np.tanh(np.arange(24, dtype=np.float32).reshape(6, 4)[ids])
    np.testing.assert_allclose(session({"ids": ids})["y"], kept.sum(1), rtol=1e-6)
    np.testing.assert_allclose(session.state["old"], kept, rtol=1e-6)


def test_infinite_values_do_not_hide_whether_a_prompt_can_be_read_in_pieces(tmp_path: Path) -> None:
    ids = np.array([[1, 4, 2, 5]])
    for number, mixed in enumerate((ALONE, AHEAD)):
        finite = mixed.replace("s = Tanh", "f = Tanh").replace("s = Add", "f = Add")
        session = _cut_summed(f"{finite} {INFINITE}", tmp_path / str(number))
        if mixed == AHEAD:
            with pytest.raises(InputError, match=r"depends on those behind it$"):
                session({"ids": ids})
        else:
            kept = np.tanh(np.arange(24, dtype=np.float32).reshape(6, 4)[ids]).sum(1)
            np.testing.assert_allclose(session({"ids": ids})["y"][:, 1:], kept[:, 1:], rtol=1e-6)


def test_the_state_shows_that_a_token_depends_on_those_behind_it(tmp_path: Path) -> None:
    session = _cut_summed(AHEAD, tmp_path)
    with pytest.raises(InputError, match=r"depends on those behind it$"):
        session({"ids": np.array([[1, 4, 2, 5]])})


# What a call of several tokens makes of its own alone; the last of them is right in pieces, too.
POOLED = {
    "sum": "y = ReduceSum <keepdims = 0> (s, axes)",
    "mean": "y = ReduceMean <axes = [1], keepdims = 0> (s)",
    "most": "y = ReduceMax <axes = [1], keepdims = 0> (s)",
    "attention": """sT = Transpose <perm = [0, 2, 1]> (s) w = MatMul (one, sT) p = Softmax <axis = 2> (w)
        z = MatMul (p, s) y = Squeeze (z, axes)""",
    "last": "y = Gather <axis = 1> (s, last)",
    "last and sum": """l = Gather <axis = 1> (s, last) b = ReduceSum <keepdims = 0> (new, axes)
        y = Add (l, b)""",
}


@pytest.mark.parametrize("kind", POOLED)
def test_an_output_of_all_tokens_of_a_call_is_not_that_of_the_last_piece(
    kind: str, tmp_path: Path
) -> None:
    text = SUMMED.replace("y = ReduceSum <keepdims = 0> (new, axes)", POOLED[kind])
    constants = "int64 last = {-1}, float[1, 1, 4] one = {1, 1, 1, 1}, int64[1] axes"
    text = text.replace("int64[1] axes", constants).replace("MIXED", ALONE).replace("TABLE", TABLE)
    variants = {f"v1_{past}": {"seq": 1, "past": past} for past in (1, 2, 3)}
    cut(parse(text), tmp_path / "b", variants={"v2_0": {"seq": 2, "past": 0}, **variants})
    session = byoc.open_stateful(byoc.load(tmp_path / "b"), {"old": "new"})
    for ids in (np.array([[4, 0, 2, 5]]), np.array([[1, 1, 1, 1]])):
        session.reset()
        if kind.startswith("last"):
            kept = np.tanh(np.arange(24, dtype=np.float32).reshape(6, 4)[ids])
            expected = kept[:, -1] + (kept.sum(1) if "sum" in kind else 0)
            np.testing.assert_allclose(session({"ids": ids})["y"], expected, rtol=1e-6)
            continue
        with pytest.raises(InputError, match=r"output 'y' is of all tokens of a call at once, as a sum"):
            session({"ids": ids})
        assert session({"ids": ids[:, :2]})["y"].any()


BUCKETS = {
    "a piece behind a past": [(4, 0), (4, 12), (1, 12)],
    "pieces of two lengths": [(2, 0), (4, 0), (2, 12), (4, 12), (1, 12)],
    "caches of two lengths": [(4, 0), (4, 8), (4, 12), (1, 12)],
    "no single token": [(2, 0), (2, 12)],
    "lengths that do not divide each other": [(5, 0), (3, 12), (2, 12), (1, 12)],
}


@pytest.mark.parametrize("case", BUCKETS)
def test_a_prompt_is_read_in_the_pieces_that_are_predicted_to_take_least(
    case: str, tmp_path: Path
) -> None:
    """Of all sequences of calls that the variants take, found by trying each size."""
    model = parse(SUMMED.replace("MIXED", ALONE).replace("TABLE", TABLE), opset=18)
    variants = {f"v{seq}_{past}": {"seq": seq, "past": past} for seq, past in BUCKETS[case]}
    cut(model, tmp_path / "b", variants=variants, static_cache=True)
    loaded = byoc.load(tmp_path / "b")
    seconds = {each.name: each.report.predicted.seconds for each in loaded.bundle.manifest.variants}

    @cache
    def find_least(past: int, left: int) -> float:
        found = [np.inf] if left else [0.0]
        for size in range(1, left + 1):
            state = np.zeros((1, past, 4), np.float32)
            try:
                taken = loaded.select({"ids": np.zeros((1, size), np.int64), "old": state})
            except InputError:
                continue
            found.append(seconds[taken.session.variant] + find_least(past + size, left - size))
        return min(found)

    session = byoc.open_stateful(loaded, {"old": "new"})
    for count in range(1, 14):
        ids = np.random.default_rng(count).integers(0, 6, (1, count))
        trace = byoc.Trace()
        session.reset()
        if find_least(0, count) == np.inf:
            with pytest.raises(InputError, match="no variant takes these inputs"):
                session.run({"ids": ids}, trace)
            continue
        found = session.run({"ids": ids}, trace)["y"]
        kept = np.tanh(np.arange(24, dtype=np.float32).reshape(6, 4)[ids])
        np.testing.assert_allclose(found, kept.sum(1), rtol=1e-5)
        first = {event.variant: event.name for event in reversed(trace.events)}  # a stage of each
        calls = [each.variant for each in trace.events if each.name == first[each.variant]]
        spent = sum(seconds[variant] for variant in calls)
        assert spent == pytest.approx(find_least(0, count)), count


def test_without_a_variant_of_two_tokens_nothing_shows_it(tmp_path: Path) -> None:
    session = _cut_summed(ALONE, tmp_path, [(1, 0), (1, 1), (1, 2)])
    with pytest.raises(InputError, match=r"give its tokens one by one$"):
        session({"ids": np.array([[1, 4, 2]])})


def test_an_output_for_each_pair_of_tokens_is_not_joined(tmp_path: Path) -> None:
    text = SUMMED.replace("float[1, 4] y", "float[1, seq, total] y").replace("MIXED", ALONE)
    text = text.replace(
        "y = ReduceSum <keepdims = 0> (new, axes)",
        "nt = Transpose <perm = [0, 2, 1]> (new) y = MatMul (s, nt)",
    )
    variants = {f"v{seq}_{past}": {"seq": seq, "past": past} for seq, past in ((2, 0), (1, 2), (1, 3))}
    cut(parse(text.replace("TABLE", TABLE)), tmp_path / "b", variants=variants)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"), {"old": "new"})
    with pytest.raises(InputError, match=r"^no variant takes these inputs: "):
        session({"ids": np.array([[1, 4, 2, 5]])})


# Each token's row is its own sum with those before it: an output of [1, seq, 4], of as many tokens in
# each variant.
EACH = """each (int64[1, seq] ids, float[1, past, 4] old) => (float[1, seq, 4] y, float[1, total, 4] new)
  <int64[1] axes = {1}, int64 one = {1}, float[6, 4] table = {TABLE}> {
  g = Gather (table, ids)
  s = Tanh (g)
  new = Concat <axis = 1> (old, s)
  before = ReduceSum <keepdims = 1> (old, axes)
  MIXED
  sums = CumSum (a, one)
  y = Add (sums, before)
}"""


def _cut_each(mixed: str, folder: Path, seq: int) -> Any:
    model = parse(EACH.replace("MIXED", mixed).replace("TABLE", TABLE), opset=18)
    variants = {f"past_{past}": {"seq": seq, "past": past} for past in (0, seq, 2 * seq)}
    cut(model, folder / "b", variants=variants)
    return byoc.open_stateful(byoc.load(folder / "b"), {"old": "new"})


@pytest.mark.parametrize("seq", [2, 3, 4])
def test_pieces_of_one_length_are_joined(seq: int, tmp_path: Path) -> None:
    """Extents of the output do not differ from variant to variant: what it makes shows its tokens.

    Of 4 tokens and 4 features either axis might have an entry for each token.
    """
    session = _cut_each("a = Identity (s)", tmp_path, seq)
    for pieces in (2, 3):
        ids = np.random.default_rng(pieces).integers(0, 6, (1, pieces * seq))
        kept = np.tanh(np.arange(24, dtype=np.float32).reshape(6, 4)[ids])
        session.reset()
        np.testing.assert_allclose(session({"ids": ids})["y"], kept.cumsum(1), rtol=1e-5)
        np.testing.assert_allclose(session.fork().state["old"], kept, rtol=1e-6)


@pytest.mark.parametrize("seq", [2, 3, 4])
def test_an_output_of_all_tokens_so_far_is_that_of_the_last_piece(seq: int, tmp_path: Path) -> None:
    text = EACH.replace("float[1, seq, 4] y", "float[1, total, 4] y").replace("TABLE", TABLE)
    text = text.replace("MIXED", "a = Identity (s)").replace(
        "y = Add (sums, before)", "y = CumSum (new, one)"
    )
    variants = {f"past_{past}": {"seq": seq, "past": past} for past in (0, seq, 2 * seq)}
    cut(parse(text, opset=18), tmp_path / "b", variants=variants)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"), {"old": "new"})
    ids = np.random.default_rng(seq).integers(0, 6, (1, 3 * seq))
    kept = np.tanh(np.arange(24, dtype=np.float32).reshape(6, 4)[ids])
    np.testing.assert_allclose(session({"ids": ids})["y"], kept.cumsum(1), rtol=1e-5)


def test_an_output_that_may_be_of_each_token_is_not_guessed(tmp_path: Path) -> None:
    """The state of a token depends on none behind it, but the output on all."""
    session = _cut_each("a = CumSum <reverse = 1> (s, one)", tmp_path, 3)
    with pytest.raises(InputError, match=r"whether output 'y' has an entry for each is not seen$"):
        session({"ids": np.array([[1, 4, 2, 5, 3, 0]])})
