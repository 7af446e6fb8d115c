"""Limits on memory: constants and the largest arena of a region fit, whatever stays on the host."""

import onnx
import pytest
from accelerators import Files, everywhere, notes
from helpers.support import examples, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.model import GraphIndex
from byoc.pipeline import Result, partition

SLOW = "overhead: 1.0\n"
# Between a and e there are 1,000 numbers of 4 bytes, and the wide part holds three such tensors.
WIDE = """
wide (float[1000] x) => (float[1000] y) {
  a = Relu(x)
  b = Neg(a)
  c = Neg(b)
  d = Sub(c, a)
  e = Sub(d, b)
  f = Relu(e)
  y = Relu(f)
}
"""
OPS = ("Relu", "Neg", "Sub")


def placed(net: str, files: Files, memory: object, *ops: str, strategy: str = "launch-aware") -> Result:
    rules = files.rules("one", *(ops or OPS), more=f"limits: {{memory: {memory}}}\n")
    slow = files.costs("host", peak="1.0e+3", more=SLOW)
    return partition(parse(net), rules, strategy=strategy, host_cost_model=slow)


def device(result: Result) -> set[str]:
    return {name for name, where in everywhere(result).items() if where == "one"}


def least_arena(result: Result, nodes: list[int]) -> int:
    """Return the fewest bytes that a region of elementwise nodes needs, over all orders of its nodes.

    From first principles: what is to be read by the region, or behind it once it is made, is there; what
    is made lies over an operand that nobody needs any more.
    """
    index: GraphIndex = result.plan.root.index
    inside = frozenset(nodes)
    size = {name: kind.bytes or 0 for name, kind in index.types.items()}
    made = {name for node in nodes for name in index.nodes[node].output}
    read = {node: {n for n in index.reads[node] if not index.is_constant(n)} for node in nodes}
    leaves = {
        name
        for name in made
        if name in index.outputs or not inside.issuperset(index.consumers.get(name, ()))
    }

    def needed(names: set[str], left: frozenset[int]) -> set[str]:
        return {n for n in names if n in leaves or any(n in read[node] for node in left)}

    def peak(there: set[str], left: frozenset[int]) -> int:
        best = 0 if not left else 1 << 60
        for node in left:
            if any(name in made and name not in there for name in read[node]):
                continue
            after = needed(there, left - {node})
            dying = [name for name in read[node] - after if name not in leaves]
            (output,) = index.nodes[node].output
            over = any(size[name] == size[output] for name in dying)
            now = sum(size[name] for name in there) + (0 if over else size[output])
            best = min(best, max(now, peak(after | needed({output}, left - {node}), left - {node})))
        return best

    held = {name for node in nodes for name in read[node]} - made
    return peak(held, inside)


@pytest.mark.parametrize("strategy", ["launch-aware", "exact", "all-supported"])
def test_activations_count(strategy: str, files: Files) -> None:
    """d = Sub(c, a) while b is still to be read: three tensors at once."""
    everything = {"a", "b", "c", "d", "e", "f", "y"}
    fits = placed(WIDE, files, 12_000, strategy=strategy)
    assert device(fits) == everything
    use = {"used": 12_000, "limit": 12_000, "constants": 0, "activations": 12_000}
    assert fits.report.to_json()["memory"] == {"one": use}
    assert [region["memory"] for region in fits.report.to_json()["regions"]] == [use]
    less = placed(WIDE, files, 11_999, strategy=strategy)
    assert device(less)
    assert device(less) < everything
    reasons = {row.reason for row in less.report.host_reasons}
    assert any("for activations" in reason and "11999 bytes" in reason for reason in reasons)


def test_a_unit_that_does_not_fit_alone_says_so(files: Files) -> None:
    result = placed(
        "n (float[1000] x, float[1000] z) => (float[1000] y) { y = Sub(x, z) }", files, 7_999
    )
    assert [row.reason for row in result.report.host_reasons] == [
        "limits.memory: it needs 0 bytes for constants and 8000 bytes for activations, "
        "and one has 7999 bytes"
    ]


def test_extents_that_are_not_known_leave_the_constants(files: Files) -> None:
    result = placed("n (float[N] x) => (float[N] y) { y = Relu(x) }", files, 3)
    assert device(result) == {"y"}
    assert result.report.memory["one"].activations is None
    assert any(
        note.startswith("limits.memory holds for constants alone: ") and "--dim N=SIZE" in note
        for note in notes(result)
    )


def test_what_must_be_there_and_does_not_fit_is_an_error(files: Files) -> None:
    with pytest.raises(InputError) as caught:
        placed(WIDE, files, 11_999, "Relu", "Neg", "{op: Sub, level: must}")
    assert "has to be on an accelerator (level: must): limits.memory: one would need" in str(
        caught.value
    )


def test_constants_and_activations_share_the_memory(files: Files) -> None:
    weights = ", ".join(["1.0"] * 1000)
    net = (
        f"n (float[1000] x) => (float[1000] y) <float[1000] w = {{{weights}}}, "
        f"float[1000] v = {{{weights}}}> {{ a = Mul(x, w)\n y = Add(a, v) }}"
    )
    fits = placed(net, files, 12_000, "Mul", "Add")
    assert device(fits) == {"a", "y"}
    assert fits.report.memory["one"].constants == 8_000
    assert fits.report.memory["one"].used == 12_000
    assert len(device(placed(net, files, 11_999, "Mul", "Add"))) == 1
    assert len(device(placed(net, files, 8_000, "Mul", "Add"))) == 1
    assert not device(placed(net, files, 7_999, "Mul", "Add"))


def test_bodies_count_with_the_main_graph(files: Files) -> None:
    """The branch holds 8 kB of constants, the main graph an arena of 8 kB."""
    weights = ", ".join(["1.0"] * 1000)
    net = f"""
    n (float[1000] x, float[1000] z, bool c) => (float[1000] y) {{
      a = Sub(x, z)
      y = If(c) <
        then_branch = g () => (float[1000] t) <float[1000] w = {{{weights}}}> {{ t = Mul(a, w) }},
        else_branch = h () => (float[1000] e) {{ e = Neg(a) }}
      >
    }}"""
    fits = placed(net, files, 12_000, "Sub", "Mul", "Neg")
    parts = {region.graph: region.memory for region in fits.report.regions}
    assert {path: (use.constants, use.activations) for path, use in parts.items() if use} == {
        "": (0, 8_000),
        "y/then_branch": (4_000, 4_000),
        "y/else_branch": (0, 4_000),
    }
    assert fits.report.memory["one"].used == 12_000  # the largest arena and all constants
    less = placed(net, files, 11_999, "Sub", "Mul", "Neg")
    assert [region.graph for region in less.report.regions] == [""]
    assert any("would hold" in note for note in notes(less))


def test_bodies_beside_a_sequence_leave_the_constants(files: Files) -> None:
    net = """
    n (float[1000] x, bool c) => (float[1000] y, int64 l) {
      s = SequenceConstruct(x, x)
      l = SequenceLength(s)
      a = Relu(x)
      y = If(c) <
        then_branch = g () => (float[1000] t) { t = Neg(a) },
        else_branch = h () => (float[1000] e) { e = Sub(a, x) }
      >
    }"""
    result = placed(net, files, 64_000)
    assert len(result.report.regions) == 3
    assert any("'s' is a sequence" in note for note in notes(result))


@st.composite
def nets(draw: st.DrawFn) -> onnx.ModelProto:
    """Return elementwise networks over vectors of one length, with skips."""
    names, lines = ["x"], []
    for number in range(draw(st.integers(1, 8))):
        one = draw(st.sampled_from(names[-3:]))
        other = draw(st.sampled_from(names[-4:]))
        op = draw(st.sampled_from(["Relu({0})", "Sub({0}, {1})", "Mul({0}, w)"]))
        names.append(f"t{number}")
        lines.append(f"t{number} = {op.format(one, other)}")
    body = "\n".join([*lines, f"y = Neg({names[-1]})"])
    return parse(
        f"r (float[10] x) => (float[10] y) <float[10] w = {{{', '.join(['1.0'] * 10)}}}> {{ {body} }}"
    )


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(net=nets(), memory=st.integers(0, 300))
def test_no_region_needs_more_than_there_is(net: onnx.ModelProto, memory: int, files: Files) -> None:
    rules = files.rules("one", "Relu", "Sub", "Mul", "Neg", more=f"limits: {{memory: {memory}}}\n")
    slow = files.costs("host", peak="1.0e+3", more=SLOW)
    result = partition(net, rules, host_cost_model=slow)
    index = result.plan.root.index
    regions = [region.nodes for region in result.plan.regions]
    constants = sum(40 for nodes in regions for node in nodes if "w" in index.reads[node])
    if regions:
        assert constants + max(least_arena(result, nodes) for nodes in regions) <= memory
