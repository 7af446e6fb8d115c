"""Packages: several models for several devices, all bytes once, changed without a compiler."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from byoc.codegens.dla import DLA
from helpers.support import VANILLA, Ran, parse
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import byoc
from byoc import load
from byoc.bundle import list_models, open_bundle
from byoc.codegen import Artifact, InputError, Region
from byoc.model import find_external_data, walk_tensors

SIZE = 512  # of a weight: 2 KiB of float32, more than stays in a model's own file


def make_weights(seed: int) -> onnx.TensorProto:
    values = np.random.default_rng(seed).standard_normal(SIZE).astype(np.float32)
    return numpy_helper.from_array(values, "w")


def build_model(first: int, second: int, host: str = "Sigmoid") -> onnx.ModelProto:
    """Return a model of two regions, each with a weight, that the host parts."""
    model = parse(
        f"m (float[1, {SIZE}] x) => (float[1, {SIZE}] y) "
        f"{{ a = Add(x, w) b = Relu(a) c = {host}(b) y = Add(c, v) }}"
    )
    for name, seed in (("w", first), ("v", second)):
        tensor = make_weights(seed)
        tensor.name = name
        model.graph.initializer.append(tensor)
    return model


MODELS = {
    "detector": build_model(1, 2),
    "recognizer": build_model(1, 3),  # its first region is the detector's
    "classifier": build_model(4, 3, "Tanh"),
}
X = np.linspace(-2, 2, SIZE, dtype=np.float32)[None]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return two devices, of which the second computes what the first does."""
    folder = tmp_path_factory.mktemp("rules")
    shutil.copy(VANILLA, folder / "npu.yaml")
    (folder / "pc.yaml").write_text("extends: npu.yaml\ntarget: pc\n")
    return {name: str(folder / f"{name}.yaml") for name in ("npu", "pc")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, rules: Mapping[str, str]) -> Path:
    """Return the package of all models for both devices, which no test changes."""
    path = tmp_path_factory.mktemp("made") / "p"
    with pytest.MonkeyPatch.context() as patch:
        names = count_compiles(patch)
        results = make(path, rules)
    # Of 6 regions a device 4 differ: the first of the detector and the recognizer are the same, and the
    # second of the recognizer and the classifier.
    assert len(names) == 2 * 4
    assert [result.bundle for result in results.values()] == list_models(path)
    return path


@pytest.fixture
def package(made: Path, tmp_path: Path) -> Path:
    """Return a package of its own for a test."""
    return Path(shutil.copytree(made, tmp_path / "p"))


def count_compiles(patch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the regions that `dla` compiles from now on."""
    names: list[str] = []
    compile_region = DLA.compile

    def count(self: DLA, region: Region, options: Any) -> Artifact:
        names.append(region.name)
        return compile_region(self, region, options)

    patch.setattr(DLA, "compile", count)
    return names


def make(path: Path, rules: Mapping[str, str], models: Any = None, **options: Any) -> Any:
    given = {"strategy": "all-supported", "codegen": "dla", "cache": False}
    return byoc.package(models or MODELS, output=path, devices=rules, **{**given, **options})


def check_outputs(path: Path, models: Mapping[str, onnx.ModelProto] = MODELS) -> None:
    """Every variant of every model of a package computes what its model does."""
    assert [each.name for each in list_models(path)] == [*models]
    for each in list_models(path):
        (expected,) = ReferenceEvaluator(models[each.name]).run(None, {"x": X})
        for variant in open_bundle(each).variants:
            session = byoc.load(each, variant=variant.variant.name, isolate=False)
            np.testing.assert_allclose(session({"x": X})["y"], expected, rtol=1e-6, atol=1e-6)


def find_places(folder: Path) -> dict[str, set[tuple[str, int]]]:
    """Return the file and offset of each weight of a package, by the SHA-256 of its bytes."""
    found: dict[str, set[tuple[str, int]]] = {}
    for path in folder.glob("*.onnx"):
        for tensor in walk_tensors(onnx.load(path, load_external_data=False)):
            place = find_external_data(tensor, folder)
            if place is not None:
                content = place.path.read_bytes()[place.offset : place.offset + place.length]
                assert len(content) == SIZE * 4
                digest = hashlib.sha256(content).hexdigest()
                found.setdefault(digest, set()).add((place.path.name, place.offset))
    return found


def count_weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.weights.bin"))


def test_weights_and_artifacts_are_stored_once(made: Path) -> None:
    check_outputs(made)
    assert {len(each) for each in find_places(made).values()} == {1}
    assert count_weight_bytes(made) == 4 * SIZE * 4
    stored = [path.read_bytes() for path in (made / "artifacts").rglob("*") if path.is_file()]
    assert len(stored) == len({*stored})


def test_what_stays_is_not_compiled_again(
    package: Path, tmp_path: Path, rules: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = count_compiles(monkeypatch)
    byoc.reduce_package(package, tmp_path / "small", without=["detector"])
    check_outputs(package)  # as it was
    left = {name: MODELS[name] for name in ("recognizer", "classifier")}
    check_outputs(tmp_path / "small", left)
    assert len(find_places(tmp_path / "small")) == 3
    assert count_weight_bytes(tmp_path / "small") == 3 * SIZE * 4
    byoc.reduce_package(package, without=["recognizer"])
    check_outputs(package, {name: MODELS[name] for name in ("detector", "classifier")})
    byoc.reduce_package(package, tmp_path / "pc", device="pc")
    first, _ = list_models(tmp_path / "pc")
    assert [each.variant.name for each in open_bundle(first).variants] == ["pc"]
    assert not list((tmp_path / "pc").glob("*npu*.onnx"))
    assert byoc.find_fitting(first).choice is not None
    check_outputs(tmp_path / "pc", {name: MODELS[name] for name in ("detector", "classifier")})
    assert not compiled
    make(package, rules, {"recognizer": MODELS["recognizer"]}, base=package)
    check_outputs(package, {name: MODELS[name] for name in ("detector", "classifier", "recognizer")})
    assert {name.rpartition("_")[2] for name in compiled} == {"recognizer"}
    assert {len(each) for each in find_places(package).values()} == {1}


@pytest.mark.parametrize("knows", [False, True])
def test_weights_that_nothing_reads_are_gone(
    knows: bool, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless an artifact knows at which offsets of the file its weights lie."""
    monkeypatch.setattr(DLA, "refers_to_weights", knows, raising=False)
    first = next(package.glob("detector.npu.weights.bin"))
    assert first.stat().st_size == 2 * SIZE * 4  # the recognizer reads one of the two
    byoc.reduce_package(package, tmp_path / "q", without=["detector", "classifier"])
    left = (tmp_path / "q" / first.name).stat().st_size
    assert left == (2 if knows else 1) * SIZE * 4
    check_outputs(tmp_path / "q", {"recognizer": MODELS["recognizer"]})
    assert {len(each) for each in find_places(tmp_path / "q").values()} == {1}


def test_a_packed_package_is_one(made: Path, tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    assert byoc("pack", made, "-o", tmp_path / "p.zip").code == 0
    check_outputs(tmp_path / "p.zip")
    shutil.copy(tmp_path / "p.zip", tmp_path / "q.zip")
    ran = byoc("package", "remove", tmp_path / "q.zip", "detector", "classifier")
    assert ran.code == 0, ran.err
    assert f"Written to {tmp_path / 'q.zip'}: 1 model for npu, pc" in ran.out
    check_outputs(tmp_path / "q.zip", {"recognizer": MODELS["recognizer"]})
    ran = byoc("pack", made / "detector", "-o", tmp_path / "r.zip")
    assert ran.code == 1
    assert ran.err == f"byoc: {made / 'detector'}: is one of the models of a package: pack {made}\n"


def test_verbs_take_all_models_or_one(made: Path, tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    for verb in (("inspect",), ("inspect", "--fits"), ("verify",)):
        ran = byoc(*verb, made, "--format", "json")
        assert (ran.code, ran.err) == (0, "")
        documents = json.loads(ran.out)["models"]
        assert [*documents] == [*MODELS]
        one = byoc(*verb, made / "detector", "--format", "json")
        assert one.code == 0
        found = json.loads(one.out)
        assert documents["detector"] == {key: found[key] for key in documents["detector"]}
        assert byoc(*verb, made).code == 0
    ran = byoc("run", made / "detector", "--inputs", "random", "-o", tmp_path / "y.npz")
    assert ran.code == 0, ran.err
    ran = byoc("run", made / "detector", "--inputs", "random", "-o", made / "y.npz")
    assert "it would change the bundle that is run" in ran.err
    for verb in (("run", "--inputs", "random"), ("report", "-o", tmp_path / "r.html")):
        ran = byoc(verb[0], made, *verb[1:])
        assert ran.code == 1
        names = ", ".join(str(made / name) for name in MODELS)
        assert ran.err.endswith(f"is a package, and this takes one of its models: {names}\n")
    ran = byoc("inspect", made / "detecter")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "detecter: no such model (did you mean detector?); there are" in ran.err


def test_a_package_is_trusted_and_signed_as_a_whole(
    package: Path, tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    import byoc as library  # noqa: PLC0415 - the fixture has its name

    (package / "signature.json").unlink()
    monkeypatch.setattr("byoc.support.trust._WRITTEN", set())
    ran = byoc("inspect", package)
    assert "signed by: nobody" in ran.out
    assert "there is no key to trust" in byoc("trust", package).err
    ran = byoc("package", "split", package, "--for", "pc", "-o", tmp_path / "pc")
    assert ran.code == 0
    assert "the package is not signed: what it takes over from" in ran.err
    assert not library.bundle.judge_path(tmp_path / "pc").trusted
    assert not (tmp_path / "pc/signature.json").exists()


def test_what_was_changed_is_refused(package: Path) -> None:
    names = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    for name in sorted(names - {"signature.json"}):
        content = (package / name).read_bytes()
        (package / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        refused = 0
        for each in MODELS:
            try:
                open_bundle(package / each)
            except InputError as error:
                refused += 1
                assert len(error.lines) == 1
        assert refused or name == "manifest.json", name  # which ends in a line break
        (package / name).write_bytes(content)
    (package / "detector.manifest.json").unlink()
    with pytest.raises(InputError, match=r"p: a package without its detector\.manifest\.json$"):
        open_bundle(package / "detector")
    open_bundle(package / "recognizer")


def write_yaml(folder: Path, rules: Mapping[str, str], more: str = "") -> Path:
    for name, model in MODELS.items():
        onnx.save(model, folder / f"{name}.onnx")
    (folder / "app.yaml").write_text(
        f"devices: {{npu: {rules['npu']}}}\nstrategy: all-supported\n"
        "models:\n  detector: detector.onnx\n  recognizer:\n    model: recognizer.onnx\n"
        f"    devices: {{pc: {rules['pc']}}}\n{more}"
    )
    return folder / "app.yaml"


def test_a_file_says_what_is_in_it(
    tmp_path: Path, rules: Mapping[str, str], byoc: Callable[..., Ran]
) -> None:
    file = write_yaml(tmp_path, rules)
    ran = byoc("package", file, "-o", tmp_path / "p")
    assert ran.code == 0, ran.err
    found = {each.name: open_bundle(each).manifest for each in list_models(tmp_path / "p")}
    assert {name: [v.name for v in each.variants] for name, each in found.items()} == {
        "detector": ["npu"],
        "recognizer": ["pc"],
    }
    ran = byoc(
        "package", "add", tmp_path / "p", tmp_path / "classifier.onnx", "--for", f"pc={rules['pc']}"
    )
    assert ran.code == 0, ran.err
    assert [each.name for each in list_models(tmp_path / "p")] == [*MODELS]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("{m}", "{m}"), "{m}: the package has a model 'detector' already: give NAME={m}"),
        (("1st={m}",), "no such file"),
        (("a={m}", "A={m}"), "models a and A cannot be told apart on every system"),
        (("artifacts={m}",), "model 'artifacts': a name in a package is a letter, and then"),
        (("{m}", "--for", "pc_1={r}"), "devices pc and pc_1 cannot be told apart: pc_1 would be a"),
        (("{m}", "--for", "PC={r}"), "devices PC and pc cannot be told apart on every system"),
        (("{m}", "--variant", "s:rules=dla"), "variant 's': devices say what rule files it has"),
        (("{m}", "--for", "b=none.yaml"), "model detector: none.yaml: "),
        (("{m}", "gone.onnx"), "model gone: variant pc: gone.onnx: no such file"),
        (("{m}", "-o", "{p}.zip", "--weights", "link"), "a packed bundle holds its weights"),
        (("{y}",), "{y}: models.classifier: no option 'quantise' (did you mean quantize?)"),
        (("{n}",), "{n}: models: the name False is not text: quote it"),
        (("{y}", "{m}"), "{y} is to be alone: it names all models"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    rules: Mapping[str, str],
    byoc: Callable[..., Ran],
) -> None:
    wrong = "  classifier: {model: classifier.onnx, quantise: int8}\n"
    names = {"y": write_yaml(tmp_path, rules, wrong), "m": tmp_path / "detector.onnx"}
    names |= {"r": Path(rules["npu"]), "p": tmp_path / "p", "n": tmp_path / "names.yaml"}
    names["n"].write_text("models: {off: detector.onnx}\n")
    device = () if {"{y}", "{n}"} & {*arguments} else ("--for", f"pc={rules['pc']}")
    ran = byoc("package", "-o", tmp_path / "p", *(each.format(**names) for each in arguments), *device)
    assert ran.code in {1, 2}
    assert sentence.format(**names) in ran.err
    assert not (tmp_path / "p").exists()
    assert not list(tmp_path.glob(".byoc-*"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", "{p}", "detector={m}"), "detector: the package has a model of that name already"),
        (("remove", "{p}", "detecter"), "{p}: no model 'detecter' (did you mean detector?); it has "),
        (("remove", "{p}", *MODELS), "{p}: no model would be left, and a package has at least one"),
        (("split", "{p}", "--for", "phone", "-o", "{p}2"), "{p}: no device 'phone'; it has npu, pc"),
        (("split", "gone", "--for", "pc", "-o", "{p}2"), "gone: no such bundle"),
        (("remove", "{m}", "a"), "{m}: exists and is not a bundle, so it is not replaced"),
    ],
)
def test_what_cannot_be_changed_stays(
    arguments: tuple[str, ...],
    sentence: str,
    package: Path,
    rules: Mapping[str, str],
    byoc: Callable[..., Ran],
) -> None:
    onnx.save(MODELS["detector"], package.with_name("m.onnx"))
    before = {path: path.stat().st_mtime_ns for path in package.rglob("*")}
    names = {"p": package, "m": package.with_name("m.onnx")}
    device = ("--for", f"pc={rules['pc']}") if arguments[0] == "add" else ()
    ran = byoc("package", *(each.format(**names) for each in arguments), *device)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert sentence.format(**names) in ran.err
    assert before == {path: path.stat().st_mtime_ns for path in package.rglob("*")}


def test_a_folder_inside_takes_no_models_place(
    package: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = parse(f"m (float[1, {SIZE}] x) => (float[1, {SIZE}] y) {{ y = Relu(x) }}")
    onnx.save(other, package.with_name("m.onnx"))
    arguments = ("partition", package.with_name("m.onnx"), "--rules", VANILLA, "--no-verify", "-o")
    for path in (package / "detector", package / "new"):
        ran = byoc(*arguments, path)
        assert (ran.code, path.exists()) == (1, False)
        assert f"{path}: is not written: it would lie in another bundle, or in a package" in ran.err

    assert byoc(*arguments, package.with_name("other")).code == 0
    package.with_name("other").rename(package / "detector")
    check_outputs(package)
    monkeypatch.chdir(package)
    assert [*list_models(Path())] == [Path(name) for name in MODELS]


def test_regions_of_two_models_have_names_of_their_own(
    tmp_path: Path, rules: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = count_compiles(monkeypatch)
    first, second = MODELS["detector"], MODELS["recognizer"]
    models = {"net": {"model": first, "variants": {"x": {}}}, "x_net": second}  # both end in _pc_x_net
    with pytest.raises(InputError, match=r"model x_net: its variant 'pc' cannot be told from 'pc_x' of"):
        make(tmp_path / "p", {"pc": rules["pc"]}, models)
    assert compiled == [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize("sharing", ["link", "reference"])
def test_weights_beside_the_models_are_shared(
    sharing: str, tmp_path: Path, rules: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {name: MODELS[name] for name in ("detector", "recognizer")}
    for name, model in two.items():
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, tmp_path / f"{name}.onnx", save_as_external_data=True, location=f"{name}.bin")
    models = [tmp_path / f"{name}.onnx" for name in two]
    (tmp_path / "a").mkdir()
    (tmp_path / "b/c").mkdir(parents=True)
    make(tmp_path / "a/p", {"npu": rules["npu"]}, models, weights=sharing)
    assert not list((tmp_path / "a/p").glob("*.weights.bin"))
    check_outputs(tmp_path / "a/p", two)
    byoc.reduce_package(tmp_path / "a/p", tmp_path / "b/c/q", without=["detector"])
    check_outputs(tmp_path / "b/c/q", {"recognizer": two["recognizer"]})
    (tmp_path / "a/p/signature.json").unlink()
    monkeypatch.setattr("byoc.support.trust._WRITTEN", set())
    refused = sharing == "reference"  # a stranger would learn which files there are
    with pytest.raises(InputError, match="refers to weights outside") if refused else nullcontext():
        byoc.reduce_package(tmp_path / "a/p", tmp_path / "r", without=["detector"])
    assert (tmp_path / "r").exists() != refused


def test_a_device_has_a_precision_of_its_own(tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    """One computes in int8, the other in float32; what both store equally is there once."""
    draw = np.random.default_rng(5).standard_normal
    model = parse(
        "m (float[1, 32] x) => (float[1, 512] z) "
        "{ a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) s = CumSum(y, k) z = Max(s, t) }"
    )
    for name, shape in (("w", (32, 64)), ("v", (64, 512)), ("t", (1, 512))):
        value = draw(shape).astype(np.float32) / 4
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "k"))
    onnx.save(model, tmp_path / "net.onnx")
    (tmp_path / "max.yaml").write_text("extends: dla\nops: [{op: Max, remove: true}]\n")
    (tmp_path / "app.yaml").write_text(
        "devices:\n  tablet: dla\n  phone: {rules: dla, quantize: int8, data: random}\n"
        "models: {net: net.onnx}\nstrategy: all-supported\n"
    )
    ran = byoc("package", tmp_path / "app.yaml", "-o", tmp_path / "p")
    assert ran.code == 0, ran.err
    manifest = open_bundle(tmp_path / "p/net").manifest
    tablet, phone = manifest.variants
    assert phone.report.precision is not None
    assert (phone.report.precision.dtype, tablet.report.precision) == ("int8", None)
    assert manifest.asked["precisions"]["phone"]["quantize"] == "int8"
    on_host = numpy_helper.to_array(model.graph.initializer[2]).tobytes()
    assert sum(each.read_bytes().count(on_host) for each in (tmp_path / "p").glob("*.bin")) == 1
    x = draw((1, 32)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    for name, share in (("phone", 0.05), ("tablet", 1e-5)):
        found = load(tmp_path / "p/net", prefer=name)({"x": x})["z"]
        assert np.abs(found - expected).max() <= share * np.ptp(expected)
    told = [
        ("a=dla,quantize=int9", "device 'a': quantize: int9 is not among int8"),
        ("a=dla,quantise=int8", "device 'a': no option 'quantise' (did you mean quantize?)"),
        ("a=dla,quantize=int8,quantize=int8", "device 'a': quantize is given twice"),
        ("a=,quantize=int8", "device 'a': rules names no rule file"),
    ]
    for given, sentence in told:
        ran = byoc("package", "-o", tmp_path / "q", tmp_path / "net.onnx", "--for", given)
        assert (ran.code, (tmp_path / "q").exists()) == (1, False)
        assert sentence in ran.err


def test_sentences_on_packages_name_the_file_and_what_there_is(
    package: Path, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    file = tmp_path / "app.yaml"
    for content, sentence in (
        ("devices: {b: []}\nmodels: {net: zoo:squeezenet}", "variant 'b': rules names no rule file"),
        ("models: {net: zoo:squeezenet}", "devices: none is given"),
        (
            "rules: dla\nmodels: {net: {modell: zoo:squeezenet}}",
            "models.net: no option 'modell' (did you mean model?)",
        ),
        ("rules: dla\nmodells: {net: zoo:squeezenet}", "no option 'modells' (did you mean models?)"),
        ("devices: {b: dla}\nmodels: {con: zoo:squeezenet}", "model 'con': no file can have this name"),
    ):
        file.write_text(content)
        ran = byoc("package", file, "-o", tmp_path / "q")
        assert ran.code == 1
        assert f"{file}: {sentence}" in ran.err
    for command, sentence in (
        (("trust", package / "detector"), f"its package has: trust {package}"),
        (
            ("pack", package / "zz", "-o", tmp_path / "z.zip"),
            f"{package / 'zz'}: no such model; there are",
        ),
        (("pack", package / "detector", "-o", tmp_path / "z.zip"), f"of a package: pack {package}"),
    ):
        ran = byoc(*command)
        assert (ran.code, sentence in ran.err) == (1, True), ran.err


def test_options_of_a_model_stand_beside_it(tmp_path: Path) -> None:
    models = {"net": {"model": "zoo:squeezenet", "options": {}}}
    with pytest.raises(InputError, match=r"^model 'net': no option 'options': give options beside"):
        byoc.package(models, rules="dla", output=tmp_path / "p")
    assert not (tmp_path / "p").exists()
