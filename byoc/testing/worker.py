"""The process of `byoc.testing.fresh`: `python -m byoc.testing.worker FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

from byoc.bundle.read import open_bundle
from byoc.codegen import chosen_options, find_codegen
from byoc.codegen.asking import compiled
from byoc.errors import ByocError
from byoc.runtime.onnxrt import unoptimized
from byoc.runtime.regions import executable, executor
from byoc.testing.fresh import ANSWER, TASK, Values, fingerprint, load_values, save_values, why


def main(folder: Path) -> None:
    """Execute the tasks in a folder, and write the answers beside them."""
    asked = json.loads((folder / TASK).read_text(encoding="utf-8"))
    answers = []
    for number, task in enumerate(asked["tasks"]):
        try:
            outputs, made = _done(asked, task, load_values(folder / f"in{number}"))
            answer = {"problem": "", "compiled": made}
        except ByocError as error:
            outputs, answer = {}, {"problem": why(error), "compiled": ""}
        save_values(outputs, folder / f"out{number}")
        answers.append(answer)
    (folder / ANSWER).write_text(json.dumps(answers), encoding="utf-8")


def _done(asked: Any, task: Any, inputs: Values) -> tuple[Values, str]:
    """Return the outputs of a region, and the hash of its recompiled artifact."""
    name = asked["codegen"]
    found = open_bundle(Path(task["bundle"])).regions()
    region, artifact = next((r, made) for _, r, made in found if r.name == task["region"])
    with unoptimized():
        run = executor(executable(name), name, region, artifact)
    outputs = run(inputs)
    codegen = find_codegen(name)
    again = compiled(codegen, region, chosen_options(codegen, asked["options"]))
    return outputs, fingerprint(again)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
