"""Remedies for the causes that keep nodes on the host: in words, and as data."""

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property

from byoc._dataclasses import dataclass
from byoc.bundle import ReportedCause
from byoc.errors import Cause, CauseKind, Verdict, list_causes
from byoc.placement import CHEAPER_ON_HOST
from byoc.planning import (
    Action,
    ActionFinder,
    ActionKind,
    Plan,
    get_integer_dtype,
    is_float_for_integers,
    takes_integers_alone,
    takes_quantized,
)

# Keys of rule files about shapes: sizes of the model's inputs settle what is not known there.
_SHAPES = frozenset(
    {"rank", "dims", "static", "elements", "bytes", "scalar", "broadcast", "shapes", "batch"}
)
# The order in which causes count where a reason has several: what a user can do comes first.
_ORDER = (
    *(CauseKind.SIZE, CauseKind.QUANTIZATION, CauseKind.OPERATOR, CauseKind.VALUES, CauseKind.COST),
    *(CauseKind.COMPOSITE, CauseKind.TYPE, CauseKind.LIMIT, CauseKind.CONSTRAINT),
    *(CauseKind.HOST, CauseKind.GIVEN),
)


@dataclass(frozen=True, eq=False)
class RemedyFinder:
    """Finds what a user can do about reasons for staying on the host, for a plan of a model."""

    plan: Plan

    def describe(self, verdict: Verdict) -> str:
        """Return the remedy in a sentence, empty where none is known.

        With several accelerators none is told: a reason has a part for each.
        """
        if len(self.plan.targets) > 1:
            return ""
        causes = [cause for cause in list_causes(verdict) if cause.kind in _ORDER]
        refusing = (cause for cause in causes if cause.kind is CauseKind.CONSTRAINT)
        places = tuple(dict.fromkeys(cause.constraint for cause in refusing if cause.constraint))
        for cause in sorted(causes, key=lambda cause: _ORDER.index(cause.kind)):
            if found := self._describe_cause(cause, places):
                futile = frozenset(self.find_actions(verdict)) in self._futile
                return f"{found}; by the cost models that gains nothing" if futile else found
        return ""

    def find_actions(self, verdict: Verdict) -> tuple[Action, ...]:
        """Return the remedy as data, all to be done; there is none with several accelerators."""
        if len(self.plan.targets) > 1:
            return ()
        found = sorted(self._finder.find_all(list_causes(verdict), self.plan.target))
        return tuple(
            self._limits.get(action.constraint, action) if action.kind is ActionKind.LIMIT else action
            for action in found
        )

    @cached_property
    def _finder(self) -> ActionFinder:
        return ActionFinder(self.plan.targets, self.plan.root.index)

    @cached_property
    def _futile(self) -> Set[frozenset[Action]]:
        """The actions of which plans were made that gain nothing."""
        return {frozenset(actions) for actions in self.plan.futile}

    @cached_property
    def _limits(self) -> Mapping[str, Action]:
        """The needs of plans without limits, by the limits' keys."""
        actions = (action for each in self.plan.what_ifs if each.tried for action in each.actions)
        return {each.constraint: each for each in actions if each.kind is ActionKind.LIMIT}

    @cached_property
    def _is_quantized(self) -> bool:
        return any(kind.is_qdq for kind in {*self.plan.root.index.node_kinds})

    def _describe_cause(self, cause: Cause, places: Sequence[str]) -> str:
        """Return the remedy of a cause; `places` are the keys that refuse beside it."""
        target, rule = self.plan.target, f"op: {cause.operator}"
        if takes_integers_alone(target):
            rule = f"{{{rule}, quantized: true}}"
        sentence = _SENTENCES.get(cause.kind, "")
        place = cause.constraint
        text = sentence.format(operator=cause.operator, target=target.name, rule=rule, place=place)
        match cause.kind:
            case CauseKind.SIZE:
                text = self._describe_sizes(cause)
            case CauseKind.CONSTRAINT if is_float_for_integers(cause) and not self._is_quantized:
                text = self._describe_integers(cause)
            case CauseKind.CONSTRAINT:
                text = _describe_places(places) if cause.constraint else text
            case CauseKind.QUANTIZATION:
                text = self._describe_quantization()
            case CauseKind.LIMIT:
                text = self._describe_limit(cause)
            case CauseKind.TYPE:
                text = _describe_type(cause)
            case CauseKind.COST if cause.text != f"supported, but {CHEAPER_ON_HOST}":
                text = ""
        return text

    def _describe_quantization(self) -> str:
        """Return the flags that quantize a model; of one that is quantized in part there are none."""
        if self._is_quantized:
            return "the model is quantized in part: this is outside of it, or has no scale"
        dtype = get_integer_dtype(self.plan.target)
        return f"`--quantize {dtype} --data FOLDER` quantizes the model, as does `--calibration FILE`"

    def _describe_limit(self, cause: Cause) -> str:
        """Return the limit with what a plan without it needs, or what the node does."""
        action = self._limits.get(cause.constraint)
        value = cause.value if action is None else action.value
        return f"if the accelerator can, set `{cause.constraint}` to {value} in its rule file"

    def _describe_sizes(self, cause: Cause) -> str:
        """Return the flags; for a dimension that has a range, what to give in its place."""
        flags, planned = " ".join(cause.flags), self.plan.root.index.planned
        ranged = [each for each in planned.ranges if f"--dim {each}=SIZE" in cause.flags]
        if not ranged:
            return f"give {flags}"
        name = ranged[0]
        (least, most), size = planned.ranges[name], planned.sizes[name]
        return (
            f"a range leaves {name} open: in its place give one size, `--dim {name}={size}`, or some, "
            f"`--bucket {name}={least},{most}`"
        )

    def _describe_integers(self, cause: Cause) -> str:
        target, dtype = self.plan.target, get_integer_dtype(self.plan.target)
        quantizes = f"`--quantize {dtype} --data FOLDER` quantizes the model"
        if takes_quantized(target, cause.operator):
            return f"{target.name} takes {cause.operator} in integers: {quantizes}"
        where = "its rule" if target.has_quantized_rules else "the rules of its file"
        return f"{target.name} computes in {dtype}: write `quantized: true` in {where}, and {quantizes}"


_SENTENCES = {
    CauseKind.OPERATOR: ("if {target} runs {operator}, add `{rule}` to the `ops` of its rule file"),
    CauseKind.VALUES: "`--values assumed` offloads it on the condition that values stay inside",
    CauseKind.COST: (
        "it would pay with more of its neighbours there, a faster link or a faster accelerator; "
        "`--strategy all-supported` offloads it all the same"
    ),
    CauseKind.GIVEN: "without `--placement` or the annotation that has it there, costs decide",
    CauseKind.COMPOSITE: (
        "a pattern under `composites` in the rule file that matches here would take it, and so would "
        "its rule without `{place}`"
    ),
    CauseKind.HOST: "without `{place}` in the rule file costs decide where it runs",
    CauseKind.CONSTRAINT: (
        "if the accelerator can, widen its rule for {operator}: `byoc explain MODEL --op {operator}` "
        "names the constraint"
    ),
}


def _describe_places(places: Sequence[str]) -> str:
    """Return the advice to widen constraints, by their keys in the rule file."""
    quoted = [f"`{place}`" for place in places]
    named = " and ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))
    return f"if the accelerator can, widen {named} in its rule file"


def _describe_type(cause: Cause) -> str:
    """Return the advice where something is not known and no flag was named."""
    if cause.advice or not cause.constraint:
        return cause.advice
    if _SHAPES.intersection(cause.constraint.replace("[", ".").split(".")):
        return "give the sizes of the model's inputs: `--dim NAME=SIZE` or `--shape INPUT=EXTENTS`"
    return _SENTENCES[CauseKind.CONSTRAINT].format(operator=cause.operator)


def report_causes(causes: Iterable[Cause]) -> tuple[ReportedCause, ...]:
    """Return causes as reports have them."""
    return tuple(
        ReportedCause(
            kind=cause.kind.value,
            operator=cause.operator,
            constraint=cause.constraint,
            value=cause.value,
            allowed=cause.allowed,
            flags=cause.flags,
            target=cause.target,
            general=cause.general_text,
        )
        for cause in causes
    )


def find_likeness(causes: Sequence[ReportedCause], reason: str) -> tuple[tuple[str, ...], ...]:
    """Return the key that reasons share if only names and values differ; without causes the reason."""
    if not causes:
        return ((reason,),)
    return tuple(dict.fromkeys(_find_cause_likeness(cause) for cause in causes))


def _find_cause_likeness(cause: ReportedCause) -> tuple[str, ...]:
    by_key = cause.constraint and cause.kind in {CauseKind.CONSTRAINT, CauseKind.LIMIT}
    what = cause.constraint if by_key else cause.general
    return cause.kind, cause.target, cause.operator, what
