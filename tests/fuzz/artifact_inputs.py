"""Artifacts of `dla` that are nearly right: program, weights and interface in a zip."""

import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import model_inputs
from bundle_inputs import change_json, join, seeds, split
from word_inputs import mutate_words

from byoc.bundle import open_bundle
from byoc.codegen import Region

REGION = "region"
"""The file of an artifact's zip that says which region it is for."""


@cache
def artifact_seeds() -> tuple[bytes, ...]:
    """Return zips of artifacts of `dla`: program, weights, interface, and the region's number."""
    return tuple(
        join({**artifact.files, REGION: str(number).encode()})
        for number, (_, artifact) in enumerate(_compiled())
    )


def region_of(number: int) -> Region:
    """Return the region that an artifact of `artifact_seeds` was compiled for."""
    return _compiled()[number][0]


@cache
def _compiled() -> tuple[tuple[Region, Any], ...]:
    found = []
    for data in seeds():
        with tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as name:
            path = Path(name, "b.zip")
            path.write_bytes(data)
            regions = open_bundle(path).regions()
            found += [(region, artifact) for codegen, region, artifact in regions if codegen == "dla"]
    return tuple(found)


def make_artifact(chance: random.Random) -> bytes:
    """Return one artifact in a zip."""
    return mutate_artifact(chance.choice(artifact_seeds()), chance)


def mutate_artifact(data: bytes, chance: random.Random) -> bytes:
    """Return an artifact with words of its program, fields of its interface or weights changed."""
    files = split(data)
    if not files:
        return model_inputs.mutate_bytes(data, chance)
    while True:
        name = chance.choice([*files, "program.bin", "program.bin", "interface.json"])
        content = files.get(name, b"")
        files[name] = (
            change_json(content, chance) if name.endswith(".json") else mutate_words(content, chance)
        )
        if chance.random() < 0.5:
            break
    joined = join(files)
    return joined if len(joined) < 1 << 16 else data
