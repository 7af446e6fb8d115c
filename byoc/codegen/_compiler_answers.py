"""Answers and artifacts of codegens, kept on disk: asked once, made once.

An answer lies under all that an artifact would depend on: the region's content but for names, the
compiler, its options, this machine.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from onnx import ModelProto
from onnx.compose import add_prefix

from byoc._dataclasses import dataclass, field
from byoc.codegen._abilities import Keyed, Measured, Oracle, Stamped, can_estimate
from byoc.codegen._calling import ask_compatible, ask_verdicts, estimate_region, measure_seconds
from byoc.codegen._compiler_identity import describe_compiler
from byoc.codegen._identical_regions import digest_places, digest_regions, region_fingerprint
from byoc.codegen._interface import (
    Artifact,
    Codegen,
    CodegenFailedError,
    CompileError,
    ResourceError,
    to_seconds,
)
from byoc.codegen._isolation import IsolatedCodegen
from byoc.codegen._region import Region
from byoc.errors import ByocError, InputError, Verdict, must_propagate
from byoc.model import GraphIndex, is_inserted
from byoc.support import describe_failure
from byoc.support.cache import Cache, CacheEntry

# Artifacts that are not made twice: neither in one run, nor in the next.
#
# What a codegen made is kept in memory while a model is planned again, and, unless the user or the
# codegen says no, in a cache on disk. There it lies under all that it depends on: the regions with
# the names in them, the compiler, its options, this machine.

_FORMAT = "artifacts 1"


@dataclass(frozen=True, eq=False)
class ArtifactStore:
    """The artifacts of a codegen with parsed options in a cache on disk, its refusals among them."""

    cache: Cache
    codegen: Codegen
    options: Any

    @cached_property
    def _compiler(self) -> str:
        return hash_compiler(self.codegen, self.options)

    @property
    def is_used(self) -> bool:
        """Whether anything is stored of the codegen. Raises CompileError where its `cache_key` fails."""
        return self._compiler != ""

    def find(self, regions: Sequence[Region], digest: str) -> dict[str, Artifact] | None:
        """Return the stored artifacts of regions by name, None where there are none.

        Raises the CompileError that the codegen refused them with, where that is stored.
        """
        for key in self._make_keys(regions, digest):
            entry = self.cache.find(key)
            if entry is None:
                continue
            if "refusal" in entry.facts:
                raise _restore_refusal(entry.facts["refusal"])
            names = [region.name for region in regions]
            found = dict(zip(names, _restore_artifacts(entry), strict=True))
            if self._fits(regions, found):
                return found
        return None

    def add(self, regions: Sequence[Region], digest: str, artifacts: Mapping[str, Artifact]) -> None:
        """Store what one call of the codegen made of regions."""
        made = [artifacts[region.name] for region in regions]
        named = any(mentions(artifact, region.name) for artifact in made for region in regions)
        blobs = [content for artifact in made for content in artifact.files.values()]
        described = [
            {"files": list(artifact.files), "metadata": list(artifact.metadata.items())}
            for artifact in made
        ]
        self._store(regions, digest, named, {"artifacts": described}, blobs)

    def add_refusal(self, regions: Sequence[Region], digest: str, error: CompileError) -> None:
        """Store that the codegen refuses regions; a fault, and what may pass, is not stored."""
        if isinstance(error, CodegenFailedError) or not error.lasting:
            return
        too_large = isinstance(error, ResourceError)
        refusal = {"reason": str(error), "nodes": list(error.nodes), "too_large": too_large}
        named = any(region.name in text for region in regions for text in (str(error), *error.nodes))
        self._store(regions, digest, named, {"refusal": refusal})

    def _store(
        self,
        regions: Sequence[Region],
        digest: str,
        named: bool,
        facts: Mapping[str, Any],
        blobs: Sequence[bytes] = (),
    ) -> None:
        keys = self._make_keys(regions, digest)
        if keys:
            about = {"codegen": self.codegen.name, "regions": [region.name for region in regions]}
            self.cache.store(keys[named], CacheEntry({**about, **facts}, blobs))

    def _make_keys(self, regions: Sequence[Region], digest: str) -> tuple[str, ...]:
        """Return the keys for what goes by no region's own name, and for what does; none of a codegen
        of which nothing is to be stored."""
        if not self._compiler:
            return ()
        names = [region.name for region in regions]
        return tuple(_hash_json([_FORMAT, self._compiler, digest, own]) for own in ([], names))

    def _fits(self, regions: Iterable[Region], artifacts: Mapping[str, Artifact]) -> bool:
        """Return whether a codegen that does not say what it depends on takes artifacts of its own."""
        codegen = self.codegen
        if isinstance(codegen, Keyed) or not isinstance(codegen, Stamped):
            return True
        return all(ask_compatible(codegen, region, artifacts[region.name]) for region in regions)


def hash_compiler(codegen: Codegen, options: Any) -> str:
    """Return a hash of all that artifacts depend on besides regions, "" where nothing is to be stored.

    Raises CompileError, as `compile_region` does, when the codegen's `cache_key` fails.
    """
    if isinstance(codegen, IsolatedCodegen):
        described = codegen.describe_compiler(options)
    else:
        described = describe_compiler(codegen, options)
    own = {(name[4:], value) for name, value in (described or {}).items() if name[:4] == "own "}
    if described is None or own - {*os.environ.items()} or isinstance(codegen, IsolatedCodegen):
        # Only the codegen can say whether that still holds, and what a process of its own reads is not
        # seen here: a command of which it is a part runs anew.
        sys.audit("byoc.asked_elsewhere")
    return "" if described is None else _hash_json(described)


def _restore_artifacts(entry: CacheEntry) -> list[Artifact]:
    blobs = iter(entry.blobs)
    return [
        Artifact({name: next(blobs) for name in each["files"]}, dict(each["metadata"]))
        for each in entry.facts["artifacts"]
    ]


def _restore_refusal(stored: Mapping[str, Any]) -> CompileError:
    kind = ResourceError if stored["too_large"] else CompileError
    return kind(stored["reason"], stored["nodes"])


def _hash_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(eq=False)
class ArtifactCache:
    """The artifacts that one codegen produced with one set of options, in memory and in `store`.

    An artifact is reused for a region that is the same with all names of tensors and nodes; one that
    contains its region's name is reused only for a region of that name; and with `places_count`, only
    where the constants lie in the same files, at the same offsets.
    """

    store: ArtifactStore | None = None
    places_count: bool = False
    _unindexed: list[tuple[Sequence[Region], Mapping[str, Artifact], Region | None]] = field(
        default_factory=list
    )
    _by_digest: dict[str, tuple[list[str], list[Artifact]]] = field(default_factory=dict)

    def add(
        self, regions: Sequence[Region], artifacts: Mapping[str, Artifact], made_of: Region | None = None
    ) -> None:
        """Record the artifacts of one call of the codegen, `made_of` that of another region."""
        if self.store is not None:
            self.store.add(regions, self._digest_call(regions, made_of), artifacts)
        self._unindexed.append((regions, artifacts, made_of))

    def add_refusal(
        self, regions: Sequence[Region], error: CompileError, made_of: Region | None = None
    ) -> None:
        """Record that the codegen refuses regions."""
        if self.store is not None:
            self.store.add_refusal(regions, self._digest_call(regions, made_of), error)

    def index_added(self) -> None:
        """Index the recorded artifacts while the regions' files still exist; they may go afterwards."""
        for regions, artifacts, made_of in self._unindexed:
            names, digest = [region.name for region in regions], self._digest_call(regions, made_of)
            self._by_digest[digest] = names, [artifacts[name] for name in names]
        self._unindexed.clear()

    def find(
        self, regions: Sequence[Region], made_of: Region | None = None
    ) -> dict[str, Artifact] | None:
        """Return the artifacts of an earlier call for the same regions, or None.

        Those that are `made_of` that of another region are found with it alone, so that what is found
        does not depend on what was compiled before.

        Raises the CompileError of an earlier call that `store` has.
        """
        if not self._by_digest and (self.store is None or not self.store.is_used):
            return None
        digest = self._digest_call(regions, made_of)
        found = self._find_in_memory(regions, digest)
        if found is None and self.store is not None:
            found = self.store.find(regions, digest)
            if found is not None:
                self._unindexed.append((regions, found, made_of))
        return found

    def _find_in_memory(self, regions: Sequence[Region], digest: str) -> dict[str, Artifact] | None:
        names, artifacts = self._by_digest.get(digest, ([], []))
        if not names:
            return None
        for name, region in zip(names, regions, strict=True):
            if name != region.name and any(mentions(artifact, name) for artifact in artifacts):
                return None
        return {region.name: made for region, made in zip(regions, artifacts, strict=True)}

    def _digest_call(self, regions: Sequence[Region], made_of: Region | None) -> str:
        """Return the digest of a call's regions, and of the one that their artifacts are made of."""
        digests = [digest_regions(regions)]
        if made_of is not None:
            digests.append(digest_regions([made_of]))
        if self.places_count:
            digests.append(digest_places(regions))
        return " ".join(digests)


def mentions(artifact: Artifact, name: str) -> bool:
    """Return whether a name occurs in an artifact."""
    if any(name in text for pair in artifact.metadata.items() for text in pair):
        return True
    content = name.encode(errors="replace")
    return any(name in file or content in data for file, data in artifact.files.items())


_MAX_BATCH_BYTES = 1 << 28  # of the models of one call: a protobuf holds at most 2 GB


@dataclass(frozen=True)
class RegionTrial:
    """The outcome of compiling and running a region: its problem, or "", and whether that lasts."""

    problem: str = ""
    lasting: bool = True


@dataclass(frozen=True, eq=False)
class CompilerAnswers:
    """The answers of a codegen with parsed options; `cache` keeps them for later programs."""

    codegen: Codegen
    options: Any
    cache: Cache | None = None

    @cached_property
    def _compiler(self) -> str:
        return "" if self.cache is None else hash_compiler(self.codegen, self.options)

    def find_verdicts(self, regions: Sequence[Region]) -> list[Verdict]:
        """Return the verdict on each region: a reason where a node is refused, and on which CPU it runs.

        A region runs on the device's own CPU where a node of it does. What is not known is asked in few
        calls of `check`, many regions in one model. Raises InputError when `check` fails.
        """
        found = [self._find("legality", region) for region in regions]
        unknown = [number for number, answer in enumerate(found) if answer is None]
        for numbers, model, counts in _merge_regions([regions[number] for number in unknown]):
            verdicts = iter(self._check(model))
            for place, counted in zip(numbers, counts, strict=True):
                own = [next(verdicts) for _ in counted]
                heard = [v for v, counts in zip(own, counted, strict=True) if counts]
                wrong = next((str(v) or "it does not say why" for v in heard if not v), "")
                number = unknown[place]
                found[number] = [wrong, not wrong and any(v.own_cpu for v in heard)]
                self._add("legality", regions[number], found[number])
        return [Verdict((reason,) if reason else (), own_cpu) for reason, own_cpu in found]

    def find_trial(self, region: Region, try_region: Callable[[Region], RegionTrial]) -> str:
        """Return the problem of a region that is tried, "" where there is none; kept if it lasts."""
        found = self._find("trial", region)
        if found is None:
            made = try_region(region)
            found = made.problem
            if made.lasting:
                self._add("trial", region, found)
        return str(found)

    @property
    def has_seconds(self) -> bool:
        """Whether the codegen can be asked for seconds, by `estimate` or `cost`."""
        return can_estimate(self.codegen) or isinstance(self.codegen, Measured)

    def find_seconds(self, region: Region, compile_region: Callable[[Region], Artifact]) -> float | None:
        """Return the seconds of a region, None where the codegen refuses to say.

        They are those of `estimate`, for which the region is compiled, or else of `cost`. Raises
        CodegenFailedError when the codegen fails.
        """
        question = "estimate" if can_estimate(self.codegen) else "seconds"
        found = self._find(question, region)
        if found is None:
            try:
                found = self._ask_seconds(region, compile_region)
            except CodegenFailedError:
                raise
            except CompileError as error:
                if not error.lasting:
                    return None
                found = -1.0
            self._add(question, region, found)
        return None if found < 0 else float(found)

    def _ask_seconds(self, region: Region, compile_region: Callable[[Region], Artifact]) -> float:
        if can_estimate(self.codegen):
            artifact = compile_region(region)
            return to_seconds(estimate_region(self.codegen, region, self.options, artifact))
        assert isinstance(self.codegen, Measured)
        return measure_seconds(self.codegen, region)

    def _check(self, model: ModelProto) -> Sequence[Verdict]:
        assert isinstance(self.codegen, Oracle)
        try:
            return ask_verdicts(self.codegen, model, self.options)
        except ByocError as error:
            raise InputError(f"codegen {self.codegen.name} cannot be asked: {error}") from error
        except BaseException as error:  # a plug-in can fail in any way
            if must_propagate(error):
                raise
            said = f"codegen {self.codegen.name} failed when it was asked: {describe_failure(error)}"
            raise InputError(said) from error

    def _find(self, question: str, region: Region) -> Any:
        if not self._compiler or self.cache is None:
            return None
        entry = self.cache.find(self._make_key(question, region))
        return None if entry is None else entry.facts["answer"]

    def _add(self, question: str, region: Region, answer: Any) -> None:
        if self._compiler and self.cache is not None:
            facts = {"codegen": self.codegen.name, "regions": [region.name], "answer": answer}
            self.cache.store(self._make_key(question, region), CacheEntry(facts))

    def _make_key(self, question: str, region: Region) -> str:
        content = f"answer 2 {question} {self._compiler} {region_fingerprint(region)}"
        return hashlib.sha256(content.encode()).hexdigest()


def _merge_regions(
    regions: Sequence[Region],
) -> Iterator[tuple[list[int], ModelProto, list[list[bool]]]]:
    """Yield models of several regions side by side: their numbers, the model, which nodes count.

    Nodes of constants alone and conversions at the boundary do not count: compilers fold the ones, and
    contracts stand for the others.
    """
    numbers: list[int] = []
    merged, counts = ModelProto(), list[list[bool]]()
    for number, region in enumerate(regions):
        model = add_prefix(region.load(), f"r{number}_")
        if numbers and merged.ByteSize() + model.ByteSize() > _MAX_BATCH_BYTES:
            yield numbers, merged, counts
            numbers, merged, counts = [], ModelProto(), []
        numbers.append(number)
        constant = GraphIndex(model, {}).constant_nodes
        counts.append(
            [i not in constant and not is_inserted(node) for i, node in enumerate(model.graph.node)]
        )
        _append(merged, model)
    if numbers:
        yield numbers, merged, counts


def _append(merged: ModelProto, model: ModelProto) -> None:
    """Put a model's graph beside that of another, in place."""
    merged.ir_version = max(merged.ir_version, model.ir_version)
    merged.graph.name = "regions"
    domains = {entry.domain for entry in merged.opset_import}
    merged.opset_import.extend(entry for entry in model.opset_import if entry.domain not in domains)
    known = {(each.domain, each.name, each.overload) for each in merged.functions}
    merged.functions.extend(
        each for each in model.functions if (each.domain, each.name, each.overload) not in known
    )
    for part in ("node", "input", "output", "value_info", "initializer", "sparse_initializer"):
        getattr(merged.graph, part).extend(getattr(model.graph, part))
