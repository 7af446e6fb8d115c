"""The memory report as data, printed by `byoc plan-memory --format json`. All sizes are in bytes."""

from typing import Any

from byoc.memory.reading import CONVENTIONS
from byoc.memory.report._memory_picture import find_shown_ranges
from byoc.memory.report._memory_report import STRIPED_COUNTS, MemoryReport, ReportRow
from byoc.memory.report._striped_report import StripedModel
from byoc.memory.scratchpad import ScratchpadPlan

Document = dict[str, Any]


def describe_conventions() -> dict[str, str]:
    """Describe each convention, by letter."""
    return {letter: str(convention) for letter, convention in CONVENTIONS.items()}


def build_memory_document(report: MemoryReport, size: int | None = None) -> Document:
    """Return a report as data that JSON can represent: all ways to plan, and the plan asked for.

    With `size`, in bytes, each row tells whether its arena fits.
    """
    return {
        "name": report.name,
        "rows": [_build_row(row, size) for row in report.rows],
        "plan": _build_plan(report),
        "striped": None if report.striped is None else _build_striped(report.striped),
        "levels": None if report.scratchpad is None else _build_scratchpad(report.scratchpad),
        "notes": list(report.notes),
    }


def _build_row(row: ReportRow, size: int | None) -> Document:
    """Return one way to plan; `ratio` is arena over bound, None if both are 0.

    Striped execution has no bound of its own, hence neither `ratio` nor `proof`; `of_c_bound` is its
    arena over the bound of convention C, None for all others.
    """
    return {
        "name": row.name,
        "convention": row.convention,
        "method": row.method,
        "arena": row.size,
        "bound": row.bound,
        "ratio": row.ratio,
        "proof": row.proof,
        "of_c_bound": row.ratio_to_c,
        "fits": None if size is None else row.size <= size,
    }


def _build_striped(made: StripedModel) -> Document:
    """Return the striped execution: what counts, the layers of each cascade, bands, and windows.

    `live` is the peak of the bytes in use, scratch included. Row `r` of the `rows` of a tensor is at
    `offset + (r % window) * row_bytes`.
    """
    plan = made.plan
    return {
        "counts": STRIPED_COUNTS,
        "arena": plan.size,
        "live": plan.live,
        "cascades": [list(group) for group in plan.groups],
        "bands": len(plan.bands),
        "places": [
            {"tensor": tensor.name, **vars(plan.places[tensor.name]), "rows": tensor.rows}
            for tensor in made.model.tensors
        ],
    }


_TRAFFIC = ("moved", "bound", "loads", "loaded", "stores", "stored", "streamed", "unkept", "arena")


def _build_scratchpad(levels: ScratchpadPlan) -> Document:
    """Return the bytes that move between a scratchpad of `size` bytes and system memory.

    `loaded` and `stored` are whole buffers, `loads` and `stores` their number; `streamed` passes through
    in pieces. `bound` is a lower bound for this order; `unkept` moves if nothing is kept. `arena` are
    the bytes of system memory.
    """
    traffic = {name: getattr(levels, name) for name in _TRAFFIC}
    return {"size": levels.size, "proven": levels.moved == levels.bound, **traffic}


def _build_plan(report: MemoryReport) -> Document:
    """Return the plan asked for; `links` are names of buffers that are adjacent.

    `witness` is the step of the minimum cut that proves the bound, if one does. A buffer is live from
    `first` to `last`, positions of the order from 0 on, and overwrites the buffer `over`. A step needs
    `scratch` bytes at `scratch_offset` while it runs.
    """
    plan, model = report.plan, report.model
    problem = plan.problem
    return {
        "convention": model.convention.name,
        "counts": str(model.convention),
        "alignment": problem.alignment,
        "arena": plan.size,
        "bound": plan.bound,
        "proof": plan.proof,
        "witness": None if plan.witness is None else problem.steps[plan.witness].name,
        "minimal": plan.is_minimal,
        "steps": [
            {
                "name": problem.steps[step].name,
                "nodes": list(model.nodes[step]),
                "scratch": problem.steps[step].scratch,
                "scratch_offset": plan.scratch[step],
            }
            for step in plan.order
        ],
        "buffers": [
            {
                "name": problem.names[buffer],
                "tensors": list(model.tensors_of[buffer]),
                "offset": plan.offsets[buffer],
                "bytes": problem.sizes[buffer],
                "first": first,
                "last": last,
                "over": None if under is None else problem.names[under],
            }
            for buffer, ((first, last), under) in enumerate(
                zip(find_shown_ranges(plan), plan.overwrites, strict=True)
            )
        ],
        "links": [[problem.names[buffer] for buffer in row] for row in problem.links],
    }
