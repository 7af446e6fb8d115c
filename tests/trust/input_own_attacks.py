"""Attacks by what lies in the user's own folders, and by what ONNX Runtime is given of a bundle.

A cache, a key or settings that somebody else may have written are not used; those that only the user can
write are trusted, whatever they hold.
"""

import pickle
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import onnx
from forging import SOURCE
from input_attacks import UP, YAML, Attack
from input_box import CANARY, Box, Explosive
from input_files import Words, copy_bundle, find_bundle, partition
from onnx import NodeProto

import byoc
from byoc.errors import InputError
from byoc.onnxrt import build_provider, open_provider_session, register_provider
from byoc.support import build_shared_library
from byoc.support.trust import open_or_create_key, read_settings, read_trusted_keys

PROVIDER_NAME = "byoc"
_KEY = "cd" * 32


def _plan_twice(change: Callable[[Box, Path], None]) -> Callable[[Box], Words]:
    """Return what partitions, changes every entry of the cache, and partitions again."""

    def make(box: Box) -> Words:
        words = partition(box, "--codegen", "dla")
        byoc.partition(
            box.theirs / "model.onnx",
            box.theirs / "vanilla.yaml",
            output=box.theirs / "first",
            strategy="all-supported",
            codegen="dla",
        )
        entries = [path for path in _find_cache(box).rglob("entries/*/*") if path.is_file()]
        assert entries
        for path in entries:
            path.unlink()
            change(box, path)
        return words

    return make


def _find_cache(box: Box) -> Path:
    return box.home / "cache" / "byoc" / "compiled"


def _link_limit(box: Box) -> Words:
    _make_cache(_find_cache(box))
    (_find_cache(box) / "limit").symlink_to(box.secret / "s.txt")
    return ("cache",)


def _make_cache(folder: Path) -> Path:
    folder.mkdir(parents=True, mode=0o700)
    (folder / "CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    return folder


def _link_entries(name: str) -> Callable[[Box], Words]:
    """Return what gives a cache of which a folder is a link to one outside of it."""

    def make(box: Box) -> Words:
        folder = _make_cache(box.theirs / "cache")
        (box.root / "outside").mkdir()
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(box.root / "outside")
        return partition(box, "--codegen", "dla", "--cache-dir", folder)

    return make


def _put_key(put: Callable[[Box, Path], None]) -> Callable[[Box], Callable[[], object]]:
    """Return what puts something where the key of this machine is, and uses that key."""

    def make(box: Box) -> Callable[[], object]:
        path = box.home / "data" / "byoc" / "signing_key"
        path.parent.mkdir()
        put(box, path)
        return open_or_create_key

    return make


def _write_readable(box: Box, path: Path) -> None:
    path.write_text(f"ed25519 {_KEY}\n")
    path.chmod(0o644)


def _write_pickle(box: Box, path: Path) -> None:
    path.write_bytes(pickle.dumps(Explosive(box.command)))
    path.chmod(0o600)


def _use_settings(
    mode: int, name: str, text: str, use: Callable[[], object]
) -> Callable[[Box], Callable[[], object]]:
    """Return what writes a file of the user's settings with a mode, and reads it."""

    def make(box: Box) -> Callable[[], object]:
        program = box.write("python", f"#!/bin/sh\n{box.command}\n")
        program.chmod(0o755)
        path = box.home / "config" / "byoc" / name
        path.parent.mkdir()
        path.write_text(text.replace("<python>", str(program)).replace("{command}", box.command))
        path.chmod(mode)
        return use

    return make


_SETTINGS = "codegens:\n  theirs: {python: <python>, module: 'a:B'}\n"


def _trust_maker(box: Box) -> Words:
    """Trust the maker of a bundle whose folder is named like a line with another key."""
    copied = copy_bundle(box, signed=True)  # by the key of the tests, which is not that of this home
    return ("trust", copied.rename(box.theirs / f"b\n{_KEY} friend"))


@cache
def _build_libraries() -> tuple[Path, Path]:
    """Return the provider of ONNX Runtime, and the driver of codegen `dla`, built once."""
    folder = Path(tempfile.mkdtemp(prefix="byoc-tests-"))
    provider = build_provider(folder / "libprovider.so")
    byoc.make_driver(find_bundle("epcontext"), folder / "libdla.so")
    return provider, folder / "libdla.so"


def _open_context(
    change: Callable[[Box, Path], None], named: bool = True
) -> Callable[[Box], Callable[[], object]]:
    """Return what changes a bundle with a context, and opens `model_ctx.onnx` in ONNX Runtime."""

    def make(box: Box) -> Callable[[], object]:
        _, driver = _build_libraries()
        bundle = copy_bundle(box, "epcontext")
        change(box, bundle)
        drivers = {"dla": driver} if named else {}
        return lambda: open_provider_session(bundle / "model_ctx.onnx", drivers)

    return make


def _edit_context(change: Callable[[NodeProto, Box], None]) -> Callable[[Box, Path], None]:
    """Return what edits the node of a `model_ctx.onnx` that says what its region is."""

    def edit(box: Box, bundle: Path) -> None:
        model = onnx.load(bundle / "model_ctx.onnx", load_external_data=False)
        (node,) = (each for each in model.graph.node if each.op_type == "EPContext")
        change(node, box)
        (bundle / "model_ctx.onnx").write_bytes(model.SerializeToString())

    return edit


def _describe_outside(node: NodeProto, box: Box) -> None:
    """Have the region's description name a file outside, by a path that is as long as the right one."""
    (context,) = (each for each in node.attribute if each.name == "ep_cache_context")
    described = bytes.fromhex(context.s.decode())
    end = described.index(b"/program.bin")
    right = described[described.rindex(b"artifacts/", 0, end) : end + len("/program.bin")]
    wrong = b"../../secret/" + b"/" * (len(right) - len("../../secret/s.bin")) + b"s.bin"
    assert len(wrong) == len(right)
    context.s = described.replace(right, wrong).hex().encode()


def _link_artifact(box: Box, bundle: Path) -> None:
    (path,) = bundle.rglob("program.bin")
    path.unlink()
    path.symlink_to(box.secret / "s.bin")


def _name_outside(node: NodeProto, box: Box) -> None:
    node.name = f"{UP}{box.root}/x"


def _put_driver_beside(box: Box, bundle: Path) -> None:
    source = box.write("evil.c", SOURCE.format(mark=box.mark))
    for path in (bundle / "libdla.so", box.cwd / "libdla.so"):
        build_shared_library("evil", [source], path)


def _give_options(**options: str) -> Callable[[Box], Callable[[], object]]:
    """Return what gives the provider options as an application in C does, and opens a model."""

    def make(box: Box) -> Callable[[], object]:
        bundle = copy_bundle(box, "epcontext")
        provider, driver = _build_libraries()
        _put_driver_beside(box, bundle)
        _link_artifact(box, bundle)

        def open_model() -> object:
            ort = import_module("onnxruntime")
            settings = ort.SessionOptions()
            register_provider(settings, {}, provider)  # registers it; the session below has its own
            chosen = ort.SessionOptions()
            devices = [each for each in ort.get_ep_devices() if each.ep_name == PROVIDER_NAME]
            given = {
                name.replace("_", "."): value.format(driver=driver, box=box)
                for name, value in options.items()
            }
            chosen.add_provider_for_devices(devices[:1], given)
            try:
                content = (bundle / "model_ctx.onnx").read_bytes()
                return ort.InferenceSession(content, chosen, enable_fallback=0)
            except Exception as error:  # ONNX Runtime's errors share no base but this
                raise InputError(str(error)) from None

        return open_model

    return make


OWN_ATTACKS = (
    Attack(
        "cache",
        "reads",
        "link",
        _plan_twice(lambda box, path: path.symlink_to(box.secret / "s.bin")),
        "",
        0,
    ),
    Attack("cache", "reads", "limit", _link_limit, "", 0),
    Attack("cache", "writes", "entries", _link_entries("entries"), "entries is a link"),
    Attack("cache", "writes", "some entries", _link_entries("entries/ab"), "ab is a link"),
    Attack("cache", "executes", "pickle", _plan_twice(_write_pickle), "", 0),
    Attack(
        "signing key",
        "reads",
        "link",
        _put_key(lambda box, path: path.symlink_to(box.secret / "s.txt")),
        "is a link",
    ),
    Attack("signing key", "reads", "others", _put_key(_write_readable), "others may read or write it"),
    Attack(
        "signing key",
        "writes",
        "link",
        _put_key(lambda box, path: path.symlink_to(box.root / "x")),
        "is a link",
    ),
    Attack("signing key", "executes", "pickle", _put_key(_write_pickle), "not a key of byoc"),
    Attack(
        "settings",
        "reads",
        "others",
        _use_settings(0o666, "trusted_keys", f"{_KEY}\n", read_trusted_keys),
        "others may write it",
    ),
    Attack(
        "settings",
        "reads",
        "quoted",
        _use_settings(0o644, "trusted_keys", f"{CANARY}\n", read_trusted_keys),
        "line 1: not a key",
    ),
    Attack("settings", "writes", "name", _trust_maker, "Trusted from now on", 0),
    Attack(
        "settings",
        "executes",
        "others",
        _use_settings(0o666, "settings.yaml", _SETTINGS, read_settings),
        "others may write it",
    ),
    Attack(
        "settings",
        "executes",
        "yaml",
        _use_settings(0o644, "settings.yaml", f"codegens: {YAML}\n", read_settings),
        "not valid YAML",
    ),
    Attack(
        "EPContext model",
        "reads",
        "link",
        _open_context(_link_artifact),
        "link|cannot be (read|opened)|not inside",
        needs="plug-ins",
    ),
    Attack(
        "EPContext model",
        "reads",
        "parent",
        _open_context(_edit_context(_describe_outside)),
        "path|not inside|allowed",
        needs="plug-ins",
    ),
    Attack(
        "EPContext model",
        "writes",
        "name",
        _open_context(_edit_context(_name_outside)),
        "",
        0,
        needs="plug-ins",
    ),
    Attack(
        "EPContext model",
        "executes",
        "library beside",
        _open_context(_put_driver_beside, named=False),
        "driver",
        needs="plug-ins",
    ),
    Attack(
        "provider option",
        "reads",
        "link",
        _give_options(driver_dla="{driver}", folder="{box.theirs}/b"),
        "is a link|Too many levels",
        needs="plug-ins",
    ),
    Attack(
        "provider option",
        "writes",
        "folder",
        _give_options(driver_dla="{driver}", folder="{box.root}/none"),
        "folder",
        needs="plug-ins",
    ),
    Attack(
        "provider option",
        "executes",
        "relative driver",
        _give_options(driver_dla="libdla.so"),
        "it must be an absolute path",
        needs="plug-ins",
    ),
)
