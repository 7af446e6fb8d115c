"""Models cleaned for their targets, in the forms that these take, and the graphs that are annotated."""

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial

from byoc.costs import can_partition_bodies
from byoc.errors import InputError
from byoc.model import TARGET_KEY, GraphIndex, Model, get_metadata, is_qdq_node, unshare_dequantize
from byoc.passes import (
    CLAMPS,
    ChosenForm,
    CleanedModel,
    CleanPass,
    ReadQuantizedOperators,
    SimplifyParts,
    TwinForm,
    clean_model,
    find_forms,
    list_clean_passes,
    list_offered_forms,
)
from byoc.patterns import Mark
from byoc.rules import Annotator, Objection, OpRule, Target, annotate_graph
from byoc.samples import model_samples


def find_graphs(index: GraphIndex) -> Iterator[GraphIndex]:
    """Yield the graphs in which regions may form: a graph, and bodies inside it that may be cut."""
    yield index
    for node, bodies in index.bodies.items():
        if can_partition_bodies(index, node):
            for body in bodies:
                yield from find_graphs(body.index)


def annotate_graphs(index: GraphIndex, targets: Sequence[Target]) -> dict[int, list[list[Mark]]]:
    """Return the marks of the nodes of each graph: by the id of its index, then target, then node."""
    return {
        id(graph): [annotate_graph(graph, target) for target in targets] for graph in find_graphs(index)
    }


def clean_for_targets(
    model: Model,
    targets: Sequence[Target],
    left_out: str | Collection[str] = (),
    unwanted: Collection[str] = (),
    *,
    quantizing: bool = False,
) -> CleanedModel:
    """Clean a model by the passes that run without being asked for, but for those that are left out.

    Nodes that no target takes get a form that one takes, but for those whose first output is `unwanted`;
    with `quantizing` one that it takes once the model is quantized. Raises InputError for a name among
    `left_out` that no such pass has, and for the model of a bundle.
    """
    _check_not_partitioned(model)
    names = [left_out] if isinstance(left_out, str) else left_out
    cleaned = clean_model(model, choose_clean_passes(targets, names))
    for form in list_offered_forms(names):
        made = _offer_form(cleaned.model, targets, form, frozenset(unwanted), quantizing)
        cleaned = CleanedModel(made.model, (*cleaned.effects, *made.effects))
    if cleaned.model is model or model.make_samples is not None:
        return cleaned
    # Samples are made from what reads the inputs, and are to be the same with and without clean-up.
    return replace(cleaned, model=replace(cleaned.model, make_samples=partial(model_samples, model)))


def _check_not_partitioned(model: Model) -> None:
    """Raise InputError for the model of a bundle, whose regions are calls, which no rule speaks of."""
    for node in model.structure.graph.node:
        target = get_metadata(node, TARGET_KEY)
        if target:
            raise InputError(
                f"{model.source}: is partitioned already: '{node.op_type}' is a region of {target}; "
                "take the model that it was made of"
            )


def clean_parts(model: Model, targets: Sequence[Target], left_out: str | Collection[str] = ()) -> Model:
    """Return a model that is the body of an operator, cleaned as models are, and of what bodies have.

    Raises InputError as `clean_for_targets` does.
    """
    spoken = [_list_operators(target) for target in targets]
    add_sums = any("Add" in each for each in spoken) and not any({"Sum", "*"} & each for each in spoken)
    cleaned = clean_for_targets(model, targets, left_out).model
    simplified = clean_model(cleaned, (SimplifyParts(add_sums),)).model
    return clean_for_targets(simplified, targets, left_out).model


def choose_clean_passes(
    targets: Sequence[Target], left_out: Collection[str] = ()
) -> tuple[CleanPass, ...]:
    """Return the clean-up passes for some targets. Raises InputError as `clean_for_targets` does.

    Flatten becomes Reshape if a target takes the one only, and none the other only; BatchNormalization
    is folded if a target wants that. Operators of integers are read as QDQ groups if a target takes
    quantized operators, and none speaks of operators of integers; of them only the products that are
    quantized as a model runs, if a target wants that. If a target takes quantized operators,
    clamps that do nothing in integers go; one behind an operator stays if a target speaks of it, since
    composites may be made with it.
    """
    spoken = [_list_operators(target) for target in targets]
    reshape = any("Reshape" in each and "Flatten" not in each for each in spoken)
    flatten = any("Flatten" in each and "Reshape" not in each for each in spoken)
    wants = {want for target in targets for want in target.rules.wants}
    integers = ReadQuantizedOperators.list_read_operators()
    quantized = any(target.has_quantized_rules for target in targets)
    clamps = frozenset().union(*(CLAMPS if "*" in each else CLAMPS & each for each in spoken))
    return list_clean_passes(
        reshape and not flatten,
        "folded_batchnorm" in wants,
        left_out,
        quantized=quantized and not any("*" in each or integers & each for each in spoken),
        products="real_products" in wants,
        clamps=clamps if quantized else None,
    )


def _list_operators(target: Target, dtype: str | None = None) -> frozenset[str]:
    """Return the operators that a rule file speaks of, in rules or composites.

    With a `dtype` only those are returned of which a rule, or the file, names that.
    """
    ruled = {
        operator
        for rule in target.rules.ops
        for operator in rule.op
        if dtype is None or dtype in _list_dtypes(target, rule)
    }
    if "*" in ruled:
        ruled |= {"Flatten", "Reshape"}
    patterns = () if dtype is not None else target.patterns
    composed = {operator for each in patterns for line in each.lines for operator in line.ops}
    return frozenset(ruled | composed)


def _list_dtypes(target: Target, rule: OpRule) -> set[str]:
    """Return the dtypes that a rule names, for all its tensors or for one, or its file does."""
    named = {dtype for tensor in rule.tensors.values() for dtype in tensor.dtype or ()}
    return named | set(rule.dtype or target.rules.dtype)


# Forms of nodes that targets take, where they do not take the nodes as the model has them.


def _offer_form(
    model: Model,
    targets: Sequence[Target],
    form: TwinForm,
    unwanted: frozenset[str],
    quantizing: bool,
) -> CleanedModel:
    """Bring nodes that no target takes into a form that one takes; those in `unwanted` stay."""
    targets = [target for target in targets if form.name not in target.rules.unwanted_forms]
    spoken = frozenset().union(*(_list_operators(target, form.dtype) for target in targets))
    form = form.for_operators(spoken)
    graphs = [*find_graphs(model.index)] if spoken else []
    candidates = {_name(g, n) for g in graphs for n in form.find_candidates(g, spoken)} - unwanted
    if not candidates:
        return CleanedModel(model)
    known = {_name(graph, n): (graph, n) for graph in graphs for n, _ in enumerate(graph.nodes)}
    taken = _Taken(model, targets, quantizing)
    wanted = {name for name in candidates if not taken.holds(name)}
    refused = set(unwanted)
    while wanted - refused:
        chosen = frozenset(_add_companions(model, form, wanted - refused, refused))
        made = clean_model(model, (ChosenForm(form, chosen),))
        taken = _Taken(made.model, targets, quantizing)
        left = {
            key
            for graph in find_graphs(made.model.index)
            for number, key in find_forms(graph).items()
            if key in chosen and not taken.holds(_name(graph, number))
        }
        # QDQ nodes belong to the nodes beside them, and cost nothing on the host either.
        left = {key for key in left if not is_qdq_node(known[key][0].nodes[known[key][1]])}
        if not left:
            return made
        refused |= left
    return CleanedModel(model)


def _name(graph: GraphIndex, number: int) -> str:
    return next(iter(graph.node_outputs[number]), "")


@dataclass(eq=False)
class _Taken:
    """The nodes of a model that some target takes, also quantized where that is `quantizing`."""

    model: Model
    targets: Sequence[Target]
    quantizing: bool

    def __post_init__(self) -> None:
        """Annotate the graphs."""
        split = any(target.has_quantized_rules for target in self.targets)
        index = (unshare_dequantize(self.model) if split else self.model).index
        marks = annotate_graphs(index, self.targets)
        self._graphs = {
            _name(graph, n): (graph, n)
            for graph in find_graphs(index)
            for n, _ in enumerate(graph.nodes)
        }
        self._marked = {
            name
            for name, (graph, n) in self._graphs.items()
            if any(own[n].verdict for own in marks[id(graph)])
        }

    def holds(self, name: str) -> bool:
        """Return whether a target takes the node that makes a tensor, as its first output."""
        if name in self._marked or not self.quantizing:
            return name in self._marked
        graph, number = self._graphs[name]
        return any(
            not attempt.fits and all(map(_is_about_quantization, attempt.objections))
            for target in self.targets
            if target.has_quantized_rules
            for attempt in Annotator(target, graph).list_attempts(number)
        )


def _is_about_quantization(objection: Objection) -> bool:
    """Return whether an objection goes where a model is quantized: to a dtype, scale or zero point."""
    return objection.is_about_dtype or "quantiz" in objection.location


def _add_companions(model: Model, form: TwinForm, wanted: Set[str], refused: Set[str]) -> Iterator[str]:
    """Yield nodes and those that are worth bringing into the form with them, but for some."""
    yield from wanted
    for graph in find_graphs(model.index):
        own = {i for i, names in enumerate(graph.node_outputs) if names and names[0] in wanted}
        for number in form.find_companions(graph, own) if own else ():
            if _name(graph, number) not in refused:
                yield _name(graph, number)
