"""`byoc.compare_rules`: what a rule file says of the nodes of models, beside what the compiler says.

With `runs` also what the compiled nodes compute, beside what ONNX says they compute.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import onnx

from byoc._dataclasses import asdict, dataclass, replace
from byoc.bundle import RegionCompiler, Report, load_compilers
from byoc.codegen import Codegens, CompilerAnswers, Executable, Isolation, Oracle, RefusedError, Region
from byoc.comparison._comparison_options import SimplifyOptions
from byoc.errors import YES, InputError, Verdict, refuse
from byoc.model import GraphIndex, Model, find_boundary, get_node_name, is_qdq_node
from byoc.passes import PassEffect, load_pass
from byoc.pipeline import (
    AskedUnit,
    PlanOptions,
    find_distinct_units,
    load_settings,
    make_plan,
    rewrite_model,
    write_units,
)
from byoc.planning import load_units
from byoc.reporting import make_report
from byoc.rules import Target, load_rules
from byoc.samples import MAX_SAMPLES, read_samples
from byoc.support import check_output, check_type, report_step, take_keywords, write_atomically
from byoc.verification import (
    NotVerified,
    compare_unit,
    compile_and_load,
)
from byoc.zoo import Source, load_model, name_source

# A simplified model beside its original: nodes, outputs, and what accelerators take of both.

# Protobuf writes at most 2 GiB; larger weights go to a file beside the model.
_MOST_BYTES = 2_000_000_000


@dataclass(frozen=True, eq=False)
class Simplification:
    """A simplified model, and what became of it.

    `before` and `after` are the reports of plans of the original and of the simplified model, None
    where no rule files were given.
    """

    model: Model
    effect: PassEffect
    before: Report | None = None
    after: Report | None = None
    output: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON: the effect, and of each plan its nodes, compute and regions."""
        return {
            "model": self.model.source,
            "output": None if self.output is None else str(self.output),
            **asdict(self.effect),
            "before": _summarize(self.before),
            "after": _summarize(self.after),
        }


def _summarize(report: Report | None) -> dict[str, Any] | None:
    if report is None:
        return None
    return {
        "nodes": report.nodes.total,
        "offloaded_nodes": report.nodes.offloaded,
        "offloaded_compute": report.compute.offloaded,
        "regions": len(report.regions),
        "seconds": report.predicted.seconds,
    }


@take_keywords(SimplifyOptions)
def simplify(model: Source, options: SimplifyOptions) -> Simplification:
    """Fold a model's constants and shapes, as the pass `simplify` does; compare it with the original.

    `model` is a path, `zoo:NAME`, or a protobuf, which is never changed.

    Raises InputError when the model or an option is at fault, or the simplified model computes something
    else; MissingRuntimeError without onnxslim. Nothing has been written then.
    """
    output = None if options.output is None else Path(options.output)
    if output is not None:
        check_output(output)
    asked = load_pass("simplify", options.pass_options)
    report_step("load model")
    original = load_model(model, options.dims, options.shapes)
    samples = () if options.inputs is None else read_samples(options.inputs, original, MAX_SAMPLES)
    simplified, (effect,) = rewrite_model(original, [asked], samples, compare=options.verify)
    before, after = (
        _plan(each, options.rules) if options.rules else None for each in (original, simplified)
    )
    if output is not None:
        _write_model(simplified.proto, output)
    return Simplification(simplified, effect, before, after, output)


def _plan(model: Model, rules: str | Path | Sequence[str | Path]) -> Report:
    plan = make_plan(model, load_settings(PlanOptions(rules)))
    return make_report(plan, NotVerified("only planned"))


def _write_model(proto: onnx.ModelProto, path: Path) -> None:
    if proto.ByteSize() <= _MOST_BYTES:
        write_atomically(path, lambda file: file.write(proto.SerializeToString(deterministic=True)))
        return
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    try:
        beside = path.with_name(f"{path.name}.data")
        beside.unlink(missing_ok=True)  # onnx adds to a file that is there
        onnx.save(whole, path, save_as_external_data=True, location=beside.name)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


_MOST_FEATURES = 4  # of an operator that is taken wrongly, in its row

ValueVerdict = Literal["", "right", "wrong", "not run"]
"""What running a kind of nodes has shown; empty where it was not asked for, or one refuses it."""


@dataclass(frozen=True)
class ComparedKind:
    """Nodes that are alike, and what the rule file and the compiler say of them.

    `model` is the one with the first of the `nodes`, whose name is `name` and whose operator `op`.
    `rules` and `compiler` are the reasons of a refusal, empty where they take it. `features` are types
    and attributes; of a false accept those that no kind of the operator has which both take, where there
    are such. `own_cpu` is True where the compiler leaves it to a CPU of the device's own. `values` says
    whether what was compiled computes as ONNX says, within the rule file's arithmetic contract, and
    `problem` what is wrong, why it was not run, or what the contract allows of what is right; kinds that
    both take are run if that is asked for.
    """

    model: str
    op: str
    name: str
    nodes: int
    rules: str
    compiler: str
    features: tuple[str, ...]
    own_cpu: bool = False
    values: ValueVerdict = ""
    problem: str = ""

    @property
    def agrees(self) -> bool:
        """Whether both refuse it, or both take it and what it computes is not known to be wrong."""
        return bool(self.rules) == bool(self.compiler) and self.values != "wrong"

    @property
    def false_accept(self) -> bool:
        """Whether the rules take what the compiler refuses."""
        return not self.rules and bool(self.compiler)

    @property
    def false_refusal(self) -> bool:
        """Whether the rules refuse what the compiler takes."""
        return bool(self.rules) and not self.compiler


@dataclass(frozen=True)
class RuleComparison:
    """A rule `file` beside the compiler of a `codegen`, over the `kinds` of nodes of some models."""

    file: str
    codegen: str
    kinds: tuple[ComparedKind, ...]

    @property
    def false_accepts(self) -> list[ComparedKind]:
        """The kinds that the rules take and the compiler refuses."""
        return [kind for kind in self.kinds if kind.false_accept]

    @property
    def false_refusals(self) -> list[ComparedKind]:
        """The kinds that the rules refuse and the compiler takes."""
        return [kind for kind in self.kinds if kind.false_refusal]

    @property
    def wrong(self) -> list[ComparedKind]:
        """The kinds that both take and that compute otherwise than ONNX says."""
        return [kind for kind in self.kinds if kind.values == "wrong"]

    @property
    def allowed(self) -> list[ComparedKind]:
        """The kinds that compute otherwise than ONNX says where the rule file's contract allows it."""
        return [kind for kind in self.kinds if kind.values == "right" and kind.problem]

    @property
    def not_run(self) -> list[ComparedKind]:
        """The kinds that both take and that could not be run."""
        return [kind for kind in self.kinds if kind.values == "not run"]

    @property
    def agrees(self) -> bool:
        """Whether the two agree on every kind, and none computes wrong."""
        return all(kind.agrees for kind in self.kinds)


def compare_rules(  # noqa: PLR0913 - an argument is an option
    rules: str | Path,
    models: Source | Sequence[Source],
    *,
    codegen: str = "",
    codegen_options: Mapping[str, Any] | None = None,
    compiles: bool = False,
    runs: bool = False,
) -> RuleComparison:
    """Hold a rule file to the compiler of a codegen: `byoc rules ask`.

    `rules` is a file or an installed name, `codegen` the one of the rule file unless given, with
    `codegen_options`. Each node of the main graphs of `models` is asked about, with the quantization
    around it; nodes that are alike count once. The codegen's `check` is asked, or, where it has none or
    with `compiles`, each is compiled. Codegens run in processes of their own; one that dies refuses.
    With `runs` each kind that both take is compiled and run on realistic and on special values (ends of
    types, NaN, infinities), and compared with its ONNX under the rule file's arithmetic contract.

    Raises InputError for a model or a rule file that is wrong, and a codegen that cannot be asked, or
    cannot run what it compiles where that is asked for.
    """
    check_type("rules", rules, str | Path)
    check_type("models", models, Source | Sequence[Source])
    # What values a node has is no question of kinds; they are compared as far as is promised.
    target = replace(load_rules(rules), values="assumed")
    name = codegen or target.rules.codegen
    several = models if isinstance(models, Sequence) and not isinstance(models, str) else [models]
    given = {key: str(value) for key, value in (codegen_options or {}).items()}
    found: dict[object, ComparedKind] = {}
    with closing(Codegens(Isolation())) as codegens:
        compiler = load_compilers([target], {target.name: name}, given, codegens)[target.name]
        if runs and not isinstance(compiler.codegen, Executable):
            raise InputError(f"codegen {name} cannot run what it compiles here (it has no `load`)")
        for model in several:
            for key, kind in _compare_model(model, target, compiler, compiles, runs):
                same = found.get(key)
                found[key] = replace(same, nodes=same.nodes + kind.nodes) if same else kind
    if not found:
        names = ", ".join(name_source(model) for model in several)
        raise InputError(f"there is no node to ask about in {names}")
    kinds = tuple(_explain_accepts(list(found.values())))
    return RuleComparison(str(rules), name, kinds)


def _compare_model(
    source: Source, target: Target, compiler: RegionCompiler, compiles: bool, runs: bool
) -> Iterator[tuple[object, ComparedKind]]:
    """Yield the kinds of nodes of a model's main graph, each with a key that alike ones have."""
    model, own = load_units(source, [target])
    verdicts = {
        node: part.verdict
        for unit in own[id(model.index)].units
        for part in unit.on_device[0]
        for node in part.nodes
    }
    wide = _accept_everything(target)
    model, units = load_units(model, [wide])
    index = model.index
    asked = list(find_distinct_units(index, units[id(index)], 0, None))
    with TemporaryDirectory(prefix="byoc-") as folder:
        regions = write_units(model, index, wide, asked, Path(folder)) if asked else []
        answers = _ask(compiler, regions, compiles)
        for each, region, answer in zip(asked, regions, answers, strict=True):
            core = [node for node in each.unit.nodes if not is_qdq_node(index.nodes[node])]
            node = (core or list(each.unit.nodes))[0]
            verdict = verdicts.get(node, Verdict(("it is not placed",)))
            kind = ComparedKind(
                model.source,
                index.nodes[node].op_type,
                get_node_name(index.nodes[node]),
                len(each.nodes),
                "" if verdict else str(verdict) or "it does not say why",
                "" if answer else str(answer),
                tuple(_list_features(index, node)),
                answer.own_cpu,
            )
            if runs and verdict and answer:
                report_step(f"run {kind.op} '{kind.name}'")
                values, problem = _run(compiler, target, region, index, each)
                kind = replace(kind, values=values, problem=problem)
            yield (each.task.key, kind.rules, kind.compiler, kind.own_cpu, kind.problem), kind


def _run(
    compiler: RegionCompiler, target: Target, region: Region, index: GraphIndex, asked: AskedUnit
) -> tuple[ValueVerdict, str]:
    """Run a unit that was written as a region; return what its values are, and why."""
    outer = find_boundary(index, sorted(asked.unit.nodes)).inputs
    named = dict(zip((each.name for each in region.inputs), outer, strict=True))

    def find_ends(name: str, value: Any) -> tuple[float, float]:
        if np.asarray(value).dtype.kind not in "iu":
            return -inf, inf
        found = index.value_ranges.find_interval(named[name])
        return found.low, found.high

    try:
        run = compile_and_load(compiler, region)
        error, notes = compare_unit(region, run, target.arithmetic, find_ends)
    except InputError as failure:
        return "not run", str(failure)
    if error.sample == "none":
        return "not run", "plain onnxruntime does not run it on values made for it alone"
    if not error.within:
        return "wrong", error.description
    return "right", "; ".join(note.removeprefix(f"{region.name}, ") for note in notes)


def _accept_everything(target: Target) -> Target:
    """Return a target that takes any operator, quantized as well where the target has such rules."""
    # The scheme is of the rules: what it does not allow is asked about as well.
    scheme = dict.fromkeys(("activations", "weights", "bias", "scales", "same_scale"))
    quantization = target.rules.quantization.model_copy(update=scheme)
    changed = {"ops": target.unlimited_rules, "composites": (), "quantization": quantization}
    return replace(target, rules=target.rules.model_copy(update=changed))


def _ask(compiler: RegionCompiler, regions: Sequence[Region], compiles: bool) -> list[Verdict]:
    """Return the compiler's verdict on each region."""
    if isinstance(compiler.codegen, Oracle) and not compiles:
        return CompilerAnswers(compiler.codegen, compiler.parsed_options).find_verdicts(regions)
    return [_compile(compiler, region) for region in regions]


def _compile(compiler: RegionCompiler, region: Region) -> Verdict:
    try:
        compiler.compile(region)
    except RefusedError as error:
        return refuse(error.refusals[0].reason or "it does not say why")
    except InputError as error:
        return refuse(str(error))
    return YES


def _list_features(index: GraphIndex, node: int) -> Iterator[str]:
    """Yield a node's attributes, and the types of its inputs, as text."""
    for name, value in index.get_attributes(index.nodes[node]).items():
        if isinstance(value, (int, float, str, bytes, list, tuple)):
            shown = value.decode(errors="replace") if isinstance(value, bytes) else value
            yield f"{name} = {list(shown) if isinstance(shown, tuple) else shown}"
    for number, name in enumerate(index.nodes[node].input):
        kind = index.types.get(name)
        if name and kind is not None:
            yield f"input {number} {kind}"


def _explain_accepts(kinds: Sequence[ComparedKind]) -> Iterator[ComparedKind]:
    """Yield kinds; of false accepts with those features alone that no kind has that both take."""
    taken: dict[str, set[str]] = {}
    for kind in kinds:
        if not kind.rules and not kind.compiler:
            taken.setdefault(kind.op, set()).update(kind.features)
    for kind in kinds:
        known = taken.get(kind.op, set())
        own = tuple(feature for feature in kind.features if feature not in known)
        chosen = own if kind.false_accept and own else kind.features
        yield replace(kind, features=chosen[:_MOST_FEATURES] if kind.false_accept else chosen)
