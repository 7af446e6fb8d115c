"""The process of `byoc.testing._fresh_process`: `python -m byoc.testing._fresh_worker FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any

from byoc.bundle import open_bundle
from byoc.codegen import Codegens, compile_region, find_codegen, parse_codegen_options
from byoc.errors import ByocError
from byoc.onnxrt import without_optimizations
from byoc.runtime import find_executable, load_executor
from byoc.testing._fresh_process import (
    ANSWER_FILE,
    TASK_FILE,
    TensorValues,
    error_reason,
    hash_artifact,
    load_values,
    save_values,
)


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
        run = load_executor(find_executable(name, Codegens()), name, region, artifact)
    outputs = run(inputs)
    codegen = find_codegen(name)
    again = compile_region(codegen, region, parse_codegen_options(codegen, asked["options"]))
    return outputs, hash_artifact(again)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
