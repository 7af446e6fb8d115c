"""A codegen that computes some operators wrongly, in the way that it is asked to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper, numpy_helper

from byoc.codegen import Artifact, CompileError, Executor, Region, format_options, read_stored_options
from byoc.onnxrt import open_session, run_session
from helpers.installing import register


@dataclass(frozen=True)
class Options:
    """The operators that are wrong, in commas; with `together`, only where all are in one region.

    Results are multiplied `by` a factor; with `loses`, only NaN, or whole numbers beyond 2^24, are
    lost. Where `safe`, integers are at fault, so that nothing is wrong without them. `alone` says that
    no single operation is compiled. `log` gets a line for each region compiled.
    """

    wrong: str = ""
    together: bool = False
    loses: str = ""
    by: float = 1.25
    safe: bool = False
    integers: bool = True
    alone: bool = False
    log: str = ""


class Skewed:
    """Runs regions on onnxruntime, but for what is asked of it."""

    name = "skewed"
    api = 3
    Options = Options
    recovery_options = ({"integers": "false"},)

    def compile(self, region: Region, options: Options) -> Artifact:
        if options.log:
            with Path(options.log).open("a") as log:
                log.write(f"{len(region.operations())} {options.integers}\n")
        if options.alone and len(region.operations()) == 1:
            raise CompileError("one operation is too little")
        return Artifact({}, format_options(options))

    def load(self, region: Region, artifact: Artifact) -> Executor:
        options = read_stored_options(Options, artifact.metadata)
        model = region.load(inline=True)
        ops = {node.op_type for node in model.graph.node}
        wrong = set(filter(None, options.wrong.split(",")))
        spared = (options.safe and not options.integers) or (options.together and not wrong <= ops)
        if not spared:
            skew(model, wrong, options)
        session = open_session(model)
        return lambda inputs: run_session(session, inputs)


class Graded(Skewed):
    """The same with several others, of which the second is as wrong as the first."""

    name = "graded"
    recovery_options = ({"by": "1.5"}, {"integers": "false"}, {"by": "2.0"})


class Stubborn(Skewed):
    """The same without other options to recover with."""

    name = "stubborn"
    recovery_options = ()


def skew(model: onnx.ModelProto, wrong: set[str], options: Options) -> None:
    """Make the operators of a model wrong, in place."""
    graph, nodes = model.graph, list(model.graph.node)
    del graph.node[:]
    for number, node in enumerate(nodes):
        if node.op_type not in wrong and "*" not in wrong:
            graph.node.append(node)
            continue
        made, right = node.output[0], f"right_{number}"
        node.output[0] = right
        graph.node.append(node)
        graph.node.extend(_change(node, right, made, number, options))


def _change(
    node: NodeProto, right: str, made: str, number: int, options: Options
) -> Iterator[NodeProto]:
    if options.loses == "nan":
        zero = numpy_helper.from_array(np.zeros((), np.float32))
        yield helper.make_node("Constant", [], [f"zero_{number}"], value=zero)
        yield helper.make_node("IsNaN", [node.input[0]], [f"nan_{number}"])
        yield helper.make_node("Where", [f"nan_{number}", f"zero_{number}", right], [made])
    elif options.loses == "integers":
        yield helper.make_node("Cast", [right], [f"float_{number}"], to=onnx.TensorProto.FLOAT)
        yield helper.make_node("Cast", [f"float_{number}"], [made], to=onnx.TensorProto.INT64)
    else:
        some = numpy_helper.from_array(np.full((), options.by, np.float32))
        yield helper.make_node("Constant", [], [f"some_{number}"], value=some)
        yield helper.make_node("Mul", [right, f"some_{number}"], [made])


@pytest.fixture
def skewed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, str]:
    """Install both codegens, so that a new process finds them; return their names."""
    site = tmp_path_factory.mktemp("site")
    points = {
        "skewed": "helpers.skewed:Skewed",
        "stubborn": "helpers.skewed:Stubborn",
        "graded": "helpers.skewed:Graded",
    }
    register(site, "skewed", "1.0", {"byoc.codegens": points})
    monkeypatch.syspath_prepend(site)
    return points
