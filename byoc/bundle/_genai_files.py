"""Files of onnxruntime-genai in a bundle: its configuration, and those that are passed through."""

import copy
import json
import shutil
from pathlib import Path

from byoc.bundle._manifest import MANIFEST_FILE
from byoc.bundle._writing import MODEL_FILE
from byoc.codegen import describe_path_problem
from byoc.errors import InputError
from byoc.trust import SIGNATURE_FILE
from byoc.zoo import GENAI_CONFIG_FILE, GenaiFolder


def write_genai_files(folder: Path, genai: GenaiFolder, bundle: Path) -> None:
    """Write genai's configuration into a bundle's folder, for its model, and copy all other files.

    `bundle` is where the bundle will be. Raises InputError for a file whose name is that of one of the
    bundle's or that no bundle may have, and one that cannot be read.
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
    config = copy.deepcopy(genai.config)
    config["model"]["decoder"]["filename"] = MODEL_FILE
    text = json.dumps(config, indent=4, ensure_ascii=False)
    (folder / GENAI_CONFIG_FILE).write_text(f"{text}\n", encoding="utf-8")
