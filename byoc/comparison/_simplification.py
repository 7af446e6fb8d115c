"""A simplified model beside its original: nodes, outputs, and what accelerators take of both."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

from byoc.bundle import Report
from byoc.comparison._comparison_options import SimplifyOptions
from byoc.errors import InputError
from byoc.model import Model
from byoc.options import PlanOptions
from byoc.passes import PassEffect, load_pass
from byoc.pipeline import make_plan
from byoc.reporting import make_report
from byoc.samples import MAX_SAMPLES, read_samples
from byoc.stages import load_settings, rewrite_model
from byoc.support import check_output, report_step, take_keywords, write_atomically
from byoc.verification import NotVerified
from byoc.zoo import Source, load_model

# Protobuf writes at most 2 GiB; larger weights go to a file beside the model.
_MOST_BYTES = 2_000_000_000


@dataclass(frozen=True, eq=False)
class Simplification:
    """A simplified model, and what became of it.

    `before` and `after` are the reports of plans of the original and of the simplified model, None
    where no rule files were given.
    """

    model: Model
    effect: PassEffect
    before: Report | None = None
    after: Report | None = None
    output: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON: the effect, and of each plan its nodes, compute and regions."""
        return {
            "model": self.model.source,
            "output": None if self.output is None else str(self.output),
            **asdict(self.effect),
            "before": _summarize(self.before),
            "after": _summarize(self.after),
        }


def _summarize(report: Report | None) -> dict[str, Any] | None:
    if report is None:
        return None
    return {
        "nodes": report.nodes.total,
        "offloaded_nodes": report.nodes.offloaded,
        "offloaded_compute": report.compute.offloaded,
        "regions": len(report.regions),
        "seconds": report.predicted.seconds,
    }


@take_keywords(SimplifyOptions)
def simplify(model: Source, options: SimplifyOptions) -> Simplification:
    """Fold a model's constants and shapes, as the pass `simplify` does; compare it with the original.

    `model` is a path, `zoo:NAME`, or a protobuf, which is never changed.

    Raises InputError when the model or an option is at fault, or the simplified model computes something
    else; MissingRuntimeError without onnxslim. Nothing has been written then.
    """
    output = None if options.output is None else Path(options.output)
    if output is not None:
        check_output(output)
    asked = load_pass("simplify", options.pass_options)
    report_step("load model")
    original = load_model(model, options.dims, options.shapes)
    samples = () if options.inputs is None else read_samples(options.inputs, original, MAX_SAMPLES)
    simplified, (effect,) = rewrite_model(original, [asked], samples, compare=options.verify)
    before, after = (
        _plan(each, options.rules) if options.rules else None for each in (original, simplified)
    )
    if output is not None:
        _write_model(simplified.proto, output)
    return Simplification(simplified, effect, before, after, output)


def _plan(model: Model, rules: str | Path | Sequence[str | Path]) -> Report:
    plan = make_plan(model, load_settings(PlanOptions(rules)))
    return make_report(plan, NotVerified("only planned"))


def _write_model(proto: onnx.ModelProto, path: Path) -> None:
    if proto.ByteSize() <= _MOST_BYTES:
        write_atomically(path, lambda file: file.write(proto.SerializeToString(deterministic=True)))
        return
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    try:
        beside = path.with_name(f"{path.name}.data")
        beside.unlink(missing_ok=True)  # onnx adds to a file that is there
        onnx.save(whole, path, save_as_external_data=True, location=beside.name)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
