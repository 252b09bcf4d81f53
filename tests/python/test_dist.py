"""Distributed files: the checks on wheels find faults, builds name what is missing, and the
workflows do nothing that cannot be done here. None of it needs zig.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import types
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from runs import ROOT, memfit

DIST = ROOT / "scripts" / "dist"
INFO = "memfit-0.1.0.dist-info"
NAME = "memfit-0.1.0-cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of scripts/dist."""
    monkeypatch.syspath_prepend(str(DIST))

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield module
    for name in [name for name in sys.modules if (DIST / f"{name}.py").exists()]:
        del sys.modules[name]


def files() -> dict[str, tuple[bytes, int]]:
    return {
        "memfit/__init__.py": (b"", 0o644),
        "memfit/_device/libcuda.so.1": (b"\0" * 100, 0o755),
        f"{INFO}/METADATA": (b"Name: memfit\n", 0o644),
        f"{INFO}/RECORD": (b"", 0o644),
    }


def test_a_wheel_is_written_the_same_from_the_same_files(dist: Any, tmp_path: Path) -> None:
    wheels = dist("wheels")
    one, other = tmp_path / "one.whl", tmp_path / "other.whl"
    wheels.write(one, files(), 1_700_000_000)
    wheels.write(other, dict(reversed(files().items())), 1_700_000_000)
    assert one.read_bytes() == other.read_bytes()
    assert wheels.epoch(one) == 1_700_000_000
    back = wheels.read(one)
    assert wheels.wrong_records(back) == []
    assert back["memfit/_device/libcuda.so.1"][1] & 0o111
    back["memfit/__init__.py"] = (b"changed", 0o644)
    back["memfit/more.py"] = (b"", 0o644)
    assert wheels.wrong_records(back) == ["memfit/__init__.py", "memfit/more.py"]
    wheels.write(other, files(), 1_800_000_000)
    assert one.read_bytes() != other.read_bytes()


def test_the_check_finds_what_is_wrong_with_a_wheel(
    dist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, wheels = dist("check"), dist("wheels")
    monkeypatch.setattr(check, "of_library", lambda _: iter(()))
    spoiled = files()
    path = b"\x7fELF\0" + b"/root/.cargo/registry/src/x/lib.rs"
    spoiled["memfit/_device/libcuda.so.1"] = (path, 0o755)
    wheel = tmp_path / NAME.replace("manylinux2014_x86_64.manylinux_2_17", "linux")
    wheels.write(wheel, spoiled, 1_700_000_000)
    monkeypatch.setattr(check, "MAX_WHEEL", 100)
    said = "\n".join(check.of_wheel(wheel))
    assert "must stay under 100" in said
    assert "is not tagged abi3" in said
    assert "there is no licenses/THIRD-PARTY.txt" in said
    assert "there is no sboms/memfit.cdx.json" in said
    assert "names a folder of the machine" in said


@pytest.mark.parametrize(
    ("tag", "good"),
    [
        ("manylinux_2_28_x86_64", True),
        ("manylinux_2_17_x86_64", True),
        ("manylinux2014_aarch64.manylinux_2_17_aarch64", True),
        ("manylinux2014_x86_64.manylinux_2_17_aarch64", False),
        ("manylinux_2_35_x86_64", False),
        ("linux_x86_64", False),
        ("manylinux_2_28_riscv64", False),
    ],
)
def test_wheel_tags_must_suit_an_index_and_old_systems(dist: Any, tag: str, good: bool) -> None:
    named = dist("check").WHEEL_NAME.fullmatch(f"memfit-0.1.0-cp310-abi3-{tag}.whl")
    assert bool(named and int(named[2]) <= 28) is good


def test_a_bill_of_materials_names_licences_and_hashes(dist: Any, tmp_path: Path) -> None:
    inventory, check = dist("inventory"), dist("check")
    (tmp_path / "LICENSE-MIT").write_text("Permission for one")
    whole = inventory.Component("one", "1.0.0", "MIT", "ab" * 32, (), tmp_path)
    bare = inventory.Component("two", "2.0.0", "MIT", None, ("Somebody",), tmp_path / "none")
    (tmp_path / "none").mkdir()
    bill = inventory.bill_of_materials([whole, bare], "0.1.0", ["libunwind"])
    assert bill == inventory.bill_of_materials([whole, bare], "0.1.0", ["libunwind"])
    said = "\n".join(check.of_bill(bill.encode()))
    assert "two has no licence or no hash" in said
    assert "one has" not in said
    notices = inventory.notices([whole, bare], [], "MIT\n\nPermission is hereby granted")
    assert "Permission for one" in notices
    assert "Copyright (c) Somebody\n\nPermission is hereby granted" in notices
    gpl = inventory.Component("three", "1.0.0", "GPL-3.0", None, (), tmp_path / "none")
    with pytest.raises(inventory.InventoryError, match="three"):
        inventory.notices([gpl], [], "")


def test_every_crate_that_is_shipped_states_its_licence(dist: Any) -> None:
    inventory = dist("inventory")
    found = inventory.components(ROOT, "x86_64-unknown-linux-gnu")
    assert len(found) > 50
    assert {"pyo3", "turbojpeg-sys", "rustix"} <= {each.name for each in found}
    # What a build runs is not in what is shipped.
    assert not {"cc", "cmake", "syn", "proptest", "insta"} & {each.name for each in found}
    text = inventory.notices(found, [], (ROOT / "LICENSE-MIT").read_text())
    assert "Independent JPEG Group" in text
    assert not [each.name for each in found if f"{each.name} {each.version}" not in text]


def missing(path: str, python: str = sys.executable, **more: str) -> subprocess.CompletedProcess[str]:
    code = "import memfit_build; print(memfit_build.get_requires_for_build_wheel())"
    environment = {name: value for name, value in os.environ.items() if name not in ("CARGO", "CC")}
    environment |= {"PATH": path, "PYTHONPATH": str(ROOT / "packaging"), **more}
    return subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False)


def program(folder: Path, name: str, said: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{said}'\n")
    (folder / name).chmod(0o755)


def test_without_cargo_a_build_says_so_before_it_fetches_anything(tmp_path: Path) -> None:
    done = missing(str(tmp_path))
    assert done.returncode
    assert done.stderr.startswith("error: building memfit from source takes Rust, and there is no `cargo`")
    assert "rustup" in done.stderr
    assert "puccinialin" not in done.stdout


def test_without_a_compiler_a_build_says_so(tmp_path: Path) -> None:
    program(tmp_path, "cargo", "cargo 9.99.0 (abc 2030-01-01)")
    done = missing(str(tmp_path))
    assert done.returncode
    assert "there is no `cc`" in done.stderr
    assert "apt install gcc" in done.stderr
    program(tmp_path, "cc")
    done = missing(str(tmp_path))
    assert not done.returncode, done.stderr
    assert "maturin==" in done.stdout


def test_with_an_old_rust_a_build_says_which_it_needs(tmp_path: Path) -> None:
    program(tmp_path, "cargo", "cargo 1.63.0 (fd9c4297c 2022-07-01)")
    program(tmp_path, "cc")
    done = missing(str(tmp_path))
    assert done.returncode
    assert "memfit needs Rust 1.95 or later, and `cargo` is 1.63" in done.stderr


@pytest.mark.parametrize(("failing", "built"), [("no-such-feature", "turbo"), ("turbo", "plain")])
def test_a_build_goes_on_without_libjpeg_turbo_where_that_does_not_compile(
    tmp_path: Path, failing: str, built: str
) -> None:
    program(tmp_path, "cmake")
    code = f"""
import memfit_build

def build(settings):
    arguments = settings.get("build-args", [])
    if {failing!r} in arguments:
        raise SystemExit(1)
    return "turbo" if "turbo" in arguments else "plain"

print(memfit_build.with_best_jpeg({{}}, build))
"""
    environment = {name: value for name, value in os.environ.items() if name != "MEMFIT_GLIBC"}
    environment |= {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "packaging")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [built], done.stderr
    assert ("libjpeg-turbo cannot be built here" in done.stderr) == (built == "plain")


def test_an_old_python_can_read_the_backend_and_is_told() -> None:
    old = Path.home() / ".pyenv/versions"
    found = sorted(old.glob("3.[789].*/bin/python"))
    if not found:
        pytest.skip("there is no Python before 3.10 here")
    done = missing(os.environ["PATH"], str(found[-1]))
    assert done.returncode
    assert "memfit needs Python 3.10 or later" in done.stderr


def test_the_backend_and_the_requirements_name_one_maturin() -> None:
    backend = (ROOT / "packaging/memfit_build.py").read_text()
    (named,) = re.findall(r'^MATURIN = "(maturin==.+)"$', backend, re.M)
    for file in ("dist.in", "check.in"):
        assert named in (ROOT / "requirements" / file).read_text().splitlines()


def test_the_steps_of_workflows_are_targets_of_the_makefile() -> None:
    yaml = pytest.importorskip("yaml")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    assert len(workflows) == 3
    for file in workflows:
        for job in yaml.safe_load(file.read_text())["jobs"].values():
            for command in (step["run"] for step in job["steps"] if "run" in step):
                words = command.split()
                assert words[0] == "make", f"{file.name}: {command}"
                assert words[1] in targets, f"{file.name}: {command}"
    for file in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        yaml.safe_load(file.read_text())


def test_notes_come_from_the_changelog(dist: Any) -> None:
    release = dist("release")
    text = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2027-01-02\n\n- B\n\n## 0.1.0 - 2026-11-22\n\n- A\n"
    assert release.notes(text, "0.2.0") == "- B"
    assert release.notes(text, "0.1.0") == "- A"
    assert release.notes(text, "0.3.0") == ""
    assert release.disagreements(ROOT, None) == []
    assert any("the tag is `v9.9.9`" in fault for fault in release.disagreements(ROOT, "v9.9.9"))


def test_the_index_gets_the_wheels_of_all_processors_and_one_sdist(dist: Any, tmp_path: Path) -> None:
    here, arm = tmp_path / "dist", tmp_path / "dist-arm"
    for folder, processor in ((here, "x86_64"), (arm, "aarch64")):
        folder.mkdir()
        for name in (f"memfit-1-cp310-abi3-manylinux_2_17_{processor}.whl", "memfit-1.tar.gz", "SHA256SUMS"):
            (folder / name).write_text(processor)
        (folder / f"memfit-1-{processor}-unknown-linux-gnu.tar.gz").touch()
    sent = {file.name: file.read_text() for file in dist("release").upload(here, arm).iterdir()}
    assert sent == {
        "memfit-1-cp310-abi3-manylinux_2_17_aarch64.whl": "aarch64",
        "memfit-1-cp310-abi3-manylinux_2_17_x86_64.whl": "x86_64",
        "memfit-1.tar.gz": "x86_64",
    }


def test_the_action_takes_awkward_names(dist: Any, tmp_path: Path) -> None:
    """Its steps as they are written, all but the installation."""
    pytest.importorskip("yaml")
    action = dist("action")
    action.checkout(tmp_path / "checkout")
    folder = tmp_path / "runner/memfit/bin"
    folder.mkdir(parents=True)
    (folder / "memfit").symlink_to(memfit())
    (folder / "python").symlink_to(sys.executable)
    given = {"paths": action.PATHS, "sarif": "found.sarif"}
    ended = action.carry_out(ROOT / "action.yml", given, tmp_path, leave_out=("Install",))
    action.hold(ended, tmp_path)


def test_the_archive_of_the_stand_alone_command_is_the_same_again(dist: Any, tmp_path: Path) -> None:
    build = dist("build")
    contents = {"top/b": (b"2", 0o644), "top/a": (b"1", 0o755)}
    one = build.archive(tmp_path / "one.tar.gz", contents, 1_700_000_000).read_bytes()
    assert (
        one
        == build.archive(
            tmp_path / "two.tar.gz", dict(reversed(contents.items())), 1_700_000_000
        ).read_bytes()
    )


def test_a_finished_wheel_has_licences_and_a_bill_of_materials(dist: Any, tmp_path: Path) -> None:
    build, wheels = dist("build"), dist("wheels")
    built = tmp_path / "built" / NAME
    built.parent.mkdir()
    raw = files() | {
        f"{INFO}/METADATA": (b"Name: memfit\nLicense-File: LICENSE-MIT\n", 0o644),
        f"{INFO}/sboms/memfit-py.cyclonedx.json": (b"{}", 0o644),
    }
    wheels.write(built, raw, 1_700_000_000)
    papers = {"THIRD-PARTY.txt": "notices", "memfit.cdx.json": "{}"}
    wheel = build.finish_wheel(built, tmp_path, papers, b".TH memfit 1", 1_700_000_000)
    with zipfile.ZipFile(wheel) as archive:
        assert b"License-File: THIRD-PARTY.txt" in archive.read(f"{INFO}/METADATA")
        assert archive.read("memfit-0.1.0.data/data/share/man/man1/memfit.1") == b".TH memfit 1"
        assert [name for name in archive.namelist() if "/sboms/" in name] == [f"{INFO}/sboms/memfit.cdx.json"]
        assert archive.read(f"{INFO}/licenses/THIRD-PARTY.txt") == b"notices"


def test_the_sdist_has_the_folders_that_the_sources_include() -> None:
    included = re.findall(r'path = "([^"]+)", format = "sdist"', (ROOT / "pyproject.toml").read_text())
    wanted = set()
    for file in (ROOT / "crates").glob("*/src/**/*.rs"):
        text = file.read_text().split("#[cfg(test)]")[0]
        for path in re.findall(r'include_str!\((?:concat!\()?"((?:\.\./)+[^"]*)"', text):
            folder = Path(os.path.normpath(file.parent / path)).relative_to(ROOT)
            wanted.add(folder.as_posix())
    assert any(path.startswith("docs/causes") for path in wanted)
    outside = [path for path in wanted if not path.startswith(("crates/", "python/"))]
    assert [path for path in outside if not any(each.startswith(path.rstrip("/")) for each in included)] == []


class Elf:
    """A library's dynamic symbols: name, section, binding, version."""

    def __init__(self, *rows: tuple[str, str, str, Any]):
        self.rows = rows

    def get_section_by_name(self, name: str) -> Any:
        symbols = [Symbol(name, st_shndx=where, st_info={"bind": bind}) for name, where, bind, _ in self.rows]
        versions = [{"ndx": version} for *_, version in self.rows]
        found = {".dynsym": symbols, ".gnu.version": versions}[name]
        return types.SimpleNamespace(iter_symbols=lambda: found)


class Symbol(dict[str, Any]):
    def __init__(self, name: str, **fields: Any):
        super().__init__(fields)
        self.name = name


def test_a_function_that_the_old_c_library_lacks_is_found(dist: Any) -> None:
    elf = Elf(
        ("memcpy", "SHN_UNDEF", "STB_GLOBAL", 2),
        ("gettid", "SHN_UNDEF", "STB_GLOBAL", "VER_NDX_GLOBAL"),
        ("__cxa_thread_atexit_impl", "SHN_UNDEF", "STB_WEAK", "VER_NDX_GLOBAL"),
        ("PyErr_Clear", "SHN_UNDEF", "STB_GLOBAL", "VER_NDX_GLOBAL"),
        ("cuInit", 11, "STB_GLOBAL", "VER_NDX_GLOBAL"),
    )
    assert list(dist("check").nowhere_found(elf)) == ["gettid"]
