"""How often a rule file and a vendor's compiler agree, as numbers and as a table."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from byoc.errors import InputError
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
