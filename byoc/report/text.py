"""The report as text: one line that says it all, a table of regions, the commonest reasons."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from byoc.report.refusals import returned
from byoc.report.units import count, objective_unit, quantity, share

_REASONS = 3
_UNITS = 10
# A share of the whole below which a gain is in the JSON alone.
_WORTH_TELLING = 1e-3


def summary(report: Mapping[str, Any]) -> str:
    """Return the one-line summary of a report."""
    nodes, regions = report["nodes"], len(report["regions"])
    used = {region["device"] for region in report["regions"]}
    target = " and ".join(name for name in report["targets"] if not used or name in used)
    return (
        f"{report['model']}: {nodes['offloaded']} of {count(nodes['total'], 'node')} "
        f"({share(report['compute']['offloaded'])} of the compute) on {target} in "
        f"{count(regions, 'region')}, {nodes['host']} on the host; "
        f"{returned(report.get('refusals', ()))}{_predicted(report['predicted'])}; {_verified(report)}"
    )


def _predicted(predicted: Mapping[str, Any]) -> str:
    """Return what is predicted: joules first where they are the objective, last where they count."""
    seconds = quantity(predicted["seconds"], "s")
    unit, joules = _unit(predicted), predicted.get("joules")
    if unit == "J" and joules is not None:
        alone = predicted.get("host_only_joules")
        told = "" if alone is None else f", host alone {quantity(alone, 'J')}"
        return f"predicted {quantity(joules, 'J')}{told}; {seconds}"
    also = "" if unit or joules is None else f"; {quantity(joules, 'J')}"
    return f"predicted {seconds}, host alone {quantity(predicted['host_only'], 's')}{also}"


def _measured(candidates: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each cut that was tried, the fastest first."""
    for each in sorted(candidates, key=lambda one: (bool(one["problem"]), one["seconds"] or 0.0)):
        if each["problem"]:
            yield f"  {each['strategy']}: {each['problem']}"
            continue
        seconds, spread = quantity(each["seconds"], "s"), quantity(each["spread"], "s")
        yield (
            f"  {each['strategy']}: measured {seconds} (quartiles {spread} apart, "
            f"{count(each['samples'], 'run')}), predicted {quantity(each['predicted'], 's')}"
        )


def _unit(predicted: Mapping[str, Any]) -> str:
    return objective_unit(predicted.get("objective", "latency"))


def print_report(report: Mapping[str, Any], console: Console, every_reason: bool = False) -> None:
    """Print the summary, the regions, and the commonest reasons for staying on the host, or all."""
    shown = len(report["host_reasons"]) if every_reason else _REASONS
    console.print(escape(summary(report)), soft_wrap=True, highlight=False)
    for line in _measured(report.get("measured", ())):
        console.print(escape(line), soft_wrap=True, highlight=False)
    if report["regions"]:
        console.print(_regions(report))
    if report["host_reasons"]:
        console.print("\nOn the host, and why:")
        for item in report["host_reasons"][:shown]:
            line = f"  {item['nodes']:>5}  {item['reason']}"
            console.print(escape(line), soft_wrap=True, highlight=False)
        rest = report["host_reasons"][shown:]
        if rest:
            more = sum(item["nodes"] for item in rest)
            console.print(
                f"  {more:>5}  for {count(len(rest), 'other reason')} (--reasons)", highlight=False
            )
    least = _WORTH_TELLING * report["predicted"]["optimized"]
    gains = [item for item in report["what_if"] if item["gain"] >= least]
    if gains:
        console.print("\nIf it were supported:")
    for item in gains:
        console.print(escape(_what_if(item, report)), soft_wrap=True, highlight=False)
    for line in _budget(report):
        console.print(escape(line), soft_wrap=True, highlight=False)
    for note in report["notes"]:
        line = note if note.startswith("warning: ") else f"note: {note}"
        console.print(escape(line), soft_wrap=True, highlight=False)
    if report["bundle"]:
        console.print(escape(f"\nWritten to {report['bundle']}"), soft_wrap=True, highlight=False)


def _what_if(item: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    saved = quantity(item["gain"], _unit(report["predicted"]))
    where = f" on {item['target']}" if len(report["targets"]) > 1 else ""
    nodes = f" ({count(item['nodes'], 'node')})" if item["nodes"] > 1 else ""
    reason = item["reason"].removeprefix(f"{item['operator']}: ").removeprefix(f"{item['operator']} ")
    return f"  -{saved:<9} {item['operator']}{nodes}{where}: {reason}"


def _regions(report: Mapping[str, Any]) -> Table:
    """Return the table of regions; where some are in bodies, with these and how often they run."""
    inside = any(region["graph"] for region in report["regions"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("region", "device", *(("in",) if inside else ())):
        table.add_column(name, overflow="fold")
    for name in ("nodes", "inputs", "outputs", *(("runs",) if inside else ()), "predicted"):
        table.add_column(name, justify="right")
    for region in report["regions"]:
        table.add_row(
            escape(region["name"]),
            escape(region["device"]),
            *((escape(region["graph"]),) if inside else ()),
            str(region["nodes"]),
            _crossing(region["inputs"]),
            _crossing(region["outputs"]),
            *((f"{region['trips']:g} x",) if inside else ()),
            quantity(region["seconds"], "s"),
        )
    return table


def _crossing(values: list[Mapping[str, Any]]) -> str:
    sizes = [value["bytes"] for value in values]
    known = sum(size for size in sizes if size is not None)
    if None not in sizes:
        return f"{len(values)} ({quantity(known, 'B')})"
    return f"{len(values)} ({quantity(known, 'B')} + unknown)" if known else f"{len(values)} (unknown)"


def _verified(report: Mapping[str, Any]) -> str:
    verification = report["verification"]
    if verification is not None:
        error = verification["largest_relative_error"]
        size = f"{error:.1e}" if error else "0"
        left = _left(verification)
        if " dB " in left and (report["precision"] or {}).get("budget"):
            left += " on the verification's sample"  # the budget was held on others
        return f"verified, largest error {size} of the output's range{left}"
    return f"not verified: {report['not_verified']}"


def _left(verification: Mapping[str, Any]) -> str:
    """Return what lower precision left of the original's accuracy, the worst output's."""
    accuracy = verification["accuracy"]
    if accuracy is None:
        return ""
    known = [output["signal_to_noise"] for output in accuracy["outputs"]]
    worst = min((ratio for ratio in known if ratio is not None), default=None)
    if worst is None:
        exact = all(output["exact"] for output in accuracy["outputs"])
        return f"; equal to {accuracy['original']}" if exact else ""
    return f"; {worst:.1f} dB of {accuracy['original']} left"


def _budget(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what an accuracy budget left in floating point, and what each unit would have cost."""
    precision = report["precision"]
    if precision is None or precision["budget"] is None:
        return
    snr = not precision["budget"].startswith("top1")

    def told(value: float | None) -> str:
        if value is None:
            return "all"
        return f"{value:.1f} dB" if snr else f"{100 * value:.1f} % of classes"

    seen = f"{count(precision['measured'], 'sample')} of {precision['measured_on']}"
    yield (
        f"\nAccuracy budget {precision['budget']}: {told(precision['reached'])} kept on {seen}, "
        f"{told(precision['all_quantized'])} with all quantized"
    )
    if not precision["units"]:
        used = " and ".join(dict.fromkeys(region["device"] for region in report["regions"]))
        floats = f": what is on {used} computes in floating point" if used else ""
        yield f"  nothing is quantized any more{floats}"
    elif not precision["on_accelerators"]:
        yield "  nothing that is quantized is on an accelerator: the host computes all of it in floats"
    for unit in precision["in_float"][:_UNITS]:
        yield f"  in floating point on {unit['device']}: {unit['unit']}, alone {told(unit['alone'])}"
    more = len(precision["in_float"]) - _UNITS
    if more > 0:
        yield f"  and {count(more, 'more unit')}"
