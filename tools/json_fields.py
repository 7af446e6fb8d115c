"""Write docs/json.md: the fields of what each verb prints with `--format json`.

Documents that are objects of a class are described by it: its docstring and the types of its fields. The
others are described in `DOCUMENTS`, and tests/docs/test_json_page.py holds these rows to what the verbs
print. Run it as `python tools/json_fields.py` after a change of such a class.
"""

import collections.abc
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from byoc.bundle import Manifest, Report
from byoc.bundle._manifest import FileEntry
from byoc.bundle._ort_package import ExportedPackage
from byoc.comparison import PlacementDiff
from byoc.comparison._rule_comparison import RuleComparison
from byoc.passes import PassEffect
from byoc.reporting import RuleCheck
from byoc.reporting._explanation_document import ExplanationDocument
from byoc.reporting._verification_document import (
    FaultReport,
    FullVerificationReport,
    GenerationReport,
    RegionErrorReport,
)
from byoc.standalone import ExportedProgram, ProgramVerification
from byoc.zoo import FetchResult

PAGE = Path(__file__).parents[1] / "docs" / "json.md"

_HEAD = """\
# Fields of JSON

*Reference.* The output of each verb with `--format json`. `python tools/json_fields.py` writes this
page from the declarations in the code, and a test holds it to what the verbs print.

Every verb prints one document. Times are in seconds, energy is in joules, sizes are in bytes. A number
that is unknown or not finite is `null`. Objects of classes leave out some fields that would be empty.
Later versions may add fields, and remove none without notice ([stability.md](stability.md)).
[`byoc inspect --schema`](bundle.md) prints the JSON Schema of manifests.
"""


@dataclasses.dataclass(frozen=True)
class Document:
    """What a verb prints: an object of a class, with `fields` beside its own, or these fields alone.

    `is_list` says that it prints a list of such objects; `note` is a sentence on when it prints it.
    """

    kind: type | None = None
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_list: bool = False
    note: str = ""


_OPTIONS = (
    "list of the options of the plug-in: `name`, `default`, `type`, `choices` and `description` of each"
)
_PROBLEM = "text: why it cannot be loaded, empty where it can"
_FROM = "text: the distribution that brings it"

DOCUMENTS: Mapping[str, Document] = {
    "partition": Document(
        Report, note='Of a bundle with variants it is `{"variants": [...]}`, a report for each.'
    ),
    "package make": Document(
        fields={"models": "object: the reports by the name of the model, as of `partition`"},
        note="It is what `byoc package` without a command does.",
    ),
    "package add": Document(
        fields={"models": "object: the reports of all models, as of `package`"},
    ),
    "package export": Document(ExportedPackage),
    "inspect": Document(
        Manifest,
        {"trust": "object: `key` (who signed, or null), `trusted`, and `reason`"},
        note="Of a package it has the package's own manifest, and `models` with one for each.",
    ),
    "inspect --fits": Document(
        fields={
            "bundle": "text: the path",
            "fits": "boolean: whether it loads here without falling back on the host",
            "chosen": "list of the variants that would run, null for none",
            "reasons": "object: why others would not, by variant",
            "variants": "list of `name`, `refused`, `predicted_seconds`, `host`, `regions`",
        }
    ),
    "verify": Document(
        FullVerificationReport,
        note="With `--bisect` there is `faults`, a `FaultReport` for each region that is wrong.",
    ),
    "verify --bisect": Document(
        FaultReport,
        note="Each of `faults`; of a folder with one it is `fault`, and `now`, a `RegionErrorReport`.",
    ),
    "verify --generate": Document(GenerationReport),
    "verify of a program": Document(ProgramVerification, {"passed": "boolean"}),
    "explain": Document(ExplanationDocument),
    "diff": Document(
        PlacementDiff,
        {"equal": "boolean", "moved": "integer: nodes that moved"},
        note="With `--only-worse` there is `checks`, what was judged.",
    ),
    "rules ask": Document(RuleComparison, {"agrees": "boolean"}),
    "rules check": Document(RuleCheck, is_list=True),
    "study table": Document(
        fields={
            "model": "text: with `--by model`; `link` and `rules` likewise",
            "strategy": "text: with its options, where several have been tried",
            "measure": "text: what is minimized",
            "cases": "integer: rows",
            "failed": "integer: of these, how many failed",
            "problems": "integer: what all that follows is over",
            "mean_ratio": "number or null: geometric mean of the ratios to the best value",
            "mean_low": "number or null: 95 % of the means of resampled problems are from here",
            "mean_high": "number or null: to here",
            "seed_median": "number or null: of the means of single seeds",
            "seed_low": "number or null: the least of these",
            "seed_high": "number or null: the greatest of these",
            "worst_ratio": "number or null",
            "p": "number or null: of Wilcoxon's test against the best strategy",
            "p_holm": "number or null: corrected for all tests of the table",
            "mean_gap": "number or null: to the best bound, a share",
            "largest_gap": "number or null",
            "seconds": "number or null: that the strategy took, on average",
        },
        is_list=True,
    ),
    "compare": Document(
        fields={
            "model": "text",
            "link": "number or null: GB/s of the link",
            "strategy": "text",
            "measure": "text: what is minimized",
            "objective": "number or null: its value",
            "bound": "number or null: a lower bound on it",
            "gap": "number or null: the share above the bound",
            "regions": "integer or null",
            "offloaded": "integer or null: nodes",
            "bytes_moved": "integer or null",
            "regret_mean": "number or null: with `--perturb`",
            "regret_worst": "number or null: with `--perturb`",
            "seconds": "number or null: of solving",
            "notes": "list of text",
            "error": "text: why it has no placement",
        },
        is_list=True,
    ),
    "export-c": Document(ExportedProgram),
    "pack": Document(FileEntry, {"bundle": "text: the path of the file"}),
    "simplify": Document(
        PassEffect,
        {
            "model": "text",
            "output": "text or null: the path of the model written",
            "before": "object or null: `nodes`, `compute` and `regions` of the plan without the pass",
            "after": "object or null: the same with it",
        },
    ),
    "zoo fetch": Document(FetchResult, {"path": "text or null"}, is_list=True),
    "zoo": Document(
        fields={
            "name": "text",
            "family": "text",
            "nodes": "integer or null",
            "licence": "text",
            "source": "text",
            "present": "boolean: whether its file is here",
            "weights": "text",
        },
        is_list=True,
    ),
    "run": Document(
        fields={
            "seconds": "number: of all runs together",
            "repeats": "integer",
            "segments": "list of a row for each host segment and region, in order of execution",
            "outputs": "list of the name, dtype and shape of each output, with its range",
            "notes": "list of text",
            "variant": "text: that which ran; left out where there are none",
            "choice": "object: `chosen` variants and the `reasons` against others; left out if empty",
            "pipeline": "object: `in_flight`, `runs_per_second` and `busy`; with `--pipeline` alone",
            "padded": "object: inputs that were padded; left out if empty",
            "calls": "integer: calls that the rows were split into; left out where they were not",
        }
    ),
    "plan-memory": Document(
        fields={
            "model": "text",
            "size": "integer or null: the limit that was given",
            "conventions": "object: what counts",
            "plans": "list of a plan for each model and region",
        }
    ),
    "tasks": Document(
        fields={
            "device": "text: a target, or `host`",
            "op": "text",
            "types": "text: as cost tables write them",
            "attributes": "object",
            "dtype": "text",
            "operations": "number of one run",
            "bytes": "number of one run",
            "count": "integer: units that have the task",
            "runs": "number: of these units in a run of the model",
            "nodes": "list of the operators inside of a composite",
        },
        is_list=True,
    ),
    "buckets": Document(
        fields={
            "along": "text: the dimension",
            "best": "list of sizes",
            "rows": "list of `sizes`, `seconds`, `padded` and `saved` for each number of buckets",
            "predicted": "object: seconds by size",
        }
    ),
    "calibrate": Document(
        fields={
            "method": "text",
            "options": "object",
            "samples": "integer",
            "data": "text",
            "random": "boolean",
            "model": "text",
            "notes": "list of text",
            "tensors": "object by tensor: `low`, `high`, `clipped`, `data` where that is another range",
            "channels": "object: lists `low` and `high` by tensor",
        }
    ),
    "compare-costs": Document(
        fields={
            "rows": "list of a row for each model",
            "rank_correlation": "number or null",
            "mean_factor": "number or null",
            "regions": "list of a row for each region of a bundle",
            "optimality_loss": "list of a row for each decision that was measured",
        }
    ),
    "place": Document(
        fields={
            "instance": "text",
            "strategy": "text",
            "objective": "text",
            "objective_seconds": "number",
            "bound_seconds": "number or null: a lower bound on it",
            "gap": "number or null: the share above the bound",
            "regions": "integer",
            "devices": "list of each device: `kind`, `nodes`, `regions`, seconds, bytes",
            "notes": "list of text",
        }
    ),
    "cache": Document(
        fields={
            "folder": "text",
            "entries": "integer",
            "bytes": "integer",
            "limit": "integer",
            "codegens": "list of `codegen`, `entries` and `bytes`",
        }
    ),
    "trust": Document(fields={"key": "text", "name": "text"}, is_list=True),
    "rules": Document(
        fields={
            "name": "text",
            "from": _FROM,
            "target": "text",
            "description": "text",
            "codegen": "text",
            "cost_model": "text",
            "operators": "integer",
            "composites": "integer",
            "generations": "list of text",
            "problem": _PROBLEM,
        },
        is_list=True,
    ),
    "rules composites": Document(
        fields={
            "name": "text",
            "description": "text",
            "names": "list of text",
            "file": "text",
            "problem": _PROBLEM,
        },
        is_list=True,
        note="Of one that is named it has `pattern` and `where` instead of `file` and `problem`.",
    ),
    "cost-models": Document(
        fields={
            "name": "text",
            "from": _FROM,
            "kind": "text",
            "description": "text",
            "options": _OPTIONS,
            "problem": _PROBLEM,
        },
        is_list=True,
    ),
    "cost-models check": Document(
        fields={"file": "text", "link": "boolean: whether it has a link", "problems": "list of text"},
        is_list=True,
    ),
    "codegens": Document(
        fields={
            "name": "text",
            "from": _FROM,
            "executable": "boolean: whether it runs here",
            "problem": _PROBLEM,
        },
        is_list=True,
        note="Of one that is named it has the versions, the abilities and the options.",
    ),
    "passes": Document(
        fields={
            "name": "text",
            "from": _FROM,
            "scope": "text",
            "runs": "text: when",
            "description": "text",
            "options": _OPTIONS,
            "problem": _PROBLEM,
        },
        is_list=True,
    ),
    "strategies": Document(
        fields={
            "name": "text",
            "from": _FROM,
            "description": "text",
            "honours": "list of text: the limits that it keeps",
            "options": _OPTIONS,
            "problem": _PROBLEM,
        },
        is_list=True,
    ),
}

_NAMES = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "boolean",
    type(None): "null",
    Path: "text",
    Any: "anything",
}


def make_page() -> str:
    """Return the page."""
    found: dict[type, None] = {}
    parts = [_HEAD, "## Verbs\n"]
    for verb, document in sorted(DOCUMENTS.items()):
        parts.append(f"### {verb}\n")
        what = "a list of objects" if document.is_list else "an object"
        if document.kind is not None:
            parts.append(
                f"It prints {what}: [{document.kind.__name__}](#{document.kind.__name__.lower()})"
                f"{', and beside its fields' if document.fields else '.'}\n"
            )
            found[document.kind] = None
        else:
            parts.append(f"It prints {what}.\n")
        if document.note:
            parts.append(f"{document.note}\n")
        if document.fields:
            parts.append(_make_table(document.fields.items()))
    found[RegionErrorReport] = None
    parts.append("## Objects\n")
    waiting = list(found)
    while waiting:
        for kind in find_kinds(waiting.pop()):
            if kind not in found:
                found[kind] = None
                waiting.append(kind)
    for kind in sorted(found, key=lambda kind: kind.__name__):
        text = inspect.getdoc(kind) or ""
        rows = ((name, describe_type(hint)) for name, hint in list_fields(kind).items())
        parts += [f"### {kind.__name__}\n", f"{_escape(text)}\n", _make_table(rows)]
    return "\n".join(parts)


def _make_table(rows: Any) -> str:
    lines = [f"| `{name}` | {text} |" for name, text in rows]
    return "\n".join(["| field | holds |", "|---|---|", *lines, ""])


def _escape(text: str) -> str:
    """Return a docstring as Markdown: paragraphs on one line each, names in it as they are."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(" ".join(each.split()) for each in paragraphs)


def list_fields(kind: type) -> dict[str, Any]:
    """Return the fields of a class by name, with their types."""
    if issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    hints = get_type_hints(
        kind, {**_find_names(), **vars(sys.modules[kind.__module__])}, include_extras=True
    )
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _find_names() -> dict[str, Any]:
    """Return what annotations may name that their modules import for type checkers alone."""
    rooms = ("bundle", "codegen", "comparison", "errors", "model", "placement", "planning", "runtime")
    names: dict[str, Any] = dict(vars(collections.abc))
    for room in (*rooms, "passes", "reporting", "standalone", "support"):
        module = import_module(f"byoc.{room}")
        names |= {name: getattr(module, name) for name in getattr(module, "__all__", dir(module))}
    return names


def find_kinds(kind: type) -> Iterator[type]:
    """Yield the classes that the fields of a class are of."""
    for hint in list_fields(kind).values():
        yield from _walk(hint)


def _walk(hint: Any) -> Iterator[type]:
    if _is_document(hint):
        yield hint
    for each in get_args(hint):
        yield from _walk(each)


def _is_document(hint: Any) -> bool:
    is_class = isinstance(hint, type) and get_origin(hint) is None  # dict[str, int] counts as a type
    return is_class and (issubclass(hint, BaseModel) or dataclasses.is_dataclass(hint))


def describe_type(hint: Any) -> str:  # noqa: PLR0911 - one for each kind of type
    """Return a type in the words of JSON."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return "text" if "Note" in str(inner[0]) else describe_type(inner[0])
    if _is_document(hint):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in inner)
    if origin in {Union, types.UnionType}:
        return " or ".join(dict.fromkeys(describe_type(each) for each in inner))
    if origin in {tuple, list, Sequence, frozenset, set}:
        return f"list of {describe_type(inner[0])}"
    if origin in {dict, Mapping}:
        return f"object: {describe_type(inner[1])} by name"
    return _NAMES.get(hint, "text" if isinstance(hint, type) and issubclass(hint, str) else "anything")


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
