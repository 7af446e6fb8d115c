"""A model of the zoo cut in three ways by rules that take everything: bundled, run, verified."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from helpers.cutting import compilers, planned
from helpers.strategies import Alternating, Random

import byoc
from byoc.bundle import open_bundle
from byoc.pipeline import (
    ChosenPasses,
    LoadedModel,
    Options,
    Planned,
    Request,
    Setup,
    emit,
    load_settings,
)
from byoc.placement.strategies import AllSupported
from byoc.quantization import ChosenPrecision
from byoc.rules import load_rules
from byoc.verification import (
    NotVerifiableError,
    NotVerified,
    Verification,
    VerificationModels,
    verify_samples,
)

COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\nlink: {bandwidth: .inf}\n"
)
RULES = "target: any\ncost_model: near\ndtype: any\nregions: connected\nops: [{op: '*'}]\n"


@dataclass(frozen=True)
class Row:
    """What one way to cut a model gave; `error` is the largest relative one over all outputs."""

    model: str
    way: str
    nodes: int
    regions: int
    error: float
    seconds: float


def rows(name: str) -> Iterator[Row]:
    """Yield a row for each way. Raises InputError when a bundle does not do what the model does."""
    model = byoc.load_model(f"zoo:{name}")
    ways = (AllSupported(), Random(crc32(name.encode())), Alternating())
    for strategy in ways:
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            (here / "near.yaml").write_text(COSTS, encoding="utf-8")
            (here / "any.yaml").write_text(RULES, encoding="utf-8")
            rules, costs = str(here / "any.yaml"), str(here / "near.yaml")
            target = load_rules(rules)
            asked = {"model": f"zoo:{name}", "dims": {}}
            plan = planned(model, target, strategy, costs=costs, asked=asked)
            options = Options(rules, cost_model=costs, strict=True, what_if=False)
            state = Planned(
                request=Request(model.source, options),
                setup=Setup(asked, ChosenPasses(), compilers(plan), here / "b"),
                settings=load_settings(options),
                loaded=LoadedModel(model),
                precision=ChosenPrecision(model, plan.targets),
                plan=plan,
            )
            (outcome,) = [each.verification for each in emit([state])]
            if isinstance(outcome, NotVerified):
                raise NotVerifiableError(outcome.reason)
            again: Verification = verify_samples(
                open_bundle(here / "b"), VerificationModels(model), (), model
            )
            error = max((output.relative for output in again.outputs), default=0.0)
        size = sum(len(index.nodes) - len(index.constant_nodes) for index in model.index.walk())
        yield Row(name, strategy.name, size, len(plan.regions), error, time.monotonic() - start)
