"""The report as text: a summary line, a table of regions, and the commonest reasons."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from byoc.report.units import count, objective_unit, quantity, share

_REASONS = 3
_UNITS = 10
# Gains below this share of the objective are in the JSON only.
_LEAST_GAIN = 1e-3


def summary(report: Mapping[str, Any]) -> str:
    """Format the one-line summary of a report."""
    nodes, regions = report["nodes"], len(report["regions"])
    used = {region["device"] for region in report["regions"]}
    target = " and ".join(name for name in report["targets"] if not used or name in used)
    return (
        f"{report['model']}: {nodes['offloaded']} of {count(nodes['total'], 'node')} "
        f"({share(report['compute']['offloaded'])} of the compute) on {target} in "
        f"{count(regions, 'region')}, {nodes['host']} on the host; "
        f"{_returned(report.get('refusals', ()))}{_predicted(report['predicted'])}; {_verified(report)}"
    )


def _returned(refusals: Sequence[Mapping[str, Any]]) -> str:
    """Format the number of nodes that went back to the host, and why, with `; ` at the end."""
    back = [each for each in refusals if each["host"]]
    if not back:
        return ""
    reasons = dict.fromkeys(f"codegen {each['codegen']}: {each['reason']}" for each in back)
    first, *others = reasons
    more = f", and {count(len(others), 'other reason')}" if others else ""
    nodes = count(sum(each["host"] for each in back), "node")
    return f"{nodes} went back to the host: {first}{more}; "


def _predicted(predicted: Mapping[str, Any]) -> str:
    """Format the prediction: joules first if they are the objective, last if they are known."""
    seconds = quantity(predicted["seconds"], "s")
    unit, joules = _unit(predicted), predicted.get("joules")
    if unit == "J" and joules is not None:
        alone = predicted.get("host_only_joules")
        host = "" if alone is None else f", host alone {quantity(alone, 'J')}"
        return f"predicted {quantity(joules, 'J')}{host}; {seconds}"
    also = "" if unit or joules is None else f"; {quantity(joules, 'J')}"
    return f"predicted {seconds}, host alone {quantity(predicted['host_only'], 's')}{also}"


def _measured(candidates: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each placement that was measured, the fastest first."""
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
    """Print the summary, the regions, and the commonest (or all) reasons for staying on the host."""

    def print_lines(lines: Iterable[str]) -> None:
        for line in lines:
            console.print(escape(line), soft_wrap=True, highlight=False)

    print_lines((summary(report), *_measured(report.get("measured", ()))))
    if report["regions"]:
        console.print(_regions(report))
    print_lines(_host_reasons(report["host_reasons"], every_reason))
    print_lines(_what_ifs(report))
    print_lines(_budget(report))
    print_lines(n if n.startswith("warning: ") else f"note: {n}" for n in report["notes"])
    if report["bundle"]:
        print_lines([f"\nWritten to {report['bundle']}"])


def _host_reasons(reasons: Sequence[Mapping[str, Any]], every_reason: bool) -> Iterator[str]:
    shown = len(reasons) if every_reason else _REASONS
    if reasons:
        yield "\nOn the host, and why:"
    for item in reasons[:shown]:
        yield f"  {item['nodes']:>5}  {item['reason']}"
    if rest := reasons[shown:]:
        nodes = sum(item["nodes"] for item in rest)
        yield f"  {nodes:>5}  for {count(len(rest), 'other reason')} (--reasons)"


def _what_ifs(report: Mapping[str, Any]) -> Iterator[str]:
    least = _LEAST_GAIN * report["predicted"]["optimized"]
    gains = [item for item in report["what_if"] if item["gain"] >= least]
    if gains:
        yield "\nIf it were supported:"
    for item in gains:
        yield _what_if(item, report)


def _what_if(item: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    saved = quantity(item["gain"], _unit(report["predicted"]))
    where = f" on {item['target']}" if len(report["targets"]) > 1 else ""
    nodes = f" ({count(item['nodes'], 'node')})" if item["nodes"] > 1 else ""
    reason = item["reason"].removeprefix(f"{item['operator']}: ").removeprefix(f"{item['operator']} ")
    return f"  -{saved:<9} {item['operator']}{nodes}{where}: {reason}"


def _regions(report: Mapping[str, Any]) -> Table:
    """Make the table of regions; if some are in bodies, with their paths and trip counts."""
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
    """Format the accuracy that lower precision left of the original's, for the worst output."""
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
    """Yield the units that an accuracy budget left in floating point, with their accuracy."""
    precision = report["precision"]
    if precision is None or precision["budget"] is None:
        return
    snr = not precision["budget"].startswith("top1")

    def accuracy(value: float | None) -> str:
        if value is None:
            return "all"
        return f"{value:.1f} dB" if snr else f"{100 * value:.1f} % of classes"

    seen = f"{count(precision['measured'], 'sample')} of {precision['measured_on']}"
    yield (
        f"\nAccuracy budget {precision['budget']}: {accuracy(precision['reached'])} kept on {seen}, "
        f"{accuracy(precision['all_quantized'])} with all quantized"
    )
    if not precision["units"]:
        used = " and ".join(dict.fromkeys(region["device"] for region in report["regions"]))
        floats = f": what is on {used} computes in floating point" if used else ""
        yield f"  nothing is quantized any more{floats}"
    elif not precision["on_accelerators"]:
        yield "  nothing that is quantized is on an accelerator: the host computes all of it in floats"
    for unit in precision["in_float"][:_UNITS]:
        yield f"  in floating point on {unit['device']}: {unit['unit']}, alone {accuracy(unit['alone'])}"
    more = len(precision["in_float"]) - _UNITS
    if more > 0:
        yield f"  and {count(more, 'more unit')}"
