"""The HTML file: data, styles and scripts in one, with a policy that lets nothing else run or load.

The data is packed (gzip, base64), so that no name of a model can end the HTML element around it. The
scripts put names into the page as text alone.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from gzip import GzipFile
from importlib.resources import files
from io import BytesIO
from string import Template
from typing import Any

from byoc.bundle import DecisionDocument, Report
from byoc.errors import escape_unprintable
from byoc.page._memory_picture import make_memory_picture
from byoc.page._trace_file import TracePicture
from byoc.reporting import format_conditions, format_promises

# In the order of loading: each needs those before it.
_LIBRARIES = ("cytoscape/cytoscape.min.js", "dagre/dagre.min.js")
_SCRIPTS = (
    *("tables.js", "hierarchy.js", "folding.js", "layout.js", "looks.js", "graph.js"),
    *("details.js", "lists.js", "charts.js", "overview.js", "search.js"),
)
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)  # a browser would try to load it


@dataclass(frozen=True, eq=False)
class PageParts:
    """The content of a page: the report, the decisions, and whatever else is known.

    `layers` of compiled regions and their `codegens` are by the region's name; `trace` is a traced run.
    `is_compiled` tells a bundle from a plan alone.
    """

    report: Report
    decisions: DecisionDocument
    trace: TracePicture | None = None
    layers: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    codegens: Mapping[str, str] = field(default_factory=dict)
    is_compiled: bool = False


def render_page(parts: PageParts) -> str:
    """Return the page as HTML; the same parts give the same text."""
    scripts = _read_scripts()
    hashes = " ".join(f"'sha256-{_hash_script(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_read_file("assets/page.html")).substitute(
        policy=html.escape(policy, quote=False),
        title=html.escape(f"{escape_unprintable(parts.report.model)} · byoc"),
        style=_read_file("assets/page.css"),
        data=_pack_data(parts),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _pack_data(parts: PageParts) -> str:
    """Return the data of the page: JSON, compressed by gzip, as base64."""
    rest = {
        "report": parts.report.to_json(),
        "promises": [
            *format_promises(parts.report.promises),
            *format_conditions(parts.report.conditions),
        ],
        "trace": None if parts.trace is None else parts.trace.to_json(),
        "layers": {name: list(each) for name, each in parts.layers.items()},
        "codegens": dict(parts.codegens),
        "compiled": parts.is_compiled,
        "memory": make_memory_picture(parts.decisions),
    }
    text = json.dumps(rest, separators=(",", ":"), allow_nan=False).encode()
    packed = BytesIO()
    with GzipFile("", "wb", 6, packed, mtime=0) as file:
        # The document writes its own JSON: it becomes the last key of the object.
        file.write(text[:-1] + b',"decisions":' + parts.decisions.to_json() + b"}")
    return base64.b64encode(packed.getvalue()).decode("ascii")


@cache
def _read_scripts() -> tuple[str, ...]:
    """Return the scripts: each library, and the page's own as one."""
    libraries = [_SOURCE_MAP.sub("", _read_file(f"third_party/{name}")) for name in _LIBRARIES]
    own = "\n".join(_read_file(f"assets/{name}") for name in _SCRIPTS)
    found = (*libraries, f'(() => {{\n"use strict";\n{own}\n}})();')
    for script in found:
        assert "</script" not in script.lower()
    return found


@cache
def _read_file(path: str) -> str:
    """Return the content of a file of this package, given its path there."""
    return files("byoc.page").joinpath(path).read_text(encoding="utf-8")


def _hash_script(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
