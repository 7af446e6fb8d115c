"""The steps of a program: their calls in the order of the memory plan, and the arena they work in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from byoc.errors import InputError, shorten_text
from byoc.memory.arena import ArenaPlan, ArenaStep, plan_buffers
from byoc.memory.reading import MemoryModel, read_memory_model
from byoc.model import describe_node
from byoc.numerics import round_up
from byoc.standalone._integer_calls import find_integer_nodes
from byoc.standalone._integer_kernels import IN_PLACE, INTEGER_KERNELS, make_integer_call
from byoc.standalone._kernel_calls import make_kernel_call
from byoc.standalone._node_calls import (
    DECODER_FILE,
    DECODER_KERNELS,
    EmittedFunctions,
    FusedNodes,
    NodeFunctions,
    find_fused_nodes,
)
from byoc.standalone._program_graph import CONVENTION, Call, ProgramGraph, UnsupportedNodeError
from byoc.standalone._proof import Proof
from byoc.standalone._small_types import CONVERSION_FILE, CONVERSION_KERNELS, make_conversion_call

ALIGNMENT = 64  # bytes: a cache line, and the longest vector
_MOST_CHARACTERS = 200  # of attributes in a sentence
_KERNEL_FILES = ("kernels.h", "kernels.c", "windows.c", "rows.c", "digest.c")
_INTEGER_FILES = ("rounding.h", "integers.c", "int_windows.c")


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """A step: what it is called in comments, its call or its region, and the offset of its scratch."""

    title: str
    call: Call | None
    region: int | None
    nodes: tuple[int, ...]
    scratch: int


@dataclass(frozen=True, eq=False)
class ProgramSteps:
    """The steps of a program in order, the functions that they call, proven, and the arena's plan."""

    steps: tuple[ProgramStep, ...]
    functions: EmittedFunctions | None
    memory: MemoryModel
    plan: ArenaPlan
    proof: Proof

    @property
    def kernel_files(self) -> tuple[str, ...]:
        """The files of the folder `source` with the kernels that steps call."""
        called = {step.call.function for step in self.steps if step.call}
        integers = _INTEGER_FILES if called & INTEGER_KERNELS else ()
        conversions = (CONVERSION_FILE,) if called & CONVERSION_KERNELS else ()
        decoders = (DECODER_FILE,) if called & DECODER_KERNELS else ()
        return (*_KERNEL_FILES, *integers, *decoders, *conversions)

    def find_offset(self, tensor: str) -> int | None:
        """Return the offset of a tensor in the arena, None for a tensor known before a run."""
        row = self.memory.buffers_of.get(tensor)
        return None if row is None else self.plan.offsets[row[0]]


def plan_steps(graph: ProgramGraph, prefix: str = "") -> ProgramSteps:
    """Choose a function for each step, and plan the arena.

    Names of functions that are emitted for it begin with `prefix`. Raises InputError that names all
    nodes without a function, or with one that is proven wrong, one a line.
    """
    integers = {each.nodes: each.call for each in find_integer_nodes(graph)}
    taken = {number for nodes in integers for number in nodes}
    fused = {each.nodes: each for each in find_fused_nodes(graph) if taken.isdisjoint(each.nodes)}
    fused = {nodes: each for nodes, each in fused.items() if make_kernel_call(graph, each)}
    groups = [*integers, *fused]
    memory = read_memory_model(graph.index, CONVENTION, ALIGNMENT, groups, graph.source)
    functions = NodeFunctions(tuple(graph.index.proto.opset_import), prefix)
    calls, numbers = _choose_calls(graph, memory, fused, integers, functions)
    emitted = functions.emit() if functions.kinds else None
    proof = Proof({}, 0) if emitted is None else functions.prove(emitted)
    _require_right(graph, memory, numbers, proof)
    for step, number in numbers.items():
        assert emitted is not None
        calls[step] = emitted.make_call(graph, memory.nodes[step][0], number)
    in_place = {
        step for step, number in numbers.items() if emitted is not None and number in emitted.one_pass
    }
    changed = [
        _adapt_step(graph, step, memory.nodes[number], calls[number], number in in_place)
        for number, step in enumerate(memory.problem.steps)
    ]
    plan = plan_buffers(replace(memory.problem, steps=tuple(changed)))
    regions = {name: number for number, name in enumerate(graph.regions)}
    steps = []
    for number in plan.order:
        nodes = memory.nodes[number]
        first = graph.index.nodes[nodes[0]]
        region = regions[first.op_type] if graph.is_region(nodes[0]) else None
        title = " + ".join(describe_node(graph.index.nodes[node]) for node in nodes)
        steps.append(ProgramStep(title, calls[number], region, nodes, plan.scratch[number]))
    return ProgramSteps(tuple(steps), emitted, memory, plan, proof)


def _require_right(
    graph: ProgramGraph, memory: MemoryModel, numbers: Mapping[int, int], proof: Proof
) -> None:
    """Raise InputError that names the first node of each function that is proven wrong."""
    first: dict[int, int] = {}
    for step, number in numbers.items():
        first.setdefault(number, memory.nodes[step][0])
    wrong = []
    for number, problem in proof.wrong.items():
        node = graph.index.nodes[first[number]]
        stated = ", ".join(
            f"{name} {value}" for name, value in sorted(graph.index.get_attributes(node).items())
        )
        with_these = f", with {shorten_text(stated, _MOST_CHARACTERS)}," if stated else ""
        wrong.append(
            f"{graph.source}: {describe_node(node)}{with_these} has no function in C: that of "
            f"emx-onnx-cgen is wrong: {problem}"
        )
    if wrong:
        raise InputError(*wrong)


def _choose_calls(
    graph: ProgramGraph,
    memory: MemoryModel,
    fused: Mapping[tuple[int, ...], FusedNodes],
    integers: Mapping[tuple[int, ...], Call],
    functions: NodeFunctions,
) -> tuple[list[Call | None], dict[int, int]]:
    """Return the calls of kernels by step, and the numbers of functions of all other host steps."""
    calls: list[Call | None] = []
    numbers: dict[int, int] = {}
    refused = []
    for step, nodes in enumerate(memory.nodes):
        call = integers.get(nodes)
        if call is None and not graph.is_region(nodes[0]):
            try:
                call = make_kernel_call(graph, fused.get(nodes, FusedNodes(nodes)))
                if call is None and len(nodes) == 1:
                    node = graph.index.nodes[nodes[0]]
                    call = make_integer_call(graph, node) or make_conversion_call(graph, node)
                if call is None:
                    numbers[step] = functions.add(graph, nodes[0])
            except UnsupportedNodeError as error:
                title = describe_node(graph.index.nodes[nodes[0]])
                refused.append(f"{graph.source}: {title} has no function in C: {error}")
        calls.append(call)
    if refused:
        raise InputError(*refused)
    return calls, numbers


def _adapt_step(
    graph: ProgramGraph, step: ArenaStep, nodes: Sequence[int], call: Call | None, one_pass: bool
) -> ArenaStep:
    """Add the scratch of a call; let it write over an operand only where its function can do that.

    It can where it writes in one pass, and its operands are of one type: where types differ, C lets a
    compiler read and write in another order. Kernels of bytes that can do it are `IN_PLACE`.
    """
    if call is not None and call.function in IN_PLACE:
        return step
    node = graph.index.nodes[nodes[-1]]
    result = graph.get_dtype(node.output[0]) if one_pass else ""
    same = one_pass and all(graph.get_dtype(name) == result for name in node.input if name)
    scratch = round_up(call.scratch, ALIGNMENT) if call else 0
    return replace(step, may_overwrite=step.may_overwrite if same else (), scratch=scratch)
