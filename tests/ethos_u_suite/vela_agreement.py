"""How often a rule file and Vela agree, as numbers and as a table; Vela's answers are kept on disk."""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import onnx
from byoc.codegens.ethos_u.lower_regions import (
    CompiledGraph,
    EthosUOptions,
    TooSlowError,
    compile_graphs,
    lower_region,
    vela_version,
)
from one_node import OneNode

from byoc.codegen import CompileError, read_region
from byoc.errors import InputError
from byoc.model import prepare_model
from byoc.rules import Target, annotate_graph

_AT_ONCE = 40
_PROCESSES = 2
_LIMIT = 15.0  # seconds of processor time for a model


@dataclass(frozen=True)
class Judged:
    """A model, why the codegen or Vela does not take it, and why the rule file does not: "" if so.

    `reason` is None where Vela had no answer within the limit of time: such a model is too slow to ask,
    and counts neither for the file nor against it.
    """

    case: OneNode
    reason: str | None
    refusal: str

    @property
    def slow(self) -> bool:
        """Return whether the model is too slow to ask."""
        return self.reason is None

    @property
    def compiles(self) -> bool:
        """Return whether Vela compiles the model."""
        return not self.slow and not self.reason

    @property
    def false_accept(self) -> bool:
        """Return whether the rule file takes what does not compile."""
        return bool(self.reason and not self.refusal)

    @property
    def false_refusal(self) -> bool:
        """Return whether the rule file refuses what compiles."""
        return bool(self.refusal and self.compiles)


def judge(
    cases: Sequence[OneNode], target: Target, accelerator: str, store: Path | None = None
) -> list[Judged]:
    """Return what both say of each case; Vela's answers are read from `store`, and added to it."""
    reasons = ask(cases, accelerator, store)
    return [
        Judged(case, reason, find_refusal(case, target))
        for case, reason in zip(cases, reasons, strict=True)
    ]


def find_refusal(case: OneNode, target: Target) -> str:
    """Return why the rule file refuses the operator of a case; "" where it accepts it."""
    try:
        model = prepare_model(case.model, case.name)
    except InputError as error:
        return str(error)
    found = annotate_graph(model.index, target)
    (verdict,) = [
        each.verdict
        for node, each in zip(model.index.graph.node, found, strict=True)
        if node.name == "asked"
    ]
    return "" if verdict else str(verdict)


def ask(cases: Sequence[OneNode], accelerator: str, store: Path | None = None) -> list[str | None]:
    """Return for each case why it does not compile; "" where it does, None where it takes too long."""
    graphs: dict[int, bytes] = {}
    reasons: list[str | None] = [""] * len(cases)
    for number, case in enumerate(cases):
        try:
            graphs[number] = _lower(case.model)
        except CompileError as error:
            reasons[number] = str(error)
    known: dict[str, str | None] = {}
    if store is not None and store.exists():
        known = json.loads(store.read_text(encoding="utf-8"))
    salt = f"{accelerator} {vela_version()}".encode()
    keys = {number: hashlib.sha256(salt + graph).hexdigest() for number, graph in graphs.items()}
    missing = list({key: graphs[number] for number, key in keys.items() if key not in known}.items())
    options = EthosUOptions(accelerator=accelerator)  # type: ignore[arg-type]
    parts = [missing[first : first + _AT_ONCE] for first in range(0, len(missing), _AT_ONCE)]
    with ThreadPoolExecutor(_PROCESSES) as pool:
        answers = pool.map(
            lambda part: compile_graphs([graph for _, graph in part], options, _LIMIT), parts
        )
        for part, results in zip(parts, answers, strict=True):
            known |= {key: _name_reason(each) for (key, _), each in zip(part, results, strict=True)}
            if store is not None:
                store.parent.mkdir(parents=True, exist_ok=True)
                store.write_text(json.dumps(known), encoding="utf-8")
    for number, key in keys.items():
        reasons[number] = known[key]
    return reasons


def _name_reason(result: CompiledGraph | CompileError) -> str | None:
    if isinstance(result, TooSlowError):
        return None
    return str(result) if isinstance(result, CompileError) else ""


def find_missed_goal(judged: Sequence[Judged]) -> str:
    """Return how the goal is missed: no false accept, of 100 that compile at most 1 refused."""
    accepts = [f"{one.case.op} {one.case.name}" for one in judged if one.false_accept]
    if accepts:
        return f"{len(accepts)} false accepts: {'; '.join(accepts)}"
    refusals = sum(one.false_refusal for one in judged)
    taken = sum(one.compiles for one in judged)
    return f"{refusals} false refusals of {taken}" if refusals * 100 > taken else ""


def write_table(judged: Sequence[Judged]) -> Iterator[str]:
    """Yield the lines of the table: figures by operator, then every disagreement."""
    accepts = [one for one in judged if one.false_accept]
    refusals = [one for one in judged if one.false_refusal]
    taken, slow = sum(one.compiles for one in judged), sum(one.slow for one in judged)
    yield f"{len(judged)} models, {taken} compile, {slow} are too slow to ask"
    counts = f"{'models':>8}{'compile':>9}{'agree':>7}{'false accepts':>15}{'refusals':>10}"
    yield f"{'operator':24}{counts}{'too slow':>10}"
    of_op = Counter(one.case.op for one in judged)
    for op, count in sorted(of_op.items()):
        of_it = [one for one in judged if one.case.op == op]
        wrong = [sum(one.false_accept for one in of_it), sum(one.false_refusal for one in of_it)]
        compiled, unasked = sum(one.compiles for one in of_it), sum(one.slow for one in of_it)
        agreed = count - sum(wrong) - unasked
        yield f"{op:24}{count:8}{compiled:9}{agreed:7}{wrong[0]:15}{wrong[1]:10}{unasked:10}"
    for what, found, possible in (
        ("false accepts", accepts, len(judged) - taken - slow),
        ("false refusals", refusals, taken),
    ):
        yield f"{what}: {len(found)} of {possible} ({len(found) / max(possible, 1):.2%})"
        for one in found:
            yield f"  {one.case.op} {one.case.name}: {one.refusal or one.reason}"
    yield f"too slow to ask: {slow}"
    for one in judged:
        if one.slow:
            yield f"  {one.case.op} {one.case.name}: {one.refusal or 'taken'}"


def _lower(model: onnx.ModelProto) -> bytes:
    with tempfile.TemporaryDirectory(prefix="byoc-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        return lower_region(read_region(path, "asked", "ethos-u55"))[0]
