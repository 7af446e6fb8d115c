"""Files of onnxruntime-genai in a bundle: its configuration, and those that are passed through."""

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byoc.bundle._manifest import MANIFEST_FILE
from byoc.bundle._writing import MODEL_FILE
from byoc.codegen import describe_path_problem
from byoc.errors import InputError
from byoc.model import ONLY_VARIANT, Model, Variant
from byoc.trust import SIGNATURE_FILE
from byoc.zoo import GENAI_CONFIG_FILE, GenaiFolder, choose_pipeline


def write_genai_files(
    folder: Path, genai: GenaiFolder, bundle: Path, models: Mapping[str, Model]
) -> None:
    """Write genai's configuration into a bundle's folder, for its models, and copy all other files.

    `bundle` is where the bundle will be, `models` are those that were partitioned, by variant. Raises
    InputError for a file whose name is that of one of the bundle's or that no bundle may have, and one
    that cannot be read.
    """
    for name, source in genai.list_other_files(bundle):
        problem = describe_path_problem(name)
        if problem:
            raise InputError(f"{source}: cannot be passed through: it {problem}")
        target = folder / name
        if target.exists() or name in {MANIFEST_FILE, SIGNATURE_FILE}:
            raise InputError(f"{source}: cannot be passed through: the bundle has a file of that name")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None
    text = json.dumps(_make_config(genai, models), indent=4, ensure_ascii=False)
    (folder / GENAI_CONFIG_FILE).write_text(f"{text}\n", encoding="utf-8")


def _make_config(genai: GenaiFolder, models: Mapping[str, Model]) -> dict[str, Any]:
    """Return genai's configuration: of one model, or of a pipeline of two variants."""
    files = {name: Variant(name).name_file(MODEL_FILE) for name in models}
    if models.keys() != {ONLY_VARIANT.name}:
        return choose_pipeline(genai, models).make_config(genai, files)
    config = copy.deepcopy(genai.config)
    config["model"]["decoder"]["filename"] = files[ONLY_VARIANT.name]
    return config
