"""What of a model needs bytes, and what shares them."""

import onnx
import pytest
from helpers.support import parse, prepared

from byoc.errors import InputError
from byoc.memory.reading import CONVENTIONS, MemoryModel, read_memory_model, read_row_model
from byoc.model import find_state_pairs, prepare_model
from byoc.zoo import load_model

BLOCK = """g (float[1, 4, 6, 6] x, float[4, 4, 1, 1] w) => (float[1, 144] y) {
    a = Conv(x, w)
    b = Relu(a)
    c = Conv(b, w)
    d = Add(c, b)
    y = Flatten(d)
}"""
BYTES = 4 * 6 * 6 * 4


def _read(text: str, convention: str = "C", alignment: int = 1, opset: int = 17) -> MemoryModel:
    return read_memory_model(prepared(text, opset=opset).index, CONVENTIONS[convention], alignment)


def _steps(model: MemoryModel) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Return each step with the names of what it reads, makes, and may write over."""
    problem = model.problem
    return [
        (
            step.name,
            [problem.names[b] for b in step.reads],
            [problem.names[b] for b in step.writes],
            [problem.names[b] for b in step.may_overwrite],
        )
        for step in problem.steps
    ]


def test_convention_a_counts_what_is_made_and_shares_nothing() -> None:
    model = _read(BLOCK, "A")

    assert _steps(model) == [
        ("a", [], ["a"], []),
        ("b", ["a"], ["b"], []),
        ("c", ["b"], ["c"], []),
        ("d", ["c", "b"], ["d"], []),
        ("y", ["d"], ["y"], []),
    ]
    assert model.problem.sizes == (BYTES,) * 5
    assert not model.problem.inputs
    assert [model.problem.names[b] for b in model.problem.outputs] == ["y"]


def test_convention_b_counts_inputs_too() -> None:
    model = _read(BLOCK, "B")

    assert [model.problem.names[b] for b in sorted(model.problem.inputs)] == ["x", "w"]
    assert _steps(model)[0] == ("a", ["x", "w"], ["a"], [])


def test_convention_c_shares_views_and_works_in_place() -> None:
    model = _read(BLOCK, "C")

    assert _steps(model) == [
        ("a", ["x", "w"], ["a"], []),
        ("b", ["a"], ["b"], ["a"]),
        ("c", ["b", "w"], ["c"], []),
        ("d", ["c", "b"], ["d"], ["c", "b"]),
    ]
    assert model.buffers_of["y"] == model.buffers_of["d"]
    assert [model.problem.names[b] for b in model.problem.outputs] == ["d"]
    assert model.tensors_of[model.buffers_of["d"][0]] == ("d", "y")
    assert model.nodes == ((0,), (1,), (2,), (3,))


def test_sizes_are_rounded_up() -> None:
    text = "g (float[3] x) => (float[3] y) { y = Exp(x) }"

    assert _read(text, alignment=1).problem.sizes == (12, 12)
    assert _read(text, alignment=64).problem.sizes == (64, 64)
    with pytest.raises(ValueError, match="at least 1 byte"):
        _read(text, alignment=0)


def test_four_bits_are_half_a_byte() -> None:
    text = "g (int4[5] x) => (int4[5] y) { y = Identity(x) }"

    assert _read(text, "B", opset=21).problem.sizes == (3, 3)


def test_what_is_known_before_it_runs_is_no_step() -> None:
    text = """g (float[2, 6] x) => (float[3, 4] y) {
        four = Constant <value_ints = [4]> ()
        shape = Shape(x)
        last = Constant <value_ints = [1]> ()
        six = Gather(shape, last)
        half = Constant <value_ints = [2]> ()
        three = Div(six, half)
        both = Concat <axis = 0> (three, four)
        z = Reshape(x, both)
        y = Neg(z)
    }"""
    model = _read(text)

    assert _steps(model) == [("y", ["x"], ["y"], ["x"])]
    assert model.buffers_of["z"] == model.buffers_of["x"]


def test_a_reshape_to_a_shape_that_is_data_copies() -> None:
    text = """g (float[2, 6] x, int64[2] shape) => (float[N, M] y) {
        r = Reshape(x, shape)
        y = Reshape(r, fixed)
    }"""
    proto = parse(text.replace("float[N, M] y", "float[3, 4] y"))
    proto.graph.initializer.append(onnx.helper.make_tensor("fixed", 7, [2], [3, 4]))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("r", 1, [4, 3]))
    problem = read_memory_model(prepare_model(proto, "g").index, CONVENTIONS["C"]).problem

    assert [(step.name, step.may_overwrite) for step in problem.steps] == [("r", (0,))]


def test_dropout_is_a_view_where_it_does_not_train() -> None:
    still = "g (float[2] x) => (float[2] y) { y = Dropout(x) }"
    training = """g (float[2] x) => (float[2] y) {
        ratio = Constant <value_float = 0.5> ()
        on = Constant <value = bool {1}> ()
        y = Dropout(x, ratio, on)
    }"""

    assert not _read(still).problem.steps
    assert [name for name, *_ in _steps(_read(training))] == ["y"]


def test_an_optional_output_that_nobody_reads_is_not_made_and_any_other_is() -> None:
    text = """g (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) {
        y, where = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        one, other = Split <axis = 2> (x)
        z = Relu(one)
    }"""
    model = _read(text, "A")

    assert [(name, makes) for name, _, makes, _ in _steps(model)] == [
        ("y", ["y"]),
        ("one", ["one", "other"]),
        ("z", ["z"]),
    ]


@pytest.mark.parametrize(
    ("line", "over"),
    [
        ("y = Relu(x)", ["x"]),
        ("y = Add(x, s)", ["x"]),
        ("y = Add(x, x)", ["x"]),
        ("y = Softmax(x)", []),
        ("y = MatMul(x, x)", []),
        ("y = Transpose(x)", []),
        ("y = Cast <to = 6> (x)", ["x"]),
        ("y = Cast <to = 11> (x)", []),
        ("y = Where(c, x, s)", ["x"]),
        ("y = PRelu(x, s)", ["x"]),
    ],
)
def test_what_may_be_written_over(line: str, over: list[str]) -> None:
    text = f"g (float[4, 4] x, float[1] s, bool[4, 4] c) => (float[4, 4] y) {{ {line} }}"
    dtype = {"6": "int32", "11": "double"}.get(line.partition("to = ")[2][:2].strip(" >"), "float")
    model = _read(text.replace("=> (float", f"=> ({dtype}"))

    assert _steps(model)[0][3] == over


def test_an_output_is_not_written_over() -> None:
    model = _read("g (float[4] x) => (float[4] a, float[4] y) { a = Exp(x) y = Exp(a) }")

    assert [over for *_, over in _steps(model)] == [["x"], []]


CONCAT = """g (float[1, 2, 3] x) => (float[1, 5, 3] y) {
    a = Exp(x)
    b = Sin(x)
    one = Concat <axis = 1> (a, b)
    c = ReduceSum <keepdims = 1> (one, axis)
    two = Concat <axis = 1> (one, c)
    y = Neg(two)
}"""


def _concat(text: str, alignment: int = 1) -> MemoryModel:
    proto = parse(text)
    proto.graph.initializer.append(onnx.helper.make_tensor("axis", 7, [1], [1]))
    return read_memory_model(load_model(proto).index, CONVENTIONS["D"], alignment)


def test_concats_in_place_nest() -> None:
    model = _concat(CONCAT)
    names = model.problem.names

    assert [[names[b] for b in row] for row in model.problem.links] == [["a", "b", "c"]]
    assert [names[b] for b in model.buffers_of["one"]] == ["a", "b"]
    assert [step.name for step in model.problem.steps] == ["a", "b", "c", "y"]
    assert [names[b] for b in model.problem.steps[3].reads] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("what", "by"),
    [
        ("Concat <axis = 1> (a, b)", "Concat <axis = 1> (a, a)"),  # one buffer cannot be at two places
        ("Concat <axis = 1> (a, b)", "Concat <axis = 1> (a, fixed)"),  # a weight is not made
        ("float[1, 2, 3]", "float[2, 2, 3]"),  # pieces would not be one run of bytes
    ],
)
def test_a_concat_that_has_to_copy(what: str, by: str) -> None:
    text = """g (float[1, 2, 3] x) => (float[N, 4, 3] y) {
        a = Exp(x)
        b = Sin(x)
        y = Concat <axis = 1> (a, b)
    }"""
    proto = parse(text.replace(what, by))
    proto.graph.initializer.append(onnx.helper.make_tensor("fixed", 1, [1, 2, 3], [0.0] * 6))
    problem = read_memory_model(prepare_model(proto, "g").index, CONVENTIONS["D"]).problem

    assert not problem.links
    assert problem.steps[-1].name == "y"


def test_a_piece_that_ends_within_an_alignment_has_to_be_copied() -> None:
    assert _concat(CONCAT, 8).problem.links
    assert [len(row) for row in _concat(CONCAT, 16).problem.links] == [2]  # 24 + 24 bytes, then 12
    assert not _concat(CONCAT, 32).problem.links


def test_a_second_row_cannot_have_a_part_of_the_first() -> None:
    text = """g (float[1, 2] x) => (float[1, 4] y, float[1, 4] z) {
        a = Exp(x)
        b = Sin(x)
        c = Cos(x)
        y = Concat <axis = 1> (a, b)
        z = Concat <axis = 1> (b, c)
    }"""
    model = _read(text, "D")

    assert [[model.problem.names[b] for b in row] for row in model.problem.links] == [["a", "b"]]
    assert [step.name for step in model.problem.steps] == ["a", "b", "c", "z"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "g (float[N, 4] x) => (float[N, 4] y) { y = Exp(x) }",
            "test: 'x' is float32[N, 4]: an extent is not known, which --dim N=SIZE may settle",
        ),
        (
            "g (float[4] x) => (int64[1, K] y) { y = NonZero(x) }",
            "test: 'y' is int64[1, ?]: an extent is not known before the model runs, "
            "and no --dim NAME=SIZE settles it",
        ),
        ("g (string[4] x) => (string[4] y) { y = Identity(x) }", "test: 'x' holds strings"),
        (
            "g (float[4] x) => (float[1, 4] y) { s = SequenceConstruct(x) y = ConcatFromSequence "
            "<axis = 0, new_axis = 1> (s) }",
            "test: 's' is a sequence, whose bytes only a run can tell",
        ),
        (
            "g (float[4] x) => (float[4] y) { o = Optional(x) y = OptionalGetElement(o) }",
            "test: 'o' is an optional, whose bytes only a run can tell",
        ),
    ],
)
def test_what_cannot_be_counted(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        read_memory_model(prepared(text).index, source="test")

    assert str(error.value).startswith(said)


def test_a_default_of_an_input_counts_as_a_weight() -> None:
    proto = parse("g (float[4] x, float[4] w) => (float[4] y) { y = Add(x, w) }")
    proto.graph.initializer.append(onnx.helper.make_tensor("w", 1, [4], [0.0] * 4))
    problem = read_memory_model(prepare_model(proto, "g").index, CONVENTIONS["B"]).problem

    assert problem.names == ("x", "y")


def test_settled_extents_and_defaults_are_known_to_layers_that_go_by_rows() -> None:
    proto = parse("""g (float[1, 2, 4, 4] x, float[1] w) => (float[1, N, 4, 4] y) {
        shape = Shape <start = 2, end = 4> (x)
        front = Constant <value_ints = [1, 2]> ()
        whole = Concat <axis = 0> (front, shape)
        z = Expand(x, whole)
        y = Add(z, w)
    }""")
    proto.graph.initializer.append(onnx.helper.make_tensor("w", 1, [1], [1.0]))
    model = read_row_model(load_model(proto).index)

    assert model.inputs == ("x",)
    assert {tensor.name: (tensor.rows, tensor.row_bytes) for tensor in model.tensors} == {
        "x": (4, 32),
        "z": (4, 32),
        "y": (4, 32),
    }


def test_a_cache_that_is_updated_in_place_has_one_buffer() -> None:
    index = load_model("zoo:decoder_int4_decode").index
    state = find_state_pairs(index.proto)
    assert len(state) == 6
    apart = read_memory_model(index)
    for convention in CONVENTIONS.values():
        model = read_memory_model(index, convention, state=state)
        shares = convention.inputs and convention.in_place
        for pair in state:
            assert (model.buffers_of[pair.present] == model.buffers_of.get(pair.past)) is shares
            assert not shares or model.problem.outputs.issuperset(model.buffers_of[pair.past])
        told = "is made in the buffer of 'past_key_values.0.key' (and 5 more so)"
        assert any(told in note for note in model.notes) is shares
    kept = read_memory_model(index, state=state)
    saved = 6 * 2 * 256 * 32 * 4
    assert sum(apart.problem.sizes) - sum(kept.problem.sizes) == saved


def test_a_cache_that_is_made_anew_has_two_buffers() -> None:
    """One that grows does not fit its buffer, nor does what a Concat makes."""
    sizes = {"sequence_length": 1, "past_sequence_length": 16, "total_sequence_length": 17}
    for name in ("decoder_int4", "gpt2_cached"):
        batch = {"batch_size": 1} if name == "decoder_int4" else {}
        index = load_model(f"zoo:{name}", sizes | batch).index
        state = find_state_pairs(index.proto)
        model = read_memory_model(index, state=state)
        assert not any("is made in the buffer of" in note for note in model.notes)
        for pair in state:
            assert model.buffers_of[pair.present] != model.buffers_of[pair.past]
