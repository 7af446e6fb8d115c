"""Each program that a test here runs on the simulator runs on the driver in C as well."""

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from byoc.codegens.dla import DLA
from byoc.codegens.dla.machine import Operand
from byoc.codegens.dla.simulator import Simulator
from dla_on_driver import assert_same, run_on_driver

from byoc.codegen.drivers import DriverLibrary, build_driver

_MOST_BYTES = 1 << 28  # that the driver allocates; a header may ask for gigabytes


@pytest.fixture(scope="session")
def dla_driver(tmp_path_factory: pytest.TempPathFactory) -> DriverLibrary | None:
    """The driver, None without a C compiler."""
    if shutil.which("cc") is None:
        return None
    strict = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-pedantic")
    return DriverLibrary(
        build_driver(DLA().driver(), tmp_path_factory.mktemp("driver") / "dla.so", flags=strict)
    )


@pytest.fixture(autouse=True)
def _compare_with_driver(
    dla_driver: DriverLibrary | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    real = Simulator.run

    def run(self: Simulator, inputs: Sequence[tuple[Operand, Any]], outputs: Sequence[Operand]) -> Any:
        found = real(self, inputs, outputs)
        sizes = self._program.arena + self._program.scratchpad
        if dla_driver is not None and sizes <= _MOST_BYTES:
            made = run_on_driver(dla_driver, self, inputs, outputs)
            for mine, other in zip(found.outputs, made, strict=True):
                assert_same(mine, other)
        return found

    monkeypatch.setattr(Simulator, "run", run)
    yield
