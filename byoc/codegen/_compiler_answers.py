"""The answers of codegens that are asked about regions before anything is compiled, kept on disk.

An answer lies under all that an artifact would depend on: the region's content but for names, the
compiler, its options, this machine.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onnx import ModelProto
from onnx.compose import add_prefix

from byoc.cache import Cache, CacheEntry
from byoc.codegen._abilities import Measured, Oracle, can_estimate
from byoc.codegen._artifact_cache import hash_compiler
from byoc.codegen._calling import ask_verdicts, estimate_region, measure_seconds
from byoc.codegen._identical_regions import region_fingerprint
from byoc.codegen._interface import Artifact, Codegen, CompileError, to_seconds
from byoc.codegen._refusals import CodegenFailedError
from byoc.codegen._region import Region
from byoc.errors import ByocError, InputError, Verdict, must_propagate
from byoc.model import GraphIndex, is_inserted
from byoc.support import describe_failure

_MAX_BATCH_BYTES = 1 << 28  # of the models of one call: a protobuf holds at most 2 GB


@dataclass(frozen=True, eq=False)
class CompilerAnswers:
    """The answers of a codegen with parsed options; `cache` keeps them for later programs."""

    codegen: Codegen
    options: Any
    cache: Cache | None = None

    @cached_property
    def _compiler(self) -> str:
        return "" if self.cache is None else hash_compiler(self.codegen, self.options, self.cache)

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
    for field in ("node", "input", "output", "value_info", "initializer", "sparse_initializer"):
        getattr(merged.graph, field).extend(getattr(model.graph, field))
