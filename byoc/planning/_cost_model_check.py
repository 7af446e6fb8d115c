"""Checks of cost models against what they were asked, and of names in cost files against operators."""

from collections import Counter
from collections.abc import Collection, Iterator

from byoc.costs import FAMILIES, CostFile, CostModel, EstimatingCosts, Fallback, Policy, Priced
from byoc.errors import InputError, suggest_nearest
from byoc.planning._graph_plan import GraphPlan
from byoc.planning._plan_settings import PlanSettings
from byoc.rules import read_library
from byoc.schemas import describe_unknown_operator, list_onnx_operators

_SHOWN = 5
# A model that does not know one unit of one may be right.
_LEAST_ASKED = 2


def require_knowledge(root: GraphPlan, settings: PlanSettings) -> None:
    """Raise InputError for a plug-in that knew the cost of no unit that it was asked about.

    A placement would follow from stand-in figures alone, or all stay on the host. A plug-in that makes
    estimates may know nothing where estimates are allowed; files may, too, since a note tells of them.
    """
    graphs = [graph.graph_problem for graph in root.walk()]
    for number, model in enumerate((settings.host, *settings.costs)):
        policy = settings.unknown_costs if number else settings.unknown_costs.on_host
        if isinstance(model, (CostFile, Fallback)):
            continue
        if isinstance(model, EstimatingCosts) and policy is Policy.estimate:
            continue
        answers = [graph.answers[number] for graph in graphs]
        reasons: Counter[str] = Counter()
        for each in answers:
            reasons.update(each.unknown)
        asked = sum(each.asked for each in answers)
        if asked >= _LEAST_ASKED and reasons.total() == asked:
            why = reasons.most_common(1)[0][0]
            others = f", and {len(reasons) - 1} more reasons" if len(reasons) > 1 else ""
            raise InputError(
                f"cost model {model.name}: knows the cost of none of the {asked} units that it was "
                f"asked about: {why}{others}"
            )


def find_unknown_names(settings: PlanSettings) -> list[str]:
    """Return a sentence for each cost file with names that are of no operator and no composite."""
    models = (settings.host, *settings.costs)
    files = {id(file): file for model in models for file in _list_files(model)}
    composites = {rule.display_name for target in settings.targets for rule in target.rules.composites}
    notes = []
    for file in files.values():
        wrong = [name for name in file.operator_names if not _is_known(name, composites)]
        if wrong:
            library = read_library().entries
            wrong = [name for name in wrong if name not in library]
        if wrong:
            known = [*list_onnx_operators(), *composites]
            shown = [f"{name}{suggest_nearest(name, known)}" for name in wrong[:_SHOWN]]
            more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            notes.append(
                f"cost model {file.name}: its figures of {', '.join(shown)}{more} are of no operator "
                "and of no composite, and change nothing"
            )
    return notes


def _list_files(model: CostModel) -> Iterator[CostFile]:
    """Yield the files that a cost model is made of."""
    if isinstance(model, Priced):
        yield from _list_files(model.model)
    elif isinstance(model, Fallback):
        yield from _list_files(model.first)
        yield from _list_files(model.second)
    elif isinstance(model, CostFile):
        yield model


def _is_known(name: str, composites: Collection[str]) -> bool:
    """Return whether an operator, a composite, or a QDQ group of them may be meant.

    Domains whose operators nobody lists are taken on trust.
    """
    op, _, kind = name.removeprefix("QDQ/").partition("/")
    if kind and kind not in FAMILIES:
        return False
    parts = op.split("+")
    return all(
        part in composites or not describe_unknown_operator(part.replace("::", ".")) for part in parts
    )
