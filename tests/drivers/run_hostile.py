"""Runs a bundle by the hostile driver in Python, each lie in a process of its own: a crash would end it.

run_hostile.py BUNDLE LIBRARY < lies as JSON > [code, what was said] by lie as JSON
"""

import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
from drivers_of_tests import Hostile
from helpers.vendors import install
from pytest import MonkeyPatch

from byoc.bundle import open_bundle
from byoc.codegen.drivers import DriverLibrary
from byoc.errors import ByocError
from byoc.runtime import load_with_drivers, use_drivers


def run(bundle: str, library: str) -> str:
    """Run the model twice, then what regions and buffers can do besides; return what went wrong."""
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    try:
        with use_drivers({"hostile": library}):
            session = load_with_drivers(open_bundle(bundle, None))
        for _ in range(2):
            assert np.array_equal(session(x)["y"], x)
    except ByocError as error:
        return str(error)
    return "the outputs are right"


def ask(bundle: str, library: str) -> str:
    """Ask for what no run of a model asks for."""
    _, region, artifact = next(iter(open_bundle(bundle, None).regions()))
    try:
        loaded = DriverLibrary(Path(library))
        opened = loaded.open_region(region, artifact)
        loaded.open_buffer(64)
        opened.read_counters()
        opened.list_events()
        opened.submit({each.name: np.zeros((4, 8), np.float32) for each in region.inputs})
        opened.wait()
    except ByocError as error:
        return str(error)
    return "all is there"


def run_alone(lie: str, bundle: str, library: str) -> tuple[int, str]:
    """Run in a fork of this process, which opened nothing; return its exit code, and what it said."""
    with TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            os.environ["LIE"] = lie.removeprefix("asked: ")
            sys.stdout = sys.stderr = said
            code = 3
            try:
                said.write((ask if lie.startswith("asked: ") else run)(bundle, library))
                code = 0
            finally:
                said.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return code, said.read()


if __name__ == "__main__":
    install(MonkeyPatch(), hostile=Hostile)
    json.dump({lie: run_alone(lie, *sys.argv[1:]) for lie in json.load(sys.stdin)}, sys.stdout)
