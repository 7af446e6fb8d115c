"""`byoc`: a thin layer over the functions of `byoc`, one module a verb, imported when it is used.

Exit codes say whose fault it was: 0 none, 1 the input's (model, rules, options, bundle), 2 usage, 3
byoc's own, 4 that a bundle was written that could not be verified, 5 that one was written without
regions at which a codegen or a pass failed, or none since a pass failed, and 6 that a requirement is
missed, or that two placements differ (`diff --exit-code`). Results go to standard output, everything
else to standard error. With BYOC_DEBUG=1 in the environment every error comes with its traceback.
"""

import atexit
import gc
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from io import BufferedWriter, FileIO, TextIOWrapper
from mmap import mmap
from shutil import get_terminal_size
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from byoc.cli._common import PanelCommand, ending_by_signals, without_silent_end
from byoc.cli._completion import Shell, read_script
from byoc.cli._repeated_command import repeating
from byoc.console import (
    make_warnings_printable,
    print_errors,
    print_line,
    print_lines,
    print_table,
    print_traceback,
)
from byoc.errors import (
    InputError,
    MissingRuntimeError,
    PluginFailedError,
    escape_unprintable,
    must_propagate,
    suggest_nearest,
)
from byoc.long_calls import watch_calls

# Python's own error where there is no memory for the stack of a thread.
_NO_THREAD = "can't start new thread"
# Modules that load scipy's OpenBLAS, what it and they take, and what each of its threads takes.
_BLAS_MODULES = ("scipy.linalg", "scipy.special")
_BLAS_BYTES = 48 << 20
_BLAS_THREAD_BYTES = 42 << 20
# The error of click, or of Typer's own copy of it.
_USAGE_ERROR: Any = typer.BadParameter.__base__
_OBJECTS_BETWEEN_SEARCHES = 100_000  # for cyclic garbage, as `collect_rarely` explains
GROUPS = {
    "Plan": {
        "partition": ("_partition_verb:partition", "Cut a model between the host and accelerators."),
        "explain": ("_rules_verb:explain", "Say why nodes are refused, and what would change that."),
        "diff": ("_compare_verb:diff", "Compare two placements: moved nodes, reasons, and costs."),
        "compare": (
            "_compare_verb:compare",
            "Place models by several strategies, and compare the results.",
        ),
        "buckets": (
            "_model_verbs:buckets",
            "Choose the sizes of buckets for a distribution of lengths.",
        ),
        "plan-memory": ("_model_verbs:plan_memory", "Plan the memory of a model's activations."),
        "study": ("_research_verbs:app", "Solve the cases of a study, or plot their results."),
        "place": ("_research_verbs:place", "Solve an instance of a public placement benchmark."),
    },
    "Ship and run": {
        "run": ("_run_verb:run", "Run a bundle, and show how long each part of it took."),
        "verify": ("_verify_verb:verify", "Check that a bundle computes what its model did."),
        "inspect": (
            "_bundle_verbs:inspect",
            "Show what is in a bundle: decision, regions, boundary, files.",
        ),
        "report": (
            "_bundle_verbs:report",
            "Draw a bundle's report for a browser: one file, no network.",
        ),
        "package": (
            "_export_verbs:app",
            "Put several models, for several devices, into one package.",
        ),
        "pack": ("_bundle_verbs:pack", "Pack a bundle into one file that every verb opens."),
        "trust": ("_kept_verbs:trust", "Trust whoever signed a bundle, or list whom you trust."),
        "export-c": ("_export_verbs:export_c", "Write a model or a bundle as a C program."),
        "make-driver": (
            "_export_verbs:make_driver",
            "Make the driver in C that runs a bundle's regions.",
        ),
        "cache": ("_kept_verbs:app", "Show what is kept of earlier compiles, clear it, or limit it."),
        "completion": (
            "_main:completion",
            "Print what makes a shell complete verbs, options and names.",
        ),
    },
    "Prepare a model": {
        "zoo": ("_model_verbs:app", "List the models that zoo:NAME gives, or fetch trained ones."),
        "simplify": ("_model_verbs:simplify", "Fold a model's constants and shapes, and compare it."),
        "calibrate": ("_model_verbs:calibrate", "Measure the ranges of a model's tensors on data."),
        "passes": ("_plugin_verbs:passes", "List the installed passes, or show one and its options."),
    },
    "Describe an accelerator": {
        "rules": ("_rules_verb:app", "List rule files, check one, or help to write one."),
        "new-codegen": (
            "_plugin_verbs:new_codegen",
            "Write a complete package for a codegen of your own.",
        ),
        "codegens": (
            "_plugin_verbs:codegens",
            "List the installed codegens, or show one and its options.",
        ),
        "cost-models": (
            "_plugin_verbs:cost_app",
            "List the installed cost models, or check cost files.",
        ),
        "profile": ("_cost_verbs:profile", "Measure operators on this machine, and write a cost model."),
        "compare-costs": ("_cost_verbs:compare_costs", "Compare predicted seconds with measured ones."),
        "tasks": ("_research_verbs:tasks", "List the distinct units of a model, for tools to price."),
        "strategies": ("_plugin_verbs:strategies", "List the installed placement strategies."),
    },
}
"""The verbs by group: the function, or Typer application, and the first sentence of its docstring."""
VERBS = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}
"""All verbs of `GROUPS`, by name."""
EXAMPLES = """
byoc partition zoo:squeezenet --rules dla.yaml
byoc partition model.onnx --rules dla.yaml -o m.byoc --inputs samples/
byoc explain model.onnx --rules dla.yaml
byoc explain model.onnx --rules dla.yaml --op Conv
byoc diff old.byoc new.byoc
byoc diff baseline.json dla.yaml --model model.onnx --only-worse
byoc compare zoo:resnet50 --rules dla.yaml
byoc compare *.onnx --rules dla.yaml --link 0.1,2,10 --format csv
byoc buckets llm.onnx --rules npu.yaml --along seq --lengths lengths.txt
byoc buckets llm.onnx --rules npu.yaml --along seq --lengths log-normal:400,1,4096
byoc plan-memory model.onnx
byoc plan-memory model.onnx --size 512KiB
byoc study study.yaml -o results.csv
byoc study plot results.csv -o figures/
byoc place instance.json
byoc place instance.json --objective throughput --strategy exact
byoc run m.byoc --inputs x.npz -o y.npz
byoc run m.byoc --inputs random --trace trace.json
byoc verify m.byoc --against model.onnx --inputs samples/
byoc verify m.byoc --bisect
byoc inspect m.byoc
byoc inspect m.byoc --fits
byoc report m.byoc -o report.html
byoc report m.byoc -o report.html --trace trace.json
byoc package -o app.byoc a.onnx b.onnx --for pc=openvino-cpu --for board=dla
byoc package split app.byoc --for board -o board.byoc
byoc pack m.byoc -o m.byoc.zip
byoc pack m.byoc -o m.byoc.zip --format json
byoc trust
byoc trust theirs.byoc
byoc export-c zoo:squeezenet -o out/
byoc export-c m.byoc -o out/
byoc make-driver m.byoc -o libdla.so
byoc make-driver m.byoc -o libdla.so --cc "aarch64-linux-gnu-gcc -O3"
byoc cache
byoc cache clear --codegen dla
byoc completion
byoc completion bash
byoc zoo
byoc zoo fetch yunet swift_f0
byoc simplify model.onnx -o simple.onnx
byoc simplify zoo:densenet121 --rules dla.yaml
byoc calibrate model.onnx --data photos/ -o ranges.yaml
byoc calibrate model.onnx --data random -o ranges.yaml
byoc passes
byoc passes simplify
byoc rules check mine.yaml
byoc rules ask mine.yaml model.onnx
byoc new-codegen acme
byoc new-codegen acme --style tool --into acme-codegen
byoc codegens
byoc codegens dla
byoc cost-models
byoc cost-models check costs.yaml
byoc profile model.onnx -o host.yaml
byoc profile model.onnx --device dla --rules dla.yaml -o measured.yaml
byoc compare-costs model.onnx --costs host.yaml
byoc compare-costs m.byoc
byoc tasks model.onnx --rules dla.yaml
byoc tasks model.onnx --rules dla.yaml --format csv > tasks.csv
byoc strategies
byoc strategies --format json
"""
"""Two commands for each verb, which its help shows; tests/docs holds them to the options."""


def load_verb(name: str) -> Any:
    """Import the module of a verb, and return its command for the command line's parser.

    Raises KeyError for a name that is no verb.
    """
    module, _, attribute = VERBS[name][0].partition(":")
    found = getattr(import_module(f"byoc.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        app = found
    else:
        app = _make_app()
        app.command(name, cls=PanelCommand)(found)
    command = get_command(app)
    command.name = name
    _add_examples(command, f"byoc {name}")
    return command


def _add_examples(command: Any, path: str) -> None:
    """Put its examples below the help of a verb, and of each command of a verb."""
    mine = [line for line in EXAMPLES.splitlines() if f"{line} ".startswith(f"{path} ")]
    if mine:
        command.epilog = "\n".join(["\b", "Examples:", *(each for line in mine for each in _fold(line))])
    for name, inner in getattr(command, "commands", {}).items():
        _add_examples(inner, f"{path} {name}")


def _fold(example: str) -> Iterator[str]:
    """Yield the lines of a command for a terminal of this width, so that a shell takes all as one."""
    width = get_terminal_size().columns - 6  # the help's margin, ours, and a backslash
    line = ""
    for part in re.split(r" (?=-|> )", example):  # an option stays with what it takes
        if line and len(line) + len(part) >= width:
            yield f"  {line} \\"
            line = " "
        line += f" {part}" if line else part
    yield f"  {line}"


_PLAIN_MESSAGES = {
    "Input should be a valid number": "expected a number alone, such as 0.9: no unit, and no % sign",
    "Input should be a valid integer": "expected a whole number alone, such as 4",
}
"""What to say in place of pydantic's sentences, by how these begin."""


@contextmanager
def _make_usage_printable() -> Iterator[None]:
    """Make the message of a usage error plain and printable: it quotes names of files."""
    try:
        yield
    except _USAGE_ERROR as error:
        # Typer checks choices by pydantic, which begins its messages so.
        message = error.message.removeprefix("Value error, ")
        for theirs, ours in _PLAIN_MESSAGES.items():
            if message.startswith(theirs):
                message = ours
        error.message = escape_unprintable(message)
        raise


class _LazyGroup(TyperGroup):
    """The verbs by name; the module of one is imported only when that verb is used."""

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Read the options before the verb."""
        with _make_usage_printable():
            return super().make_context(*arguments, **named)

    def invoke(self, ctx: Any) -> Any:
        """Read the options of the verb, and run it."""
        with _make_usage_printable():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in the order of the help."""
        _ = ctx
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a verb; leave with a usage error for a name that is no verb."""
        if cmd_name not in VERBS:
            ctx.fail(f"No such command '{cmd_name}'{suggest_nearest(cmd_name, VERBS)}.")
        return load_verb(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each verb, without importing any."""
        _ = ctx
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in verbs.items()])


def _make_app(group: type[TyperGroup] | None = None) -> typer.Typer:
    return typer.Typer(
        cls=group,
        no_args_is_help=group is not None,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def _show_version(wanted: bool) -> None:
    if wanted:
        print_line(f"byoc {version('onnx-byoc')}")
        raise typer.Exit


def _describe(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Bring your own codegen: cut an ONNX model between a host CPU and accelerators."""


def completion(
    shell: Annotated[
        Shell | None, typer.Argument(help="The shell; unless given, what to do is said.")
    ] = None,
) -> None:
    """Print what makes a shell complete verbs, options and names.

    Run the output at the start of the shell, as `byoc completion` without a name says.
    """
    if shell is not None:
        print_lines(read_script(shell).splitlines())
        return
    print_line("Add the line of your shell to the file that it reads first:")
    print_table(
        [
            {"shell": "bash", "file": "~/.bashrc", "line": 'eval "$(byoc completion bash)"'},
            {"shell": "zsh", "file": "~/.zshrc", "line": 'eval "$(byoc completion zsh)"'},
            {
                "shell": "fish",
                "file": "~/.config/fish/config.fish",
                "line": "byoc completion fish | source",
            },
        ]
    )


def run_command_line() -> None:
    """Run the command line and exit with the code that says whose fault it was."""
    try:
        _run()
    except KeyboardInterrupt:  # before or behind the time in which signals are heard at once
        sys.exit(130)


def _run() -> None:
    _search_garbage_rarely()
    # Else onnxruntime writes of its sessions to the home folder, and tells its maker of them.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    _open_closed_streams()
    _open_results()
    for stream in (sys.stdout, sys.stderr):  # a name or a unit that the terminal cannot show is no error
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    make_warnings_printable()
    app = _make_app(_LazyGroup)
    app.callback()(_describe)
    with (
        ending_by_signals(),
        without_silent_end(),
        _without_endless_imports(),
        watch_calls(lambda text: print_errors([text])),
        repeating(sys.argv[1:]) as taken,
    ):
        if not taken:
            _exit_by_fault(lambda: get_command(app).main(prog_name="byoc"))


def _search_garbage_rarely() -> None:
    """Put off Python's search for cyclic garbage while modules are imported, and leave out the last one.

    The modules of a verb are a hundred thousand objects that stay until the process ends. Looking
    through them again and again takes a fifth of the processor time of a small model's plan.
    """
    first, *others = gc.get_threshold()
    gc.set_threshold(max(first, _OBJECTS_BETWEEN_SEARCHES) if first else 0, *others)
    atexit.register(gc.freeze)  # the search at the end of the process finds nothing to look through


@contextmanager
def _without_endless_imports() -> Iterator[None]:
    """Raise MemoryError where scipy is imported and a limit leaves too little memory for its OpenBLAS.

    As it is loaded that asks for memory again and again, without end, where there is none.
    """
    check = _MemoryCheck()
    if not check.is_limited():
        yield
        return
    sys.meta_path.insert(0, check)
    try:
        yield
    finally:
        sys.meta_path.remove(check)


class _MemoryCheck(MetaPathFinder):
    """Finds no module, and looks whether there is memory for those with which OpenBLAS is loaded."""

    @staticmethod
    def is_limited() -> bool:
        """Return whether this process may have so much memory only (`ulimit -v`)."""
        try:
            resource = import_module("resource")
        except ImportError:  # not on Windows
            return False
        return bool(resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY)

    def find_spec(self, fullname: str, *_: object) -> None:
        """Raise MemoryError for a module with which OpenBLAS is loaded, and no memory for that."""
        if fullname in _BLAS_MODULES:
            threads = os.environ.get("OPENBLAS_NUM_THREADS", "")
            count = int(threads) if threads.isdecimal() else os.cpu_count() or 1
            try:
                mmap(-1, _BLAS_BYTES + count * _BLAS_THREAD_BYTES).close()
            except (OSError, OverflowError):
                raise MemoryError from None


def _open_closed_streams() -> None:
    """Open standard input, output and error as empty where the caller closed them.

    Otherwise a file that is opened later gets their number, and reads or receives what is for them.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


class _ResultFile(FileIO):
    """Standard output for a reader that may leave early, as `head` does: the rest is dropped.

    So a verb does its work to the end, and its exit code is its own.
    """

    def write(self, data: Any, /) -> int:
        """Write bytes; return how many."""
        try:
            return super().write(data)
        except BrokenPipeError:
            empty = os.open(os.devnull, os.O_WRONLY)
            os.dup2(empty, self.fileno())
            os.close(empty)
            return memoryview(data).nbytes


def _open_results() -> None:
    """Let the reader of standard output leave early, where that is a pipe."""
    if not isinstance(sys.stdout, TextIOWrapper) or sys.stdout is not sys.__stdout__:
        return  # a caller's own stream
    if sys.stdout.fileno() == 1 and stat.S_ISFIFO(os.fstat(1).st_mode):
        sys.stdout.flush()
        results = BufferedWriter(_ResultFile(1, "w", closefd=False))
        sys.stdout = TextIOWrapper(results, sys.stdout.encoding)


def _exit_by_fault(run: Callable[[], object]) -> None:
    try:
        run()
    except PluginFailedError as error:
        if os.environ.get("BYOC_DEBUG"):
            print_traceback()
        _fail(*error.lines, code=5)
    except (InputError, MissingRuntimeError) as error:
        if os.environ.get("BYOC_DEBUG"):
            print_traceback()
        _fail(*error.lines)
    except OSError as error:
        _fail(f"{error.filename or 'the results'}: {error.strerror or error}")
    except MemoryError:
        _fail("there is not enough memory for it")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if str(error) == _NO_THREAD:
            _fail("there is not enough memory for it")
        if (stop := _find_stop(error)) is not None:
            sys.exit(stop)
        print_traceback()
        print_errors(["this is a defect of byoc; please report it with the lines above"])
        sys.exit(3)


def _find_stop(error: BaseException) -> int | None:
    """Return the exit code of a signal that ended in another error, None where there was none.

    Python makes a RuntimeError of an interrupt inside `__set_name__`, while a module defines a class.
    """
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, KeyboardInterrupt):
            return 130
        if isinstance(before, SystemExit) and must_propagate(before):
            return int(str(before.code))
        before = before.__cause__ or before.__context__
    return None


def _fail(*lines: str, code: int = 1) -> NoReturn:
    print_errors(lines)
    sys.exit(code)
