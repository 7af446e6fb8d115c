"""Write byoc/cli/shells/declarations.json: the verbs, options and values that shells complete.

A shell asks for completions at each press of a key, and the parser of the command line takes too long to
import. Run this as `python tools/completion_data.py` after a change of verbs, options, or models of the
zoo; tests/cli/test_cli_completion.py holds the file to the declarations.
"""

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from byoc import zoo
from byoc.cli import VERBS, load_verb
from byoc.cli._common import DefaultGroup
from byoc.pipeline import list_stages

FILE = Path(__file__).parents[1] / "byoc" / "cli" / "shells" / "declarations.json"

_TARGET = "([^=]*=)?"  # `[TARGET=]` before a value
_NAME = "[^=]+="  # `NAME=` before a value
_LIST = "(.*,)?"  # values with commas between

# The values of a parameter by its name, or by its verb's and its own, and what stands before them. `@`
# begins the name of what byoc/cli/_completion.py lists; where files are among the values of a parameter
# that is not here, the shell completes them.
_VALUES: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(("models", "model", "against"), (("@models",), "")),
    "package make models": (("@models",), _TARGET),
    "package add models": (("@models",), _TARGET),
    **dict.fromkeys(
        ("plan-memory model", "export-c model", "compare-costs models"), (("@models", "@files"), "")
    ),
    **dict.fromkeys(
        ("rules", "rules check files", "rules ask file", "rules composites name"), (("@rules",), "")
    ),
    **dict.fromkeys(("diff old", "diff new"), (("@rules", "@files"), "")),
    "devices": (("@rules",), _NAME),
    "variants": (("@rules",), ".*[:,]rules="),
    "cost_model": (("@costs",), _TARGET),
    **dict.fromkeys(
        (
            "host_cost_model",
            "study replay cost_model",
            "cost-models check files",
            "compare-costs costs",
            "compare-costs host_costs",
            "compare-costs measured",
            "compare-costs measured_host",
            "profile otherwise",
        ),
        (("@costs",), ""),
    ),
    "codegen": (("@codegens",), _TARGET),
    "codegens": (("@codegens",), _LIST),
    "codegens name": (("@codegens",), ""),
    "profile device": (("host", "@codegens"), ""),
    "drivers": (("@files",), _NAME),
    "single": (("@files",), _NAME),
    "strategy": (("@strategies",), ""),
    "strategies": (("@strategies",), _LIST),
    "passes": (("@passes",), ""),
    "passes name": (("@passes",), ""),
    "no_passes": (("all", "@passes"), ""),
    "zoo fetch names": (("@trained",), ""),
    "data": (("random", "@files"), ""),
    "run inputs": (("random", "@files"), ""),
    "objective": (("latency", "energy"), ""),
    "place objective": (("latency", "throughput", "total"), ""),
    "print_after": (tuple(list_stages()), ""),
    "lengths": (("log-normal:", "@files"), ""),
}


def make_data() -> dict[str, Any]:
    """Return what the file has: the commands by the words that call them, "" for `byoc` itself.

    A command has a sentence of help, its arguments in order, and its options by name. What takes a value
    has `values`, which may be empty.
    """
    commands: dict[str, Any] = {"": _describe_command("", [])}
    commands[""]["options"] |= {"--version": {"help": "Print the version."}}
    for name, (_, summary) in VERBS.items():
        commands |= _describe_verb(load_verb(name), name, summary)
    entries = zoo.list_entries()
    return {
        "commands": commands,
        "zoo": [entry.name for entry in entries],
        "trained": [entry.name for entry in entries if entry.weights == "trained"],
    }


def _describe_verb(command: Any, name: str, summary: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and those inside of it, each with the words that call it."""
    inner = getattr(command, "commands", {})
    # One that is called without a command inside of it takes what the first of them takes.
    first = next(iter(inner.values())) if isinstance(command, DefaultGroup) else command
    yield name, _describe_command(summary, first.params, name, first.callback)
    for word, each in inner.items():
        text = (each.help or "").split("\n\n")[0].split(". ")[0]
        yield from _describe_verb(each, f"{name} {word}", " ".join(text.split()).rstrip(".") + ".")


def _describe_command(
    summary: str, parameters: Iterable[Any], name: str = "", function: Any = None
) -> dict[str, Any]:
    types = inspect.signature(function, eval_str=True).parameters if function else {}
    arguments, options = [], {}
    for parameter in parameters:
        annotation = types[parameter.name].annotation
        described = _describe_values(parameter, f"{name} {parameter.name}", annotation)
        if parameter.param_type_name == "argument":
            arguments.append({"repeated": parameter.nargs == -1, **described})
        else:
            names = (*parameter.opts, *parameter.secondary_opts)
            options |= {each: {"help": parameter.help or "", **described} for each in names}
    options["--help"] = {"help": "Show what there is to give."}
    return {"help": summary, "arguments": arguments, "options": options}


def _describe_values(parameter: Any, path: str, annotation: Any) -> dict[str, Any]:
    if getattr(parameter, "is_flag", False):
        return {}
    values, head = _VALUES.get(path) or _VALUES.get(parameter.name) or (_find_choices(annotation), "")
    return {"values": list(values), **({"head": head} if head else {})}


def _find_choices(annotation: Any) -> tuple[str, ...]:
    """Return the values of an enumeration inside an annotation, in lists and unions, too."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(each.value) for each in annotation)
    found = map(_find_choices, get_args(annotation))
    return next(filter(None, found), ())


def format_data(data: Mapping[str, Any]) -> str:
    """Return the text of the file: a line for each option, so that a difference can be read."""
    lines = []
    for name, command in data["commands"].items():
        options = ",\n".join(
            f"   {json.dumps(option)}: {json.dumps(said)}" for option, said in command["options"].items()
        )
        rest = json.dumps({"help": command["help"], "arguments": command["arguments"]})
        lines.append(f'  {json.dumps(name)}: {rest[:-1]}, "options": {{\n{options}}}}}')
    others = "".join(f",\n {json.dumps(key)}: {json.dumps(data[key])}" for key in ("zoo", "trained"))
    joined = ",\n".join(lines)
    return f'{{"commands": {{\n{joined}}}{others}}}\n'


if __name__ == "__main__":
    FILE.write_text(format_data(make_data()), encoding="utf-8")
