"""The process of `byoc.testing.fresh`: `python -m byoc.testing.worker FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

from byoc.bundle.read import open_bundle
from byoc.codegen import parse_codegen_options, find_codegen
from byoc.codegen.asking import compile_region
from byoc.errors import ByocError
from byoc.runtime.onnxrt import without_optimizations
from byoc.runtime.regions import find_executable, load_executor
from byoc.testing.fresh import ANSWER_FILE, TASK_FILE, TensorValues, hash_artifact, load_values, save_values, error_reason


def main(folder: Path) -> None:
    """Execute the tasks in a folder, and write the answers beside them."""
    asked = json.loads((folder / TASK_FILE).read_text(encoding="utf-8"))
    answers = []
    for number, task in enumerate(asked["tasks"]):
        try:
            outputs, made = _run_task(asked, task, load_values(folder / f"in{number}"))
            answer = {"problem": "", "compiled": made}
        except ByocError as error:
            outputs, answer = {}, {"problem": error_reason(error), "compiled": ""}
        save_values(outputs, folder / f"out{number}")
        answers.append(answer)
    (folder / ANSWER_FILE).write_text(json.dumps(answers), encoding="utf-8")


def _run_task(asked: Any, task: Any, inputs: TensorValues) -> tuple[TensorValues, str]:
    """Return the outputs of a region, and the hash of its recompiled artifact."""
    name = asked["codegen"]
    found = open_bundle(Path(task["bundle"])).regions()
    region, artifact = next((r, made) for _, r, made in found if r.name == task["region"])
    with without_optimizations():
        run = load_executor(find_executable(name), name, region, artifact)
    outputs = run(inputs)
    codegen = find_codegen(name)
    again = compile_region(codegen, region, parse_codegen_options(codegen, asked["options"]))
    return outputs, hash_artifact(again)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
