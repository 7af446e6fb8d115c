"""Actions of a user by which a device takes more: edits of rule files, and flags, as data."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from byoc.errors import Cause, CauseKind
from byoc.model import FLOAT_DTYPES, GraphIndex
from byoc.patterns import ANY_OPERATOR
from byoc.planning._limit_causes import LIMITS, drop_limits
from byoc.planning._plan_data import Action, ActionKind
from byoc.rules import MISSING_OPERATOR, Target, drop_constraint, write_quantized

QUANTIZED_RULE = "quantized: true"
"""The value of an action that adds a rule for a quantized operator."""
_ASSUME = Action(ActionKind.FLAG, flags=("--values", "assumed"))


@dataclass(frozen=True, eq=False)
class ActionFinder:
    """Finds the actions that take causes away, for the targets of a plan of a model.

    `index` is that of the main graph.
    """

    targets: Sequence[Target]
    index: GraphIndex

    def find_all(self, causes: Iterable[Cause], target: Target) -> frozenset[Action]:
        """Return the actions that take all of some causes away together, none where nothing is known."""
        found = [self.find_actions(cause, target) for cause in causes]
        return frozenset(action for each in found for action in each) if all(found) else frozenset()

    def find_actions(self, cause: Cause, target: Target) -> tuple[Action, ...]:
        """Return the actions that take a cause away together, none where nothing is known."""
        name, place, plain = target.name, cause.constraint, not self._is_quantized
        found: tuple[Action, ...] = ()
        match cause.kind:
            case CauseKind.OPERATOR:
                value = QUANTIZED_RULE if takes_integers_alone(target) else ""
                found = (Action(ActionKind.ADD, name, cause.operator, MISSING_OPERATOR, value),)
            case CauseKind.SIZE:
                found = self._give_sizes(cause.flags)
            case CauseKind.VALUES:
                found = (_ASSUME,)
            case CauseKind.LIMIT:
                found = (_set_limit(name, cause),)
            case CauseKind.QUANTIZATION:
                found = (_quantize(target),) if plain else ()
            case CauseKind.CONSTRAINT if plain and is_float_for_integers(cause):
                if takes_quantized(target, cause.operator):
                    found = (_quantize(target),)
                elif not target.has_quantized_rules:
                    found = (Action(ActionKind.QUANTIZED, name, constraint="ops"), _quantize(target))
            case CauseKind.CONSTRAINT | CauseKind.HOST | CauseKind.COMPOSITE:
                if drop_constraint(target, place, cause.operator) is not None:
                    found = (Action(ActionKind.RELAX, name, constraint=place),)
        return found

    def _give_sizes(self, flags: Iterable[str]) -> tuple[Action, ...]:
        """Return the flags with the sizes that the plan counts with; none where it has none."""
        sizes, given = self.index.planned.sizes, list[str]()
        for flag in flags:
            option, _, wanted = flag.partition(" ")
            name = wanted.partition("=")[0]
            if option != "--dim" or name not in sizes:
                return ()
            given += [option, f"{name}={sizes[name]}"]
        return (Action(ActionKind.FLAG, flags=tuple(given)),)

    @cached_property
    def _is_quantized(self) -> bool:
        return any(kind.is_qdq for kind in {*self.index.node_kinds})


def is_float_for_integers(cause: Cause) -> bool:
    """Return whether a node computes in floating point where a target computes in integers alone."""
    allowed = cause.allowed.split(", ")
    return cause.value in FLOAT_DTYPES and all("int" in dtype for dtype in allowed)


def takes_quantized(target: Target, operator: str) -> bool:
    """Return whether a rule of a target is for a quantized operator."""
    rules = (rule.op for rule in target.rules.ops if rule.quantized)
    return any(operator in ops or ANY_OPERATOR in ops for ops in rules)


def takes_integers_alone(target: Target) -> bool:
    """Return whether a target has rules for quantized operators, and takes none in floating point."""
    return target.has_quantized_rules and all("int" in dtype for dtype in target.rules.dtype)


def get_integer_dtype(target: Target) -> str:
    """Return the type of activations that a target's rule file asks for first."""
    part = target.rules.quantization.activations
    dtypes: Collection[str] = (part.dtype if part is not None else None) or target.rules.dtype or ()
    return next((dtype for dtype in dtypes if "int" in dtype), "int8")


def _quantize(target: Target) -> Action:
    flags = ("--quantize", get_integer_dtype(target), "--data", "FOLDER")
    return Action(ActionKind.FLAG, flags=flags)


def _set_limit(target: str, cause: Cause) -> Action:
    """Return the action that widens a limit; what a placement needs of one is known of a whole plan."""
    known = cause.constraint.rpartition(".")[2] not in LIMITS
    value = cause.value if known else ""
    return Action(ActionKind.LIMIT, target, constraint=cause.constraint, value=value)


def edit_targets(targets: Sequence[Target], actions: Iterable[Action]) -> tuple[Target, ...] | None:
    """Return targets with rule files edited as some actions say; None where one cannot be.

    A limit is left out, whatever its value is to be. Flags edit nothing but `--values`.
    """
    found = list(targets)
    for action in actions:
        for number, target in enumerate(found):
            if action == _ASSUME:
                found[number] = replace(target, values="assumed")
            if action.target != target.name:
                continue
            edited = _edit(target, action)
            if edited is None:
                return None
            found[number] = edited
    return tuple(found)


def _edit(target: Target, action: Action) -> Target | None:
    match action.kind:
        case ActionKind.LIMIT:
            return drop_limits(target, [action.constraint.rpartition(".")[2]])
        case ActionKind.QUANTIZED:
            return write_quantized(target)
    is_quantized = action.value == QUANTIZED_RULE
    return drop_constraint(target, action.constraint, action.operator, quantized=is_quantized)
