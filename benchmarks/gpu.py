"""Regions on a provider of ONNX Runtime against the whole model on it, and predicted against measured.

    python benchmarks/gpu.py [MODEL...] [--provider CUDAExecutionProvider] [--library PATH]

`byoc profile` measures the operators of all models on the host and on the provider, and fits what a
crossing costs to models cut in two. By these costs each model is placed on the host alone, on the
provider as one region where it takes all (`region`), and cut at its operators `--host-ops`, which stay
on the host (`cut`). These and the whole model on the provider by onnxruntime alone (`whole`) take turns.
A row has the milliseconds that were predicted and measured (the median), their ratio, and the measured
time over that of `whole`. The costs come from the models that they are held against: this says whether
they add up, crossings included, and not how they predict others.

The library is that of a package (`onnxruntime_ep_openvino`), or the file that onnxruntime-gpu has
(`libonnxruntime_providers_cuda.so`); `--library` names another. CPUExecutionProvider has none: the
codegen `reference` runs its regions, a device that costs what the host does.

Where the provider is not installed it says so, and leaves with 77, as a test that was skipped.

It was run with CPUExecutionProvider and with OpenVINO's provider on a CPU, and not on any GPU.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from byoc.codegens.ort_ep.provider_session import PluginProvider, find_device
from byoc.codegens.ort_ep.region_compiler import OrtEpOptions, open_provider
from common import machine, on_disk

import byoc
from byoc.comparison import Patience, Samples, measure_in_turn
from byoc.errors import MissingRuntimeError
from byoc.onnxrt import open_session, session_runner
from byoc.samples import model_samples
from byoc.zoo import load_model

_MODELS = ("squeezenet", "resnet50")
_CPU = "CPUExecutionProvider"
_SKIPPED = 77
_CUT_AT = "MaxPool,GlobalAveragePool"


@dataclass(frozen=True)
class Device:
    """How regions run on a provider: a codegen with options; `plugin` is None for the CPU's."""

    codegen: str
    options: Mapping[str, str]
    plugin: PluginProvider | None

    def run_whole(self, name: str) -> Callable[[Mapping[str, Any]], Any]:
        """Return a function that runs a model of the zoo by onnxruntime, which optimizes it."""
        with on_disk(name) as path:
            if self.plugin is None:
                return session_runner(open_session(byoc.zoo.load(name)))
            import onnxruntime  # noqa: PLC0415 - where it is missing, the script says so

            options = onnxruntime.SessionOptions()
            options.add_provider_for_devices([find_device(self.plugin)], dict(self.plugin.settings))
            session = onnxruntime.InferenceSession(path, options, enable_fallback=0)
        return lambda inputs: session.run(None, dict(inputs))


def find_provider(provider: str, library: str) -> Device:
    """Return the device of a provider. Raises MissingRuntimeError where it is not installed."""
    if provider == _CPU:
        return Device("reference", {}, None)
    options = {"library": library or find_library(provider), "provider": provider}
    plugin, _ = open_provider(OrtEpOptions(**options))
    return Device("ort_ep", options, plugin)


def find_library(provider: str) -> str:
    """Return the package or file with a provider. Raises MissingRuntimeError where there is none."""
    name = provider.removesuffix("ExecutionProvider").lower()
    for package in (f"onnxruntime_ep_{name}", f"onnxruntime_{name}"):
        if importlib.util.find_spec(package):
            return package
    runtime = importlib.util.find_spec("onnxruntime")
    if runtime and runtime.origin:
        for file in Path(runtime.origin).parent.glob(f"capi/*onnxruntime_providers_{name}.*"):
            return str(file)
    raise MissingRuntimeError(f"no installed package has a provider {provider}")


def write_costs(models: list[str], device: Device, folder: Path, seconds: float) -> dict[str, Any]:
    """Measure the models' operators on host and device; return the files as `partition` takes them."""
    files = {name: folder / f"{name}.yaml" for name in ("host", "device")}
    sources = [f"zoo:{name}" for name in models]
    own = {"device": device.codegen, "codegen_options": dict(device.options), "otherwise": "ort-ep"}
    for name, more in (("host", {"otherwise": "host"}), ("device", own)):
        for note in byoc.profile(sources, files[name], fit=True, seconds=seconds, **more).notes:
            print(f"  {name}: {note}")
    return {"cost_model": files["device"], "host_cost_model": files["host"]}


def measure_model(name: str, device: Device, costs: Mapping[str, Any], rules: Path, wait: float) -> None:
    """Print what a model was predicted to take, and takes, by each placement."""
    inputs = dict(model_samples(load_model(f"zoo:{name}")))
    kinds = {"host": ("ort-ep", "host-only"), "region": ("ort-ep", "all-supported")}
    kinds["cut"] = (str(rules), "all-supported")
    predicted: dict[str, float] = {}
    runs: dict[str, Callable[[], object]] = {"whole": partial(device.run_whole(name), inputs)}
    own = {"codegen": device.codegen, "codegen_options": dict(device.options), "verify": False, **costs}
    with TemporaryDirectory() as folder:
        for kind, (target, strategy) in kinds.items():
            bundle = Path(folder) / kind
            made = byoc.partition(f"zoo:{name}", target, output=bundle, strategy=strategy, **own)
            label = f"{kind}, {len(made.plan.regions)} regions"
            predicted[label] = made.report.predicted.seconds
            runs[label] = partial(byoc.load(bundle), inputs)
        found = measure_in_turn(list(runs.values()), Patience(seconds=wait, least=11))
    medians = {label: Samples.of(each).median for label, each in zip(runs, found, strict=True)}
    print(f"\n{name:24}{'predicted':>12}{'measured':>12}{'ratio':>8}{'of whole':>10}")
    for label, seconds in medians.items():
        guess = predicted.get(label)
        told = "" if guess is None else f"{1e3 * guess:9.2f} ms"
        ratio = "" if guess is None else f"{guess / seconds:.2f}"
        print(f"{label:24}{told:>12}{1e3 * seconds:9.2f} ms{ratio:>8}{seconds / medians['whole']:10.2f}")


def main() -> int:
    """Print the tables, or why there are none, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--provider", default="CUDAExecutionProvider")
    parser.add_argument("--library", default="", help="a package or file with the provider")
    parser.add_argument("--host-ops", default=_CUT_AT, help="where `cut` leaves the provider")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    asked = parser.parse_args()
    try:
        device = find_provider(asked.provider, asked.library)
    except MissingRuntimeError as error:
        print(f"skipped, since {asked.provider} is not here: {error}")
        return _SKIPPED
    print(f"{asked.provider}, {machine()}")
    with TemporaryDirectory() as name:
        rules = Path(name) / "cut.yaml"
        rules.write_text(f"target: cut\nextends: ort-ep\nhost: {{ops: [{asked.host_ops}]}}\n", "utf-8")
        costs = write_costs(list(asked.models), device, Path(name), asked.seconds)
        for model in asked.models:
            measure_model(model, device, costs, rules, asked.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
