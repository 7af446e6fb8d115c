"""The check that a codegen with native code in its artifacts says so."""

from collections.abc import Iterator

from byoc.codegen import Codegen, Executable
from byoc.testing._case_compiler import CompiledCase

# How files begin that execute something when they are loaded.
_NATIVE = {
    b"\x7fELF": "a shared library",
    b"MZ": "a library of Windows",
    **dict.fromkeys((b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"), "a library of macOS"),
    **{b"\x80" + bytes([version]): "a pickle" for version in range(2, 6)},
}


def find_undeclared_code(codegen: Codegen, cut: CompiledCase) -> Iterator[str]:
    """Yield a sentence for each file of native code in an artifact of a codegen that declares none."""
    if getattr(codegen, "native", False) or not isinstance(codegen, Executable):
        return
    for _, artifact in cut.regions:
        for name, content in artifact.files.items():
            kind = next((kind for start, kind in _NATIVE.items() if content.startswith(start)), "")
            if kind:
                yield (
                    f"{cut.name}: '{name}' is {kind}: if `load` executes it, the class needs "
                    "`native = True`, so that it is loaded from trusted bundles alone"
                )
