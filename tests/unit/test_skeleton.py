"""The conventions that a machine can check, for every file of the repository."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.sessions.archive import PACKAGES, pack
from tests.sessions.environment import requirements
from tests.sessions.scripts import shell_scripts, tracked_files

ROOT = Path(__file__).resolve().parents[2]
FILES = [Path(name) for name in tracked_files()]
PYTHON = [path for path in FILES if path.suffix == ".py"]
SHELL = [Path(name) for name in shell_scripts() if not name.startswith("tests/data/")]
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "v2", "legacy", "experiments"}


@pytest.mark.parametrize("path", PYTHON, ids=str)
def test_python_file_says_what_it_is(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree)


@pytest.mark.parametrize("path", [path for path in PYTHON if path.parts[0] in PACKAGES], ids=str)
def test_what_runs_on_hosts_is_python_3_9(path: Path) -> None:
    ast.parse((ROOT / path).read_text(encoding="utf-8"), feature_version=(3, 9))


@pytest.mark.parametrize("path", SHELL, ids=str)
def test_bash_is_strict_and_ends_with_main(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix != ".sbatch":  # sbatch files read top to bottom
        assert re.search(r'^(.* \|\| )?main "\$@"\n(exit 0\n)?\Z', text, re.MULTILINE)
    # Without -e only where a failure must not end it: such a file says so above the line.
    assert re.search(r"^set -E?e?uo pipefail$", text, re.MULTILINE)
    assert text.startswith("#!")


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert [path for path in FILES if FORBIDDEN_NAMES & {*path.parts, path.stem}] == []


@pytest.mark.parametrize("name", ["run", ".ci/run"])
def test_program_can_be_executed(name: str) -> None:
    assert os.access(ROOT / name, os.X_OK)


def test_our_programs_are_found_beside_a_library_that_installs_its_tests(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-c", "import tests.faults.fault"]
    done = subprocess.run(
        command,
        cwd=tmp_path.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_noxfile_fits_its_limit_and_every_session_says_what_it_does() -> None:
    source = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 200
    sessions = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(mark) == "nox.session" for mark in node.decorator_list)
    ]
    names = {session.name for session in sessions}
    assert names >= {"demo", "tests", "smoke", "multinode", "lint", "docs", "pyz"}
    assert [session.name for session in sessions if not ast.get_docstring(session)] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("constraints/*.txt")), ids=lambda p: p.name)
def test_every_direct_dependency_has_one_exact_version(
    path: Path,
) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    exact = re.compile(r"[a-z0-9._-]+==[\w.]+(; .*)?")
    assert [line for line in pins if not exact.fullmatch(line)] == []
    assert {re.split("==", line)[0] for line in pins} >= {
        re.split(r"[<>=!~;\[ ]", line)[0].lower() for line in requirements(path.stem)
    }


def test_pack_gives_the_same_bytes_whatever_dates_and_modes_are(tmp_path: Path) -> None:
    for number, folder in enumerate((tmp_path / "one", tmp_path / "two")):
        (folder / "yaml").mkdir(parents=True)
        for name in (
            "yaml/a.py",
            "yaml/__init__.py",
            "yaml/_yaml.so",
            "start.sh",
            "z.py",
            "__main__.py",
        ):
            (folder / name).write_text("print('packed')\n")
            (folder / name).chmod(0o600 + 0o44 * number)
            os.utime(folder / name, (10**9 * (number + 1),) * 2)
        pack(folder, folder.with_suffix(".pyz"))
    with zipfile.ZipFile(tmp_path / "one.pyz") as packed:
        modules = ["yaml/__init__.py", "yaml/a.py", "z.py"]
        coded = [name for module in modules for name in (module, f"{module}c")]
        assert packed.namelist() == ["__main__.py", *coded]
    one = (tmp_path / "one.pyz").read_bytes()
    assert one == (tmp_path / "two.pyz").read_bytes()
    done = subprocess.run([tmp_path / "one.pyz"], capture_output=True, check=True, timeout=60)
    assert done.stdout == b"packed\n"
