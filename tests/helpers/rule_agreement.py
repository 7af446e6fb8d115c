"""How often a rule file and a vendor's compiler agree, as numbers and as a table."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import ModelProto
from onnx.compose import add_prefix

import byoc
from byoc.errors import ByocError, InputError
from byoc.model import prepare_model
from byoc.rules import Target, annotate_graph
from helpers.asking import Answer
from helpers.one_node_models import OneNode


@dataclass(frozen=True)
class Judged:
    """A model, the compiler's answer, and why the rule file refuses it, if it does."""

    case: OneNode
    answer: Answer
    refusal: str

    @property
    def false_accept(self) -> bool:
        """Return whether the rule file takes what the compiler does not, or computes wrong."""
        return not self.refusal and not self.answer

    @property
    def false_refusal(self) -> bool:
        """Return whether the rule file refuses what is computed right."""
        return bool(self.refusal and self.answer)


def refusal(case: OneNode, target: Target) -> str:
    """Return why the rule file refuses a case's node; nothing when it accepts it."""
    try:
        model = prepare_model(case.model, case.name)
    except InputError as error:
        return str(error)  # a model that is not read reaches no accelerator
    verdict = annotate_graph(model.index, target)[0].verdict
    return "" if verdict else str(verdict)


def goal_missed(judged: Sequence[Judged]) -> str:
    """Return how the goal is missed: no false accept, of 100 that are taken at most 1 refused.

    Of tests with other attributes than ONNX's only false accepts count: they multiply what is refused.
    """
    accepts = [one.case.name for one in judged if one.false_accept]
    if accepts:
        return f"{len(accepts)} false accepts: {', '.join(accepts)}"
    counted = [one for one in judged if one.case.source != "attributes"]
    refusals = sum(one.false_refusal for one in counted)
    taken = sum(bool(one.answer) for one in counted)
    return f"{refusals} false refusals of {taken}" if refusals * 100 > taken else ""


def table(judged: Sequence[Judged], vendor: str) -> Iterator[str]:
    """Yield the lines of the table: the figures first, then every disagreement by operator."""
    sources = Counter(one.case.source for one in judged)
    answers = Counter(one.answer.kind for one in judged)
    accepts = [one for one in judged if one.false_accept]
    refusals = [one for one in judged if one.false_refusal]
    yield f"{len(judged)} models of one node, {len({one.case.op for one in judged})} operators"
    yield "from " + ", ".join(f"{source} {number}" for source, number in sources.items())
    yield f"{vendor}: " + ", ".join(f"{kind} {number}" for kind, number in answers.most_common())
    wrong = [one.case.name for one in judged if one.answer.imported == "wrong"]
    if any(one.answer.imported for one in judged):
        names = f": {', '.join(wrong)}" if wrong else ""
        yield f"computed right, and wrong when imported: {len(wrong)}{names}"
    yield f"the rule file agrees on {len(judged) - len(accepts) - len(refusals)}"
    yield from _disagreements("false accepts", accepts, len(judged) - answers["takes"])
    yield from _disagreements("false refusals", refusals, answers["takes"])


def _disagreements(what: str, found: Sequence[Judged], possible: int) -> Iterator[str]:
    yield f"{what}: {len(found)} of {possible} ({len(found) / max(possible, 1):.2%})"
    for op, number in sorted(Counter(one.case.op for one in found).items()):
        yield f"{number:4} {op}"
        for one in found:
            if one.case.op == op:
                said = one.refusal or f"{one.answer.kind}: {one.answer.why}"
                yield f"       {one.case.name} ({one.case.source}): {said}"


# The whole way: models planned with their compiler asked, compiled, verified, and run on other data.

Pairs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
_TOGETHER = 25  # models of one operator set that go side by side


@dataclass(frozen=True)
class WholeWay:
    """What becomes of models of one operator in `byoc.partition`, each in a region of its own.

    `rules` are the name of a rule file, whose regions are made connected. `options` are those of
    `partition`; `differs` says how an output is off, nothing where it is right.
    """

    rules: str
    options: Mapping[str, Any]
    differs: Callable[[Any, Any], str]

    def find_outcomes(self, models: Mapping[str, tuple[ModelProto, Pairs]], log: Path) -> dict[str, str]:
        """Return for each model `accelerator` or `host`, where its node `asked` is, or what is wrong.

        Those of one operator set go side by side in one model; where that ends in an error, each alone.
        What the log has is not run again, and what it lacks is added to it as soon as it is known.
        """
        rows = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        found = {each["name"]: each["found"] for each in map(json.loads, rows)}
        missing = [name for name in models if name not in found]
        with TemporaryDirectory(prefix="byoc-") as folder, log.open("a", encoding="utf-8") as file:
            connected = Path(folder) / "connected.yaml"
            connected.write_text(f"extends: {self.rules}\ntarget: connected\nregions: connected\n")
            for name, outcome in self._go({name: models[name] for name in missing}, connected):
                found[name] = outcome
                file.write(f"{json.dumps({'name': name, 'found': outcome})}\n")
                file.flush()
        return {name: found[name] for name in models}

    def _go(
        self, models: Mapping[str, tuple[ModelProto, Pairs]], rules: Path
    ) -> Iterator[tuple[str, str]]:
        """Yield the outcomes of models by name."""
        by_opset: dict[tuple[int, ...], list[str]] = {}
        for name, (model, _) in models.items():
            key = (model.ir_version, *(each.version for each in model.opset_import))
            by_opset.setdefault(key, []).append(name)
        batches = (
            names[first : first + _TOGETHER]
            for names in by_opset.values()
            for first in range(0, len(names), _TOGETHER)
        )
        for names in batches:
            asked = [models[name] for name in names]
            made = self._go_together(asked, rules)
            if made is None:
                alone = (self._go_together([each], rules, alone=True) for each in asked)
                made = (each[0] for each in alone if each is not None)
            yield from zip(names, made, strict=True)

    def _go_together(
        self, asked: Sequence[tuple[ModelProto, Pairs]], rules: Path, *, alone: bool = False
    ) -> Iterable[str] | None:
        """Return the outcomes, None where the models end together in an error, unless there is one."""
        data = [pairs for _, pairs in asked]
        with TemporaryDirectory(prefix="byoc-") as folder:
            bundle = Path(folder) / "joined.byoc"
            try:
                result = byoc.partition(
                    _join([model for model, _ in asked]),
                    rules,
                    output=bundle,
                    strategy="all-supported",
                    what_if=False,
                    **self.options,
                )
                session = byoc.load(bundle, isolate=False)
                rounds = max(map(len, data))
                chosen = [[pairs[min(n, len(pairs) - 1)] for pairs in data] for n in range(rounds)]
                made = [session(_add_prefixes([pair[0] for pair in pairs])) for pairs in chosen]
            except ByocError as error:
                return [f"error: {error}"] if alone else None
        if result.verification is None or not result.verification.passed:
            return ["error: it is not verified"] if alone else None
        names = {
            region.index.nodes[node].name for region in result.plan.regions for node in region.nodes
        }
        off = [dict[str, str]() for _ in asked]
        for outputs, pairs in zip(made, chosen, strict=True):
            for number, (_, expected) in enumerate(pairs):
                for name, value in expected.items():
                    problem = self.differs(value, np.asarray(outputs[f"m{number}_{name}"]))
                    off[number] |= {name: problem} if problem else {}
        return [
            f"wrong: {wrong}" if wrong else "accelerator" if f"m{number}_asked" in names else "host"
            for number, wrong in enumerate(off)
        ]


def _join(models: Sequence[ModelProto]) -> ModelProto:
    """Return models of one operator set side by side, with a number before all names."""
    joined = ModelProto()
    joined.CopyFrom(models[0])
    joined.ClearField("graph")
    joined.graph.name = "joined"
    for number, model in enumerate(models):
        named = ModelProto()
        named.CopyFrom(model)
        cores = [n for n in named.graph.node if n.op_type not in {"QuantizeLinear", "DequantizeLinear"}]
        (cores or named.graph.node)[0].name = "asked"
        graph = add_prefix(named, f"m{number}_").graph
        for part in ("node", "input", "output", "initializer", "value_info"):
            getattr(joined.graph, part).extend(getattr(graph, part))
    return joined


def _add_prefixes(given: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {f"m{n}_{name}": value for n, each in enumerate(given) for name, value in each.items()}
