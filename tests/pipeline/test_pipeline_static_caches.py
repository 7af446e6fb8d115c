"""Variants whose caches have one length: planned, verified, run with state, or refused in a sentence."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse

import byoc
from byoc.errors import InputError

DECODER = """g (int64[1, n] ids, float[1, 2, past, 4] past_key)
    => (float[1, n, 6] logits, float[1, 2, total, 4] present_key)
    <float[6, 8] table, float[8, 6] head, float[8] w, int64[4] split = {1, -1, 2, 4},
     int64[3] join = {1, -1, 8}, int64[1] unit = {1}, int64 zero = {0},
     int64 one = {1}, float far = {-1e30}> {
    x = Gather(table, ids)
    v = LayerNormalization(x, w)
    h = Reshape(v, split)
    q = Transpose <perm = [0, 2, 1, 3]> (h)
    present_key = Concat <axis = 2> (past_key, q)
    t = Transpose <perm = [0, 1, 3, 2]> (present_key)
    s = MatMul(q, t)
    b = Shape <start = 2, end = 3> (past_key)
    e = Shape <start = 2, end = 3> (present_key)
    m = Squeeze(e)
    j = Range(zero, m, one)
    o = Shape <start = 1, end = 2> (ids)
    c = Squeeze(o)
    i = Range(zero, c, one)
    k = Add(i, b)
    r = Unsqueeze(k, unit)
    l = LessOrEqual(j, r)
    a = Where(l, s, far)
    p = Softmax(a)
    z = MatMul(p, present_key)
    y = Transpose <perm = [0, 2, 1, 3]> (z)
    f = Reshape(y, join)
    logits = MatMul(f, head)
}"""
RULES = "target: npu\ncost_model: openvino-cpu\ndtype: any\ncodegen: reference\nops: [{op: '*'}]\n"
STARTS = {"n": 4, "past": 0}
STEPS = {"n": 1, "past": 16}


@pytest.fixture
def model() -> Any:
    text = DECODER
    generator = np.random.default_rng(5)
    for name, shape in {"table": (6, 8), "head": (8, 6), "w": (8,)}.items():
        numbers = ", ".join(f"{x:.3f}" for x in generator.normal(size=shape).ravel())
        declared = f"float[{', '.join(map(str, shape))}] {name}"
        text = text.replace(f"{declared},", f"{declared} = {{{numbers}}},")
    return parse(text, opset=18)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "npu.yaml"
    path.write_text(RULES, encoding="utf-8")
    return path


def test_a_sequence_is_that_of_the_model(model: Any, rules: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.byoc"
    variants = {"starts": STARTS, "steps": STEPS}
    result = byoc.partition(model, rules, variants=variants, static_cache=True, output=output)
    notes = [note.text for note in result.variants[1].report.notes]
    assert any("caches have a fixed length: past 0 to 15" in each for each in notes), notes
    assert {error.name for error in result.variants[1].verification.outputs} >= {"logits, padded"}
    session = byoc.load(output)
    assert session.inputs == ("ids", "past_key")
    stateful = byoc.open_stateful(session)
    whole = np.random.default_rng(1).integers(0, 6, (1, 16))
    plain = byoc.load(byoc_of(model, rules, tmp_path))
    expected = plain({"ids": whole, "past_key": np.zeros((1, 2, 0, 4), np.float32)})["logits"]
    for _ in range(2):
        found = [stateful({"ids": whole[:, :4]})["logits"]]
        found += [stateful({"ids": whole[:, n : n + 1]})["logits"] for n in range(4, 16)]
        np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=1e-4, atol=1e-5)
        assert stateful.state["past_key"].shape == (1, 2, 16, 4)
        with pytest.raises(InputError, match=r"steps \(n=1, past=16\): past is 16, and may be 0 to 15$"):
            stateful({"ids": whole[:, :1]})
        stateful.reset()
    with pytest.raises(InputError, match=r"^missing input 'ids'; the model's inputs: ids, past_key$"):
        session({"past_key": np.zeros((1, 2, 3, 4), np.float32)})
    given = {"ids": whole[:, :1], "past_key": np.zeros((1, 2, 3, 4), np.float32)}
    with pytest.raises(InputError, match=r"past=16\): input 'cache_mask' is made here, leave it out$"):
        session({**given, "cache_mask": np.ones(16, bool)})


def test_a_device_keeps_what_a_variant_writes(
    model: Any, rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A codegen whose device keeps states: they cross when another variant takes over, or asks."""
    variants = {"starts": STARTS, "steps": STEPS, "long": {"n": 1, "past": 24}}
    byoc.partition(
        model,
        rules,
        variants=variants,
        static_cache=True,
        output=tmp_path / "m.byoc",
        strategy="all-supported",
    )
    whole = np.random.default_rng(2).integers(0, 6, (1, 20))
    parts = [whole[:, start:stop] for start, stop in [(0, 4), *((n, n + 1) for n in range(4, 20))]]
    plain = byoc.open_stateful(byoc.load(tmp_path / "m.byoc"))
    expected = [plain({"ids": part})["logits"] for part in parts]
    assert plain.on_device == set()
    monkeypatch.setattr("byoc.codegen._region.RegionSession.allocate", allocate, raising=False)
    kept = byoc.open_stateful(byoc.load(tmp_path / "m.byoc"))
    for _ in range(2):
        Held.resets = 0
        for number, (part, logits) in enumerate(zip(parts, expected, strict=True)):
            np.testing.assert_array_equal(kept({"ids": part})["logits"], logits)
            assert kept.on_device == ({"past_key"} if number else set())
        assert Held.resets == 2  # as the second and the third variant begin
        np.testing.assert_array_equal(kept.state["past_key"], plain.state["past_key"])
        assert kept.state["past_key"].shape == (1, 2, 20, 4)
        kept.reset()


def test_a_variant_that_fails_leaves_the_state_where_it_was(
    model: Any, rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that would have taken the state over may be repeated: it lies on the other's device."""
    variants = {"steps": STEPS, "long": {"n": 1, "past": 24}}
    path = tmp_path / "m.byoc"
    strategy = "all-supported"
    byoc.partition(model, rules, variants=variants, static_cache=True, output=path, strategy=strategy)
    monkeypatch.setattr("byoc.codegen._region.RegionSession.allocate", allocate, raising=False)
    kept, failed = (byoc.open_stateful(byoc.load(path)) for _ in range(2))
    for number in range(STEPS["past"] + 2):
        given = {"ids": np.full((1, 1), number % 6)}
        if number == STEPS["past"]:
            assert failed.on_device
            with monkeypatch.context() as patch, pytest.raises(InputError, match="lost"):
                patch.setattr(Held, "step", fail)
                failed(given)
        np.testing.assert_array_equal(failed(given)["logits"], kept(given)["logits"])
    np.testing.assert_array_equal(failed.state["past_key"], kept.state["past_key"])


def fail(held: Any, inputs: Any) -> Any:
    raise RuntimeError("lost")


def allocate(run: Any, pairs: Any) -> "Held":
    return Held(run, pairs)


class Held:
    """States on a device that is none: arrays which nobody else sees."""

    resets = 0

    def __init__(self, run: Any, pairs: Any) -> None:
        self.run, self.pairs, self.kept = run, pairs, {}

    def reset(self, values: Any) -> None:
        Held.resets += 1
        self.kept = {name: np.array(value) for name, value in values.items()}

    def step(self, inputs: Any) -> Any:
        made = dict(self.run({**inputs, **self.kept}))
        self.kept = {past: made.pop(present) for past, present in self.pairs.items()}
        return made

    def read(self) -> Any:
        return {name: np.array(value) for name, value in self.kept.items()}


def byoc_of(model: Any, rules: Path, folder: Path) -> Path:
    """Write a bundle with open dimensions, and return its path."""
    byoc.partition(model, rules, output=folder / "open.byoc", verify=False)
    return folder / "open.byoc"


def test_a_prompt_begins_with_what_whole_pieces_leave(model: Any, rules: Path, tmp_path: Path) -> None:
    """The first piece may be padded; the last ones behind a past would be read token by token."""
    output = tmp_path / "m.byoc"
    variants = {"starts": STARTS, "more": {"n": 4, "past": 16}, "steps": STEPS}
    byoc.partition(model, rules, variants=variants, static_cache=True, output=output, verify=False)
    session = byoc.load(output)
    tokens = np.random.default_rng(4).integers(0, 6, (1, 11))
    found = {}
    for size in (1, 11):
        stateful, trace = byoc.open_stateful(session), byoc.Trace()
        pieces = [tokens[:, start : start + size] for start in range(0, 11, size)]
        found[size] = np.concatenate([stateful.run({"ids": p}, trace)["logits"] for p in pieces], 1)
    np.testing.assert_allclose(found[11], found[1], rtol=1e-4, atol=1e-5)
    calls = [event.variant for event in trace.events]
    assert [calls[0], *{*calls[1:]}] == ["starts", "more"]


# As torch's newer exporter calls lengths: each cache has one of its own, and the mask has one.
SEVERAL = DECODER.replace(
    "float[1, 2, past, 4] past_key)",
    "bool[1, s53] mask, float[1, 2, past, 4] past_key, float[1, 2, s98, 4] past_value)",
)
SEVERAL = SEVERAL.replace(
    "total, 4] present_key)", "total, 4] present_key, float[1, 2, w, 4] present_value)"
)
SEVERAL = SEVERAL.replace(
    "t = Trans", "present_value = Concat <axis = 2> (past_value, q)\n    t = Trans"
)
SEVERAL = SEVERAL.replace("a = Where(l,", "u = And(l, mask)\n    a = Where(u,")
SEVERAL = SEVERAL.replace("z = MatMul(p, present_key)", "z = MatMul(p, present_value)")


@pytest.mark.parametrize("said", [{}, {"s98": 16}, {"s53": "past + n"}], ids=["once", "twice", "a sum"])
def test_lengths_that_an_exporter_names_apart_are_one(
    said: dict[str, Any], model: Any, rules: Path, tmp_path: Path
) -> None:
    """The caches' by the tokens that both get, and the mask's by the operators that it meets."""
    several = parse(SEVERAL, opset=18)
    del several.graph.initializer[:]
    several.graph.initializer.extend(model.graph.initializer)
    given = {name: size for name, size in said.items() if name == "s98"}
    variants = {"starts": {**STARTS, **dict.fromkeys(given, 0)}, "steps": {**STEPS, **given}}
    dims = {name: size for name, size in said.items() if name not in given}
    output = tmp_path / "m.byoc"
    byoc.partition(several, rules, variants=variants, dims=dims, static_cache=True, output=output)
    stateful = byoc.open_stateful(byoc.load(output))
    plain = byoc.open_stateful(byoc.load(byoc_of(several, rules, tmp_path)))
    past = 0
    for count in (3, 1, 1):
        past += count
        inputs = {"ids": np.arange(count)[None], "mask": np.ones((1, past), bool)}
        found, expected = stateful(inputs)["logits"], plain(inputs)["logits"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        InputError, match=r"^variant steps: s98 is 9 and past is 16, but both are the le"
    ):
        twice = {"steps": {**STEPS, "s98": 9}}
        byoc.partition(several, rules, variants=twice, static_cache=True, output=output)


@pytest.mark.parametrize(
    ("variants", "reason"),
    [
        (None, "--static-cache is for variants"),
        ({"steps": {"n": 1}}, "the variant does not say how long they are: past=LENGTH"),
        ({"steps": {"n": 4, "past": 4}}, "caches of 4 rows have no room for 4 new ones and a past"),
        ({"starts": STARTS}, "--static-cache: no variant has a past, so no cache gets a fixed length"),
    ],
)
def test_what_cannot_be_is_refused(variants: Any, reason: str, model: Any, rules: Path) -> None:
    start = "^variant steps: a model in memory: its caches cannot have a fixed length: "
    with pytest.raises(InputError, match=(start if variants and "steps" in variants else "^") + reason):
        byoc.partition(model, rules, variants=variants, static_cache=True)


def test_sequences_of_a_batch_have_one_length_and_keep_apart(
    model: Any, rules: Path, tmp_path: Path
) -> None:
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "b"
    for each in model.graph.initializer:
        if each.name in {"split", "join"}:  # the batch stays as it is
            each.CopyFrom(onnx.numpy_helper.from_array(keep_batch(each), each.name))
    output = tmp_path / "m.byoc"
    variants = {"chunk": {"n": 4, "past": 16}, "steps": STEPS}
    byoc.partition(model, rules, variants=variants, dims={"b": 3}, static_cache=True, output=output)
    stateful = byoc.open_stateful(byoc.load(output))
    whole = np.random.default_rng(2).integers(0, 6, (3, 16))
    plain = byoc.load(byoc_of(model, rules, tmp_path))
    expected = plain({"ids": whole, "past_key": np.zeros((3, 2, 0, 4), np.float32)})["logits"]
    found = [stateful({"ids": whole[:, n : n + 4]})["logits"] for n in (0, 4, 8)]
    found += [stateful({"ids": whole[:, n : n + 1]})["logits"] for n in range(12, 16)]
    np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=1e-4, atol=1e-5)


def keep_batch(shape: onnx.TensorProto) -> Any:
    """Return the extents of a Reshape with the first as it is in the data."""
    extents = onnx.numpy_helper.to_array(shape).copy()
    extents[0] = 0
    return extents
