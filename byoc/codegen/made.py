"""A cache of artifacts, so that replanning a model does not compile the same region twice."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from byoc.codegen.api import Artifact, Region
from byoc.codegen.fingerprint import region_fingerprint


@dataclass(eq=False)
class ArtifactCache:
    """The artifacts that one codegen produced with one set of options.

    An artifact is reused for a region with the same fingerprint and the same names of tensors and nodes;
    an artifact that contains its region's name is reused only for a region of that name.
    """

    _unindexed: list[tuple[Sequence[Region], Mapping[str, Artifact]]] = field(default_factory=list)
    _by_key: dict[str, tuple[list[str], list[Artifact]]] = field(default_factory=dict)

    def add(self, regions: Sequence[Region], artifacts: Mapping[str, Artifact]) -> None:
        """Record the artifacts of one call of the codegen."""
        self._unindexed.append((regions, artifacts))

    def index_added(self) -> None:
        """Index the recorded artifacts while the regions' files still exist; they may go afterwards."""
        for regions, artifacts in self._unindexed:
            names = [region.name for region in regions]
            self._by_key[_cache_key(regions)] = names, [artifacts[name] for name in names]
        self._unindexed.clear()

    def find(self, regions: Sequence[Region]) -> dict[str, Artifact] | None:
        """Return the artifacts of an earlier call for the same regions, or None."""
        names, artifacts = self._by_key.get(_cache_key(regions), ([], [])) if self._by_key else ([], [])
        if not names:
            return None
        for name, region in zip(names, regions, strict=True):
            if name != region.name and any(_mentions(artifact, name) for artifact in artifacts):
                return None
        return {region.name: made for region, made in zip(regions, artifacts, strict=True)}


def _cache_key(regions: Sequence[Region]) -> str:
    digest = hashlib.sha256()
    for region in regions:
        graph = region.model.graph
        names = [(node.name, *node.input, *node.output) for node in graph.node]
        border = [value.name for value in (*graph.input, *graph.output)]
        digest.update(f"{region_fingerprint(region)} {names!r} {border!r}\n".encode(errors="replace"))
    return digest.hexdigest()


def _mentions(artifact: Artifact, name: str) -> bool:
    """Return whether a name occurs in an artifact."""
    if any(name in text for pair in artifact.metadata.items() for text in pair):
        return True
    content = name.encode(errors="replace")
    return any(name in file or content in data for file, data in artifact.files.items())
