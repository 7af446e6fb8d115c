"""A random model with open dimensions: its samples on plain onnxruntime, its bundle verified on them."""

from pathlib import Path

from open_models import make_open_model

import byoc
from byoc.onnxrt import open_session, run_session
from byoc.samples import list_samples

RULES = "target: any\ncost_model: {costs}\ndtype: any\nregions: phase\nops: [{{op: '*'}}]\n"
COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlink: {bandwidth: .inf}\n"
)


def run_samples(seed: int) -> int:
    """Run a model on all samples that are made for it; return their number.

    Raises InputError when there is none, or one does not run.
    """
    model = byoc.load_model(make_open_model(seed))
    session = open_session(model.proto)
    return len([run_session(session, sample.inputs) for sample in list_samples(model)])


def find_bundle_problem(seed: int, folder: Path) -> str:
    """Return what is wrong with the bundle of a model, all of it in regions; empty if it is verified."""
    (folder / "near.yaml").write_text(COSTS)
    (folder / "any.yaml").write_text(RULES.format(costs=folder / "near.yaml"))
    result = byoc.partition(
        make_open_model(seed),
        folder / "any.yaml",
        output=folder / "bundle",
        strategy="all-supported",
        codegen="reference",
        cache=False,
    )
    if result.report.refusals:
        return str(result.report.refusals[0])
    if not result.report.regions:
        return "there is no region"
    if result.verification is None:
        return result.report.not_verified or "not verified"
    return "" if result.verification.samples > 1 else "only one sample"
