"""Loading a bundle: its regions by their codegens, and of its variants those that serve all inputs."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from byoc.bundle import (
    MANIFEST_FILE,
    Bundle,
    VariantEntry,
    check_padding,
    check_split,
    judge_consent,
    open_bundle,
    require_consent,
)
from byoc.codegen import (
    BindableExecutor,
    Codegens,
    Executor,
    OperatorTime,
    Region,
    StatefulExecutor,
    can_profile,
    choose_isolation,
    open_region_session,
    profile_region,
    resolve_node_names,
)
from byoc.errors import InputError, MissingRuntimeError, Verdict, get_error_text, refuse
from byoc.model import (
    GraphIndex,
    TensorType,
    get_metadata,
    get_node_name,
    get_stated_types,
    read_tensor_types,
    write_type,
)
from byoc.onnxrt import (
    describe_machine,
    find_inexact_kernels,
    sharing_process,
    with_default_mode,
    with_threads,
)
from byoc.padding import PaddingRule, RowSplit
from byoc.runtime._executors import (
    RegionFailedError,
    RegionNotHereError,
    find_executable,
    load_executor,
    needs_exclusive_calls,
    rename_executor,
)
from byoc.runtime._fitting import (
    NO_CHANGES,
    LoadChanges,
    Preference,
    VariantChoice,
    choose_variants,
    find_variant_fit,
)
from byoc.runtime._program_builder import ProgramBuilder, data_inputs
from byoc.runtime._session import Session
from byoc.runtime._stage_program import HOST, Profile, Stage, StageValues
from byoc.runtime._variant_session import VariantSession
from byoc.support import collect_rarely


def load_bundle(
    bundle: Bundle,
    runs: Mapping[str, Executor] | None = None,
    *,
    fall_back: bool = False,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Session:
    """Load an opened bundle, or the variant that is chosen of it, to run it; raises as `load` does.

    `runs` maps the regions' names to executors; by default their codegens load them (`load_executors`).
    With `fall_back` the regions that these do not load run on the host (`Session.fallbacks`). `options`
    are those of `load`.
    """
    changes = LoadChanges.read(options, bundle)
    with nullcontext() if changes.threads is None else with_threads(changes.threads):
        return _load_changed(bundle, runs, fall_back, changes)


def _load_changed(
    bundle: Bundle, runs: Mapping[str, Executor] | None, fall_back: bool, changes: LoadChanges
) -> Session:
    proto = bundle.model()
    index = GraphIndex.of_model(proto)
    found = bundle.regions()
    fallbacks: dict[str, str] = {}
    given = runs
    if given is None:
        given = load_executors(bundle, fallbacks if fall_back else None, fall_back, changes)
    if fallbacks:
        with with_default_mode(bundle.manifest.host.mode):
            own = {region.name: region for _, region, _ in found if region.name in fallbacks}
            given = {**given, **{name: open_region_session(each) for name, each in own.items()}}
    turns = {name: _exclusive_group(name, bundle.codegens) for name in {name for name, _, _ in found}}
    regions: dict[str, Stage] = {}
    for codegen, region, _ in found:
        stage = _region_stage(region, given[region.name], turns[codegen])
        if region.name in fallbacks:
            stage = replace(stage, device=HOST, exclusive_group="")
        elif runs is None:
            stage = replace(stage, profile=_find_profiler(bundle, region, codegen))
        regions[region.name] = stage
    _check_calls(bundle, index.walk(), regions)
    with sharing_process(2 * len(found) + 1), with_default_mode(bundle.manifest.host.mode):
        checked = {name: index.type_protos[name] for name in index.inputs if name in index.types}
        builder = ProgramBuilder(bundle.folder, regions, _region_domains(bundle), checked)
        program = builder.build_program(index, {})
    types = {name: index.types[name] for name in index.inputs if name in index.types}
    return Session(tuple(index.inputs), types, program, bundle, bundle.variant.name, fallbacks)


def describe_other_kernels(bundle: Bundle) -> str:
    """Return a sentence where this machine multiplies small integers otherwise than the bundle's maker.

    Empty where it does not, or the bundle has no such products.
    """
    host = bundle.manifest.host
    if host.inexact is None:
        return ""
    here = find_inexact_kernels()
    changed = sorted({*here} ^ {*host.inexact})
    if not changed:
        return ""
    return (
        f"{describe_machine()} multiplies small integers otherwise ({changed[0]}"
        f"{f' and {len(changed) - 1} more' if len(changed) > 1 else ''}) than where the bundle was made "
        f"({host.machine}): `byoc verify {bundle.display_path}` says whether it is right here"
    )


def load_executors(
    bundle: Bundle,
    not_here: dict[str, str] | None = None,
    whatever: bool = False,
    changes: LoadChanges = NO_CHANGES,
) -> dict[str, Executor]:
    """Load all regions by their codegens; return the executors by name. Raises as `load` does.

    Regions that this machine cannot run are left out, and their reasons entered in `not_here`; without
    that the first of them raises RegionNotHereError. With `whatever` all are that do not load: their
    codegen or its runtime is not installed, or it fails. `changes` are of options that are given now.
    """
    require_consent(bundle, without_missing=whatever)
    found = bundle.regions()
    twins = bundle.identical_regions
    options = {entry.name: entry.codegen_options for entry in bundle.manifest.regions}
    mode = bundle.manifest.host.mode
    loaded: dict[str, tuple[Region, Executor]] = {}
    left_out: dict[str, str] = {}
    runs: dict[str, Executor] = {}
    caught = (InputError, MissingRuntimeError) if whatever else RegionNotHereError
    for name, region, artifact in found:
        first = twins.get(region.name, region.name)
        if first not in loaded and first not in left_out:  # once for all that are identical
            own = region if first == region.name else bundle.open_compiled(first)[1]
            chosen, again = changes.change(region.target, options[first]), not bundle.just_compiled
            metadata = changes.change(region.target, artifact.metadata)
            try:
                codegen = find_executable(name, bundle.codegens)
                with sharing_process(2 * len(found) + 1), with_default_mode(mode):
                    changed = replace(artifact, metadata=metadata)
                    run = load_executor(codegen, name, own, changed, chosen, again)
            except caught as error:
                if not_here is None:
                    raise
                reason = getattr(error, "reason", "")  # without the names of codegen and region
                left_out[first] = reason or get_error_text(error)
            else:
                loaded[first] = own, run
        if first in left_out:
            assert not_here is not None
            not_here[region.name] = left_out[first]
        else:
            own, of_first = loaded[first]
            runs[region.name] = of_first if own is region else rename_executor(of_first, own, region)
    return runs


def _check_calls(bundle: Bundle, graphs: Iterable[GraphIndex], regions: Mapping[str, Stage]) -> None:
    """Raise InputError unless model and manifest agree on the regions and their inputs."""
    domains = _region_domains(bundle)
    calls = [(g, node) for g in graphs for node in g.nodes if node.domain.startswith("byoc.")]
    if {n.op_type for _, n in calls} != set(regions) or any(n.domain not in domains for _, n in calls):
        raise InputError(
            f"{bundle.display_path}: the manifest and the model do not name the same regions"
        )
    for graph, node in calls:
        region = regions[node.op_type]
        given = (len(data_inputs(graph, node)), len(node.output))
        if given != (len(region.inputs), len(region.types)):
            raise InputError(
                f"{bundle.display_path}: region {node.op_type} and the model do not have the same inputs"
            )


def _region_domains(bundle: Bundle) -> frozenset[str]:
    return frozenset(f"byoc.{name}" for name in bundle.manifest.targets)


def _exclusive_group(codegen: str, codegens: Codegens) -> str:
    try:
        return codegen if needs_exclusive_calls(codegens.find(codegen)) else ""
    except InputError:  # it is not installed: its regions run on executors from elsewhere
        return codegen


def _find_profiler(bundle: Bundle, region: Region, name: str) -> Profile | None:
    """Return the function that profiles a region, None where its codegen cannot.

    The artifact is read when it is needed, since few runs are profiled.
    """
    codegen = bundle.codegens.find(name)
    if not can_profile(codegen):
        return None

    def profile(inputs: StageValues) -> list[OperatorTime]:
        first = bundle.identical_regions.get(region.name, region.name)
        _, own, artifact = bundle.open_compiled(first)
        given = zip(own.inputs, region.inputs, strict=True)
        renamed = {theirs.name: inputs[mine.name] for theirs, mine in given}
        times = profile_region(codegen, own, artifact, renamed)
        nodes = _find_user_nodes(own, region)
        return [replace(each, nodes=_name_nodes(own, each.nodes, nodes)) for each in times]

    return profile


def _name_nodes(
    own: Region, names: Sequence[str], nodes: Mapping[str, Sequence[str]]
) -> tuple[str, ...]:
    known = resolve_node_names(own, names)
    return tuple(dict.fromkeys(node for name in known for node in nodes.get(name, (name,))))


def _find_user_nodes(own: Region, region: Region) -> dict[str, Sequence[str]]:
    """Return the nodes of the model by the names that nodes of `own` go by.

    `own` is the region or one that is the same but for names. A composite stands for several nodes.
    """
    found: dict[str, Sequence[str]] = {}
    for mine, theirs in zip(own.nodes, region.nodes, strict=True):
        inside = get_metadata(theirs, "byoc.nodes")
        nodes = inside.split(", ") if inside else [get_node_name(theirs)]
        found |= dict.fromkeys(filter(None, (mine.name, *mine.output)), nodes)
    return found


def _region_stage(region: Region, run: Executor, turn: str) -> Stage:
    types = {value.name: write_type(value.type) for value in region.outputs}
    inputs = tuple(value.name for value in region.inputs)
    return Stage(
        region.name,
        inputs,
        run,
        types,
        device=region.target,
        exclusive_group=turn,
        bind=run.bind if isinstance(run, BindableExecutor) else None,
        allocate=run.allocate if isinstance(run, StatefulExecutor) else None,
    )


# The variants of a bundle.


def load(  # noqa: PLR0913 - each has a default
    path: str | Path,
    *,
    isolate: bool | None = None,
    call_timeout: float | None = None,
    trust: bool = False,
    codegens: Iterable[str] | str | None = None,
    variant: str | None = None,
    pad: bool = True,
    prefer: Sequence[str] | str = (),
    options: Mapping[str, Any] = MappingProxyType({}),
    fallback: Literal["host"] | None = None,
) -> Session | VariantSession:
    """Load the bundle at `path`, a folder or a packed file, to run it.

    Where it has several variants, each call chooses one by the shapes of its inputs, unless one
    `variant` is named. With `pad` inputs that fit none exactly are padded where a variant allows it.

    Of variants for other accelerators that take the same inputs one is loaded: the first that runs here
    by `prefer`, names of variants, targets or codegens, the best first (`host`: one that is on the host
    alone), and of those that it does not name by the predicted time. `choice` of the session says which,
    and why not the others; `find_fitting` says it without loading.

    `options` are given to codegens now instead of when the bundle was made, where they allow that:
    `{"threads": 4}` for all that have it, the host included, `{"openvino:threads": 4}` for one codegen
    or target, `{"host:threads": 4}` for the host.

    With `isolate` its codegens run in processes of their own: where one crashes or hangs, that is an
    InputError. By default they do unless its maker is trusted, as below. `call_timeout` is the most
    seconds that one of their calls may take, and implies it.

    A bundle with native code is loaded only where its maker is trusted: made on this machine, signed by
    a key that the user trusts, or with `trust`. `codegens` names those that may load its regions.

    With a `fallback`, "host", a region that its codegen does not load here (device, codegen or its
    runtime is missing, or fails) runs on the host instead, from its ONNX in the bundle: a warning
    (RuntimeWarning) says so for each, and `fallbacks` of the session has the reasons.

    Raises InputError when it is not a complete bundle or not trusted, or a codegen is missing, not
    allowed or cannot run artifacts, where none of several alternatives runs here, for a preference that
    the bundle has not got and an option that nothing takes at load. Raises MissingRuntimeError when the
    host needs onnxruntime and it is not installed. Warns (RuntimeWarning) where products of small
    integers come out otherwise here than where the bundle was made and verified.
    """
    if fallback not in (None, "host"):
        raise InputError(f"fallback is {fallback!r}, and may be 'host' or None")
    isolation = choose_isolation(isolate, call_timeout)
    with collect_rarely():  # manifests and models are many objects, and none of them is garbage
        bundle = open_bundle(
            path, isolation, trust=trust, codegens=codegens, variant=variant, hash_artifacts=False
        )
        if variant is not None and prefer:
            raise InputError(f"{path}: variant {variant} is named, so that there is nothing to prefer")
        load_one = partial(load_bundle, options=options)
        loaded = load_variants(
            bundle, pad=pad, load_one=load_one, prefer=prefer, fall_back=fallback is not None
        )
    for line in loaded.describe_fallbacks():
        warnings.warn(line, RuntimeWarning, stacklevel=2)
    other = describe_other_kernels(bundle)
    if other:
        warnings.warn(other, RuntimeWarning, stacklevel=2)
    return loaded


def load_variants(
    bundle: Bundle,
    *,
    pad: bool = True,
    load_one: Callable[..., Session] = load_bundle,
    prefer: Sequence[str] | str = (),
    fall_back: bool = False,
) -> Session | VariantSession:
    """Load an opened bundle to run it: all its variants, but of alternatives one; raises as `load`.

    A single variant is loaded as a plain session, unless `pad` is given and inputs may be padded to it.
    `load_one` loads each, and gets `fall_back=True` where what does not run here is to run on the host:
    of alternatives that is the last resort.
    """
    last_resort = partial(load_one, fall_back=True) if fall_back else load_one
    if bundle.chosen is not None:
        return replace(last_resort(bundle), choice=VariantChoice((bundle.chosen,)))
    preferred = Preference.of(prefer, bundle.manifest, bundle.display_path)
    sessions: dict[str, Session] = {}
    # What fails is a fault to tell of, unless the user asked to go on without it.
    failing = (RegionFailedError,) if fall_back else ()
    left_out = (RegionNotHereError, MissingRuntimeError, *failing)

    def judge(entry: VariantEntry) -> Verdict:
        """Return whether a variant runs here: what it says fits, and is loaded."""
        verdict = find_variant_fit(bundle.manifest, entry, bundle.codegens).verdict
        if verdict:
            try:
                sessions[entry.name] = load_one(bundle.choose(entry.name))
            except left_out as error:
                return refuse(get_error_text(error))
        return verdict

    choice = choose_variants(
        bundle.manifest,
        preferred,
        judge,
        lambda entry: judge_consent(bundle.choose(entry.name), without_missing=True),
        fall_back,
    )
    variants = [bundle.choose(name) for name in choice.chosen] if choice.reasons else bundle.variants
    paddings = read_paddings(variants) if pad else {}
    if len(variants) == 1 and not paddings:
        name = choice.chosen[0]
        found = sessions[name] if name in sessions else last_resort(variants[0])
        return replace(found, choice=choice)
    whole = {
        name: replace(sessions[name] if name in sessions else last_resort(each), choice=choice)
        for each in variants
        for name in [each.variant.name]
    }
    return VariantSession(whole, bundle, paddings, read_split(variants[0]) if pad else None)


def read_split(bundle: Bundle) -> RowSplit | None:
    """Return the split of batches that a variant of a bundle has, None where there is none.

    Raises InputError where that does not fit the variant's model.
    """
    entry = bundle.variant.split
    if entry is None:
        return None
    check_split(entry, *_read_types(bundle), bundle.display_path / MANIFEST_FILE)
    return entry.split


def _read_types(bundle: Bundle) -> tuple[dict[str, TensorType | None], dict[str, TensorType | None]]:
    """Return the types of a variant's inputs and outputs."""
    model = bundle.model()
    types = read_tensor_types(get_stated_types(model))
    given, made = (
        {value.name: types.get(value.name) for value in values}
        for values in (model.graph.input, model.graph.output)
    )
    return given, made


def read_paddings(variants: Iterable[Bundle]) -> dict[str, PaddingRule]:
    """Return the rules of variants of a bundle whose inputs may be padded, by name.

    Raises InputError where one does not fit the variant's model.
    """
    found = {}
    for each in variants:
        entry = each.variant.padding
        rule = None if entry is None else entry.rule
        if entry is None or rule is None:
            continue
        check_padding(entry, *_read_types(each), each.display_path / MANIFEST_FILE)
        found[each.variant.name] = rule
    return found
