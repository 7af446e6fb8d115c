"""A sequence that begins as what the state holds is read behind that, and its tokens are the same."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import cut
from helpers.support import examples, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import byoc
from byoc.errors import InputError

DECODER = "zoo:decoder_fp16"
RULES = "target: npu\ncost_model: openvino-cpu\ndtype: any\nops: [{op: '*'}]\n"
VARIANTS = {
    "prefill": {"sequence_length": 8, "past_sequence_length": 0, "total_sequence_length": 8},
    "more": {"sequence_length": 8, "past_sequence_length": 32, "total_sequence_length": 32},
    "decode": {"sequence_length": 1, "past_sequence_length": 32, "total_sequence_length": 32},
}
QUICK: dict[str, Any] = {"verify": False, "what_if": False}
LAST = 24
"""The most tokens of a sequence here."""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """A decoder by `reference` with open lengths, and by `dla` in variants."""
    folder = tmp_path_factory.mktemp("resume")
    (folder / "npu.yaml").write_text(RULES, encoding="utf-8")
    options = {"strategy": "all-supported", **QUICK}
    byoc.partition(DECODER, folder / "npu.yaml", codegen="reference", output=folder / "open", **options)
    variants = {name: {**dims, "batch_size": 1} for name, dims in VARIANTS.items()}
    byoc.partition(DECODER, "dla", output=folder / "variants", variants=variants, **options)
    return {name: byoc.load(folder / name) for name in ("open", "variants")}


@pytest.fixture(params=["growing, reference", "of a maximal length, reference", "of variants, dla"])
def begin(request: pytest.FixtureRequest, bundles: Mapping[str, Any]) -> Callable[[], Any]:
    """What begins a sequence, with each kind of state."""
    if request.param == "of variants, dla":
        return lambda: byoc.open_stateful(bundles["variants"])
    most = 32 if request.param.startswith("of") else None
    return lambda: byoc.open_stateful(bundles["open"], max_length=most)


def name_inputs(tokens: Sequence[Sequence[int]], before: int = 0) -> dict[str, NDArray[Any]]:
    """Return the inputs of a call on tokens behind others."""
    ids = np.array(tokens, np.int64)
    rows, count = ids.shape
    places = np.tile(np.arange(before, before + count), (rows, 1))
    mask = np.ones((rows, before + count), np.int64)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": places}


def assert_as_anew(found: NDArray[Any], begin: Callable[[], Any], tokens: Sequence[int]) -> None:
    """Hold the logits of a sequence's last tokens to those of a session that begins with it."""
    expected = begin()(name_inputs([tokens]))["logits"][:, -found.shape[1] :]
    error = np.abs(found.astype(np.float64) - expected).max()
    assert error < 5e-3 * np.ptp(expected), "float16 has 11 bits, and sums are in another order"


ACTIONS = st.one_of(
    st.tuples(
        st.just("resume"), st.integers(0, LAST - 8), st.lists(st.integers(0, 3), min_size=1, max_size=8)
    ),
    st.tuples(st.just("go on"), st.integers(0, 3)),
    st.tuples(st.just("truncate"), st.integers(0, LAST)),
    st.tuples(st.just("fork")),
    st.tuples(st.just("reorder")),
    st.tuples(st.just("reset")),
)


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(actions=st.lists(ACTIONS, min_size=2, max_size=8))
def test_a_resumed_sequence_is_that_of_a_session_that_begins_with_it(
    begin: Callable[[], Any], actions: list[tuple[Any, ...]]
) -> None:
    """Sequences of few tokens share beginnings by chance; what else changes a state comes in between."""
    session, held = begin(), [1, 2, 3]
    assert_as_anew(session.resume(name_inputs([held]))["logits"], begin, held)
    for kind, *values in actions:
        if kind == "resume":
            held = [*held[: values[0]], *values[1]]
            found = session.resume(name_inputs([held]))["logits"]
            assert found.shape[1] >= 1
            assert_as_anew(found, begin, held)
        elif kind == "go on" and 0 < len(held) < LAST:
            held = [*held, values[0]]
            found = session(name_inputs([held[-1:]], len(held) - 1))["logits"]
            assert_as_anew(found, begin, held)
        elif kind == "truncate":
            session.truncate(min(values[0], len(held)))
            held = held[: values[0]]
        elif kind == "fork":
            other, session = session, session.fork()
            other.resume(name_inputs([[9, 9]]))
        elif kind == "reorder" and held:
            session.reorder([0])
        elif kind == "reset":
            session.reset()
            held = []


def test_what_is_shared_is_not_read_again(begin: Callable[[], Any]) -> None:
    session, tokens = begin(), [*range(1, 17)]
    session.resume(name_inputs([tokens]))
    for other in ([*tokens, 5], [*tokens[:12], 7, 8, 9], tokens):
        shared = min(sum(a == b for a, b in zip(tokens, other, strict=False)), len(other) - 1)
        found = session.resume(name_inputs([other]))["logits"]
        assert found.shape[1] == len(other) - shared
        assert_as_anew(found, begin, other)
        tokens = other


ROWS = """
rows (int64[N, seq] ids, float[N, past, 2] old) => (float[N, seq, 2] y, float[N, total, 2] new)
  <float[10, 2] table = {TABLE}, int64[1] axes = {1}> {
  g = Gather (table, ids)
  new = Concat <axis = 1> (old, g)
  s = ReduceSum <keepdims = 1> (new, axes)
  y = Add (g, s)
}
""".replace("TABLE", ", ".join(str(value) for value in range(20)))


def test_each_row_takes_the_row_that_it_shares_most_with(tmp_path: Path) -> None:
    cut(parse(ROWS), tmp_path / "b", **QUICK)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"))
    session.resume({"ids": np.array([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])})
    rows = np.array([[2, 7, 1, 9, 9], [3, 1, 4, 9, 9], [3, 1, 4, 1, 6]])
    found = session.resume({"ids": rows})["y"]
    kept = np.arange(20, dtype=np.float32).reshape(10, 2)[rows]
    np.testing.assert_array_equal(found, (kept + kept.sum(1, keepdims=True))[:, 3:])


def test_where_an_operator_reads_no_tokens_behind_a_past_all_are_read(
    bundles: Mapping[str, Any],
) -> None:
    """onnxruntime's GroupQueryAttention takes several tokens of several rows without a past alone."""
    session = byoc.open_stateful(bundles["open"])
    rows = [[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]]
    for last in (5, 6):
        found = session.resume(name_inputs([[*row[:3], last, last] for row in rows]))["logits"]
        assert found.shape[:2] == (2, 5)
        for row, own in enumerate(rows):
            assert_as_anew(
                found[row : row + 1],
                lambda: byoc.open_stateful(bundles["open"]),
                [*own[:3], last, last],
            )


def test_another_mask_or_place_of_the_same_tokens_is_no_shared_beginning(
    bundles: Mapping[str, Any],
) -> None:
    session, tokens = byoc.open_stateful(bundles["open"]), [3, 1, 4, 1, 5]
    session.resume(name_inputs([tokens]))
    inputs = name_inputs([tokens])
    inputs["position_ids"] = inputs["position_ids"] + 1
    assert session.resume(inputs)["logits"].shape[1] == 5
    assert session.resume(name_inputs([tokens]))["logits"].shape[1] == 5
    assert session.resume(name_inputs([tokens]))["logits"].shape[1] == 1


def test_a_state_whose_tokens_are_not_known_is_read_anew(
    bundles: Mapping[str, Any], tmp_path: Path
) -> None:
    session, tokens = byoc.open_stateful(bundles["open"]), [3, 1, 4, 1, 5]
    session.resume(name_inputs([tokens]))
    session.reset(dict(session.state))
    assert session.resume(name_inputs([tokens]))["logits"].shape[1] == 5
    session.save(tmp_path / "state.npz")
    with pytest.raises(InputError):
        session(name_inputs([[]], 5))
    assert session.resume(name_inputs([tokens]))["logits"].shape[1] == 5, "a call failed"
    session.load(tmp_path / "state.npz")
    found = session.resume(name_inputs([tokens]))["logits"]
    assert_as_anew(found, lambda: byoc.open_stateful(bundles["open"]), tokens)


LOOKING_AHEAD = """
ahead (int64[N, seq] ids, float[N, past, 2] old) => (float[N, seq, 2] y, float[N, total, 2] new)
  <float[6, 2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}> {
  g = Gather (table, ids)
  m = ReduceMean <axes = [1], keepdims = 1> (g)
  y = Add (g, m)
  new = Concat <axis = 1> (old, y)
}
"""


def test_where_a_token_depends_on_those_behind_it_all_are_read(tmp_path: Path) -> None:
    cut(parse(LOOKING_AHEAD), tmp_path / "b", **QUICK)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"))
    for tokens in ([1, 2, 3], [1, 2, 3, 4]):
        found = session.resume({"ids": np.array([tokens])})["y"]
        rows = np.arange(12, dtype=np.float32).reshape(6, 2)[tokens]
        np.testing.assert_allclose(found[0], rows + rows.mean(0), rtol=1e-6)


@pytest.mark.parametrize("pool", ["ReduceMean", "ReduceMax", "ReduceL2"])
def test_where_an_output_pools_over_the_tokens_of_a_call_all_are_read(pool: str, tmp_path: Path) -> None:
    text = LOOKING_AHEAD.replace("y = Add (g, m)", f"y = Identity (g) z = {pool} <axes = [1]> (g)")
    text = text.replace("m = ReduceMean <axes = [1], keepdims = 1> (g)", "")
    cut(parse(text.replace(" y, float", " y, float[N, 1, 2] z, float")), tmp_path / "b", **QUICK)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"))
    for tokens in ([1, 1, 3], [1, 1, 3, 4]):
        found = session.resume({"ids": np.array([tokens])})
        rows = np.arange(12, dtype=np.float32).reshape(6, 2)[tokens]
        pooled = {"ReduceMean": rows.mean(0), "ReduceMax": rows.max(0)}
        expected = pooled.get(pool, np.linalg.norm(rows, axis=0))
        np.testing.assert_allclose(found["z"][0, 0], expected, rtol=1e-6)
        np.testing.assert_array_equal(found["y"][0], rows)


NAMES = 'string[6] names = {"t0", "t1", "t2", "t3", "t4", "t5"}, float[6, 2] table'
MOST = "most = ReduceMax <axes = [1], keepdims = 0> (ids)"
OTHER_TYPES = {
    "texts": ("string[N] z", "z = Gather (names, most)"),
    "a sequence": ("seq(int64[N]) z", "z = SequenceConstruct (most)"),
}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_pooled_texts_and_sequences_are_compared_as_well(kind: str, tmp_path: Path) -> None:
    output, node = OTHER_TYPES[kind]
    text = LOOKING_AHEAD.replace("y = Add (g, m)", f"y = Identity (g) {node}")
    text = text.replace("m = ReduceMean <axes = [1], keepdims = 1> (g)", MOST)
    text = text.replace("float[6, 2] table", NAMES)
    cut(parse(text.replace(" y, float", f" y, {output}, float")), tmp_path / "b", **QUICK)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"))
    for tokens in ([5, 1, 3], [5, 1, 3, 4]):
        found = session.resume({"ids": np.array([tokens])})["z"]
        assert [str(each)[-1] for each in np.ravel(found)] == ["5"]


NUMBERED = """
numbered (int64[N, seq] ids, int64[seq] places, float[N, past, 2] old)
  => (float[N, seq, 2] y, float[N, total, 2] new)
  <float[6, 2] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, int64[1] behind = {1}> {
  g = Gather (table, ids)
  f = Cast <to = 1> (places)
  p = Unsqueeze (f, behind)
  y = Add (g, p)
  new = Concat <axis = 1> (old, y)
}
"""


def test_places_that_all_rows_share_are_of_tokens(tmp_path: Path) -> None:
    cut(parse(NUMBERED), tmp_path / "b", **QUICK)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"))
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    for tokens, new in (([1, 2, 3], 3), ([1, 2, 3, 4], 1)):
        places = np.arange(len(tokens))
        found = session.resume({"ids": np.array([tokens]), "places": places})["y"]
        np.testing.assert_array_equal(found[0], (table[tokens] + places[:, None])[-new:])


def test_inputs_that_do_not_show_their_tokens_are_one_sentence(
    bundles: Mapping[str, Any], tmp_path: Path
) -> None:
    session = byoc.open_stateful(bundles["open"])
    with pytest.raises(InputError) as caught:
        session.resume(name_inputs([[5]], 3))
    assert str(caught.value) == (
        "resume takes the inputs of all tokens of a sequence; their lengths: 'input_ids' 1, "
        "'attention_mask' 4, 'position_ids' 1"
    )
    no_rank = {**name_inputs([[5]]), "input_ids": np.array([5])}
    for inputs, said in (
        ([5], r"^resume takes inputs by name, not list$"),
        ({}, r"^missing input 'input_ids'"),
        (name_inputs([[]]), r"^input 'input_ids' is empty"),
        (no_rank, r"^input 'input_ids' is int64\[1\], the model takes"),
    ):
        session.resume(name_inputs([[1, 2, 3]]))
        with pytest.raises(InputError, match=said):
            session.resume(inputs)
    text = "sum (float[2, 3] x, float[2, 3] old) => (float[2, 3] new) { new = Add (x, old) }"
    cut(parse(text), tmp_path / "b", **QUICK)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"), {"old": "new"})
    with pytest.raises(InputError, match=r"^no input has an entry for each token along an open extent"):
        session.resume({"x": np.zeros((2, 3), np.float32)})


MASKED = """
masked (int64[1, seq] ids, float[1, total] attention_mask, float[1, past, 2] old)
  => (float[1, seq, 2] y, float[1, total, 2] new)
  <float[10, 2] table = {TABLE}, int64[1] one = {1}, float large = {1000000000.0}> {
  g = Gather (table, ids)
  new = Concat <axis = 1> (old, g)
  back = Transpose <perm = [0, 2, 1]> (new)
  scores = MatMul (g, back)
  extents = Shape (scores)
  ones = ConstantOfShape <value = float[1] {1.0}> (extents)
  before = Shape <start = 1, end = 2> (old)
  offset = Squeeze (before)
  causal = Trilu <upper = 0> (ones, offset)
  mask = Unsqueeze (attention_mask, one)
  allowed = Mul (causal, mask)
  missing = Sub (allowed, ones)
  low = Mul (missing, large)
  sum = Add (scores, low)
  weights = Softmax <axis = -1> (sum)
  y = MatMul (weights, new)
}
""".replace("TABLE", ", ".join(str(value / 10) for value in range(20)))


def test_a_row_behind_padding_is_the_row_alone(tmp_path: Path) -> None:
    """As the shorter rows of a batch, in pieces; what attends to no token here attends to all alike.

    That is no sign that tokens depend on those behind them.
    """
    lengths = ((3, 0), (1, 3), (2, 3), (1, 5))
    variants = {
        f"v{count}_{past}": {"seq": count, "past": past, "total": past + count}
        for count, past in lengths
    }
    cut(parse(MASKED, opset=18), tmp_path / "b", variants=variants, **QUICK)
    session = byoc.open_stateful(byoc.load(tmp_path / "b"), {"old": "new"})
    mask = np.ones((1, 6), np.float32)
    alone = session({"ids": np.array([[3, 1, 4, 2]]), "attention_mask": mask[:, :4]})["y"]
    session = byoc.open_stateful(byoc.load(tmp_path / "b"), {"old": "new"})
    mask[:, :2] = 0
    found = session({"ids": np.array([[0, 0, 3, 1, 4, 2]]), "attention_mask": mask})["y"]
    np.testing.assert_allclose(found[:, 2:], alone, rtol=1e-5)
