"""byoc inside another tool: a deployer that chooses a board for each model.

    python examples/deploy.py FOLDER MODEL...
    python examples/deploy.py FOLDER zoo:squeezenet zoo:shufflenet

The tool plans each model for every board that it knows, takes the fastest plan, compiles that one alone,
keeps the bundle packed, and prints a JSON line for each model. A model that byoc refuses is a line with
its reason, and the others go on.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import byoc

BOARDS: Mapping[str, tuple[str, ...]] = {
    "small": ("dla",),
    "matrix": ("nnpa",),
}
"""The boards of the tool, and the rule files of what is on them."""


@dataclass(frozen=True)
class Deployment:
    """What became of a model: the board, the predicted milliseconds on each board, the packed bundle."""

    model: str
    board: str = ""
    milliseconds: Mapping[str, float] | None = None
    bundle: str = ""
    verified: bool = False
    problem: str = ""


def deploy(models: list[str], folder: Path) -> Iterator[Deployment]:
    """Yield the deployment of each model; bundles are written to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, model in enumerate(models):
        try:
            yield deploy_one(model, folder / f"{number}.byoc.zip")
        except byoc.InputError as error:  # one sentence for each thing that is wrong
            yield Deployment(model, problem=error.lines[0])


def deploy_one(model: str, output: Path) -> Deployment:
    """Plan a model for every board, and write the bundle of the fastest. Raises byoc.InputError."""
    seconds = {
        board: byoc.partition(model, rules, what_if=False).report.predicted.seconds
        for board, rules in BOARDS.items()
    }
    board = min(seconds, key=lambda name: seconds[name])  # the first board of the fastest
    result = byoc.partition(model, BOARDS[board], codegen="reference", output=output)
    milliseconds = {name: round(each * 1e3, 2) for name, each in seconds.items()}
    verified = result.verification is not None and result.verification.passed
    return Deployment(model, board, milliseconds, output.name, verified)


def main() -> None:
    """Deploy the models of the command line."""
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/deploy.py FOLDER MODEL...")
    for done in deploy(sys.argv[2:], Path(sys.argv[1])):
        print(json.dumps(asdict(done)))


if __name__ == "__main__":
    main()
