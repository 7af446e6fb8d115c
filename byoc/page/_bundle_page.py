"""The page of a bundle, from what it holds, or of a plan."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from byoc.bundle import Bundle, RegionEntry, Report, open_bundle
from byoc.errors import InputError
from byoc.page._page_file import PageParts, render_page
from byoc.page._trace_file import read_trace
from byoc.planning import Plan
from byoc.reporting import make_decision_document

_MOST_LAYERS = 2_000
_MAX_LAYER_BYTES = 1 << 24


class _Layer(BaseModel):
    """A layer of a compiled region, as its codegen states it in a JSON file of the artifact."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    name: str
    operation: str = ""
    cycles: Annotated[int, Field(ge=0)]


class _Layers(BaseModel):
    """A JSON file of an artifact that has layers; other keys are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    layers: tuple[_Layer, ...]


def make_page(bundle: Bundle | str | Path, trace: str | Path | None = None) -> str:
    """Return the page of a `bundle`, or of the one at a path, as HTML.

    `trace` is a file that `byoc run --trace` wrote: its timeline is drawn, and measured seconds stand
    beside predicted ones.

    Raises InputError when one of them cannot be read, or the bundle holds no decisions.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    decisions = opened.decisions()
    if decisions is None:
        raise InputError(
            f"{opened.display_path}: holds no decisions.json.gz, since an older byoc wrote it or it has "
            "too many nodes: partition the model again with --html"
        )
    parts = PageParts(
        report=opened.variant.report,
        decisions=decisions,
        trace=None if trace is None else read_trace(Path(trace)),
        layers=dict(_find_layers(opened)),
        is_compiled=True,
        codegens={entry.name: entry.codegen for entry in opened.variant.regions},
    )
    return render_page(parts)


def make_plan_page(plan: Plan, report: Report) -> str:
    """Return the page of a plan, of which no bundle was written, as HTML.

    It has no layouts and scales of boundary tensors: contracts are known once regions are compiled.
    """
    return render_page(PageParts(report, make_decision_document(plan)))


def _find_layers(bundle: Bundle) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield each region whose codegen states the cycles of its layers, with these layers."""
    entries = {entry.name: entry for entry in bundle.manifest.regions}
    known: dict[str, list[Mapping[str, Any]]] = {}
    for entry in bundle.variant.regions:
        own = entries.get(entry.same_as, entry)
        if own.name not in known:
            known[own.name] = _read_layers(bundle, own)
        if known[own.name]:
            yield entry.name, known[own.name]


def _read_layers(bundle: Bundle, entry: RegionEntry) -> list[Mapping[str, Any]]:
    """Return the layers in a region's artifact; none where no file of it states layers with cycles."""
    for path in entry.artifact_files.values():
        if not path.endswith(".json") or bundle.manifest.files[path].bytes > _MAX_LAYER_BYTES:
            continue
        try:
            found = _Layers.model_validate_json((bundle.folder / path).read_bytes())
        except (ValidationError, OSError):
            continue  # a file in another format
        return [layer.model_dump() for layer in found.layers[:_MOST_LAYERS]]
    return []
