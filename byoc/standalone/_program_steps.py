"""The steps of a program: their calls in the order of the memory plan, and the arena they work in."""

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError, shorten_text
from byoc.memory.arena import ArenaPlan, ArenaStep, plan_buffers
from byoc.memory.reading import MemoryModel, read_memory_model
from byoc.model import describe_node, is_onnx
from byoc.numerics import round_up
from byoc.standalone._integer_calls import find_integer_nodes
from byoc.standalone._integer_kernels import (
    IN_PLACE,
    INTEGER_KERNELS,
    WIDE_KERNELS,
    make_integer_call,
)
from byoc.standalone._kernel_calls import (
    ELEMENTWISE,
    FUNCTION_FILE,
    FUNCTION_KERNELS,
    SHARED_KERNELS,
    make_kernel_call,
)
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
_WIDE_FILE = "wide_integers.c"


Guards = tuple[tuple[str, bool], ...]


@dataclass(frozen=True, eq=False)
class ProgramStep:
    """A step: what it is called in comments, its call or its region, and the offset of its scratch.

    `guards` are truths in the arena, the outer ones first, and what they have to be that it runs.
    """

    title: str
    call: Call | None
    region: int | None
    nodes: tuple[int, ...]
    scratch: int
    guards: Guards = ()


@dataclass(frozen=True, eq=False)
class ProgramSteps:
    """The steps of a program in order, the functions that they call, proven, and the arena's plan."""

    steps: tuple[ProgramStep, ...]
    functions: EmittedFunctions | None
    memory: MemoryModel
    plan: ArenaPlan
    proof: Proof
    threads: int = 1
    """How many compute the steps that are shared; each has scratch memory of its own."""
    overruled: tuple[int, ...] = ()
    """The nodes that compute what ONNX defines, while onnxruntime computes something else."""

    @property
    def kernel_files(self) -> tuple[str, ...]:
        """The files of the folder `source` with the kernels that steps call."""
        called = {step.call.function for step in self.steps if step.call}
        integers = _INTEGER_FILES if called & INTEGER_KERNELS else ()
        wide = (_WIDE_FILE,) if called & WIDE_KERNELS else ()
        conversions = (CONVERSION_FILE,) if called & CONVERSION_KERNELS else ()
        decoders = (DECODER_FILE,) if called & DECODER_KERNELS else ()
        functions = (FUNCTION_FILE,) if called & FUNCTION_KERNELS else ()
        return (*_KERNEL_FILES, *functions, *integers, *wide, *decoders, *conversions)

    def find_offset(self, tensor: str) -> int | None:
        """Return the offset of a tensor in the arena, None for a tensor known before a run."""
        row = self.memory.buffers_of.get(tensor)
        return None if row is None else self.plan.offsets[row[0]]


def plan_steps(graph: ProgramGraph, prefix: str = "", threads: int = 1) -> ProgramSteps:
    """Choose a function for each step, and plan the arena.

    Names of functions that are emitted for it begin with `prefix`, and kernels in `SHARED_KERNELS` are
    computed by so many threads. Raises InputError that names all
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
    for number, call in enumerate(calls):
        if call is not None and call.function in SHARED_KERNELS:
            changed[number] = replace(changed[number], scratch=changed[number].scratch * threads)
    guards = _find_guards(graph, memory)
    for number, given in guards.items():
        read = (*changed[number].reads, *(memory.buffers_of[name][0] for name, _ in given))
        changed[number] = replace(changed[number], reads=tuple(dict.fromkeys(read)))
    plan = plan_buffers(replace(memory.problem, steps=tuple(changed)))
    regions = {name: number for number, name in enumerate(graph.regions)}
    steps = []
    for number in plan.order:
        nodes = memory.nodes[number]
        first = graph.index.nodes[nodes[0]]
        region = regions[first.op_type] if graph.is_region(nodes[0]) else None
        if region is None and calls[number] is None:
            continue  # what it makes has no elements
        title = " + ".join(describe_node(graph.index.nodes[node]) for node in nodes)
        scratch, given = plan.scratch[number], guards.get(number, ())
        steps.append(ProgramStep(title, calls[number], region, nodes, scratch, given))
    overruled = sorted(memory.nodes[at][0] for at, each in numbers.items() if each in proof.overruled)
    return ProgramSteps(tuple(steps), emitted, memory, plan, proof, threads, tuple(overruled))


def count_scratch(call: Call) -> int:
    """Return the bytes of scratch memory of one thread, which the next one's follows."""
    return round_up(call.scratch, ALIGNMENT)


def _find_guards(graph: ProgramGraph, memory: MemoryModel) -> dict[int, Guards]:
    """Return the truths under which steps have to run, those of a Where that chooses by one truth.

    What only one choice of it needs has no effect where the other one is taken, and may then not even be
    defined: a Gather behind the end that an If prevents.
    """
    index, needed = graph.index, dict[int, list[tuple[str, bool]]]()
    for guard, first in _list_choices(graph).items():
        waiting, only = [-number for number in first], set[int]()
        heapify(waiting)
        while waiting:  # the last node first: what reads a node is judged before it
            number = -heappop(waiting)
            if number in only or not _serves(graph, number, guard, only):
                continue
            only.add(number)
            needed.setdefault(number, []).append(guard)
            for name in index.reads[number]:
                if name in index.producers:
                    heappush(waiting, -index.producers[name])
    found = {}
    makers = {buffer: at for at, step in enumerate(memory.problem.steps) for buffer in step.writes}
    for at, nodes in enumerate(memory.nodes):
        # A truth that is itself made under others comes behind them.
        guards = sorted(
            needed.get(nodes[-1], ()), key=lambda g: len(needed.get(index.producers.get(g[0], -1), ()))
        )
        known = [g for g in guards if g[0] in memory.buffers_of]
        known = [g for g in known if makers.get(memory.buffers_of[g[0]][0], -1) < at]
        if known and not any(graph.is_region(number) for number in nodes):
            found[at] = tuple(known)
    return found


def _list_choices(graph: ProgramGraph) -> dict[tuple[str, bool], list[int]]:
    """Return the nodes that make what a Where may choose by one truth, by the truth and what it is."""
    index, found = graph.index, dict[tuple[str, bool], list[int]]()
    for node in index.nodes:
        if is_onnx(node) and node.op_type == "Where" and graph.sizes.count_elements(node.input[0]) == 1:
            for name, truth in ((node.input[1], True), (node.input[2], False)):
                if name in index.producers:
                    found.setdefault((node.input[0], truth), []).append(index.producers[name])
    return found


def _serves(graph: ProgramGraph, number: int, guard: tuple[str, bool], only: Collection[int]) -> bool:
    """Return whether nothing reads what a node makes but some nodes, and a choice by a truth."""
    index, (truth, chosen) = graph.index, guard
    at = 1 if chosen else 2
    for name in index.nodes[number].output:
        if name in index.outputs:
            return False
        for reader in index.consumers.get(name, ()):
            node = index.nodes[reader]
            chooses = is_onnx(node) and node.op_type == "Where" and node.input[0] == truth
            places = [place for place, read in enumerate(node.input) if read == name]
            if reader not in only and not (chooses and places == [at]):
                return False
    return True


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
        if call is None and not graph.is_region(nodes[0]) and not _makes_nothing(graph, nodes):
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


def _makes_nothing(graph: ProgramGraph, nodes: Sequence[int]) -> bool:
    """Return whether all that nodes make has no elements."""
    made = (name for number in nodes for name in graph.index.nodes[number].output if name)
    return not any(graph.sizes.count_elements(name) for name in made)


def _adapt_step(
    graph: ProgramGraph, step: ArenaStep, nodes: Sequence[int], call: Call | None, one_pass: bool
) -> ArenaStep:
    """Add the scratch of a call; let it write over an operand only where its function can do that.

    It can where it writes in one pass, and its operands are of one type: where types differ, C lets a
    compiler read and write in another order. Kernels of integers that can do it are `IN_PLACE`, where
    all elements have one size.
    """
    node = graph.index.nodes[nodes[-1]]
    if call is not None and call.function in IN_PLACE | ELEMENTWISE:
        read = [name for name in call.operands if isinstance(name, str)]
        sizes = {np.dtype(graph.get_dtype(name)).itemsize for name in read}
        return step if len(sizes) == 1 else replace(step, may_overwrite=())
    result = graph.get_dtype(node.output[0]) if one_pass else ""
    same = one_pass and all(graph.get_dtype(name) == result for name in node.input if name)
    scratch = count_scratch(call) if call else 0
    return replace(step, may_overwrite=step.may_overwrite if same else (), scratch=scratch)
