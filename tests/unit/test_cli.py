"""`muster VERB`: a wrong word is one line and 64, an error with a fix is one line and its code."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.cli import ALONE, MODULES, build_parser, main
from tests.harness.checkpoints import publish
from tests.harness.programs import Scontrol

ROOT = Path(__file__).resolve().parents[2]
ON_PREMISES = ROOT / "lifecycle" / "examples" / "on_premises" / "cluster.yaml"
Program = Callable[[str, str], Path]


def muster(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as a user does, outside of any job."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "MUSTER_"))}
    return subprocess.run(
        [sys.executable, "-m", "muster", *words],
        env={**env, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_what_a_terminal_cannot_show_is_printed_with_backslashes() -> None:
    example = str(ROOT / "lifecycle" / "examples" / "parallelcluster_p4de" / "cluster.yaml")
    mounts = "mounts=[{path: /fs\N{LATIN SMALL LETTER E WITH ACUTE}, kind: existing}]"
    done = muster("describe", example, mounts, "shared_dir=", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mount /fs\\xe9: existing\n" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        *(["create", "--wait-s", text] for text in ("nan", "inf", "-1", "x")),
        *(["image", "import", "x", "--output", "y", f"--size-gib={n}"] for n in ("nan", -5, 0)),
        ["slurm-conf", "check", "--limit-s", "0"],
        *(["cluster", "up", f"--{name}=0"] for name in ("nodes", "cpus", "timeout-s")),
        ["cluster", "up", "--nodes", "9" * 5000],
        ["cluster", "up", "--boot-s", "nan"],
        ["watch", "--interval", "nan"],
        ["watch", "--interval", "0"],
        ["burn-in", "--rounds", "0"],
        ["burn-in", "--wait", "-1"],
        ["check", "--since", "nan"],
        ["check", "--reference-time", "inf"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_a_wrong_number_is_one_line_and_64(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser().parse_args(words)  # and not main: without the rule this would do something
    assert caught.value.code == 64
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["--fly"],
        ["run", "--fly"],
        ["verify"],
        ["report"],
        ["guard"],
        ["guard", "--run-dir", "/x", "--job", "1", "--restart", "one"],
        ["check", "--when", "never"],
        ["cluster", "fly"],
        ["verify", ""],
        ["run", "--run-dir", ""],
        ["image", "import", "a:1", "--output", ""],
        ["create", "--state="],
        ["watch", "--log", ""],
        ["watch", "--once", "--interval", "nan"],
        ["check", "--list", "--since", "inf"],
        ["create", "--wait-s", "1e999"],
        ["slurm-conf", "check", "--limit-s", "ten"],
    ],
    ids=" ".join,
)
def test_wrong_words_are_one_line_and_64(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    err = capsys.readouterr().err
    assert caught.value.code == 64
    assert (err.count("\n"), err.startswith("muster"), ". Fix: see 'muster" in err) == (
        1,
        True,
        True,
    )


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["verify", "--help"]])
def test_help_is_no_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 0
    assert "usage: muster" in capsys.readouterr().out


def test_run_outside_a_job_is_64() -> None:
    done = muster("run")
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == (
        "muster run: SLURM_JOB_ID: not set, this is no job. "
        "Fix: sbatch the recipe's run.sbatch instead\n"
    )


@pytest.fixture
def in_job(scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("MUSTER_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text("gate_timeout_s: 2\n")


FIVE = "name: r\nsummary: s\nnodes: 5\ncommands: [{name: a, run: b}]"


@pytest.mark.parametrize(
    ("recipe", "words", "said"),
    [
        (None, [], "job 7: its script is not to be found"),
        ("", [], "holds no recipe.yaml"),
        ("nodez: 1", [], "unknown key 'nodez'. Did you mean 'nodes'?"),
        (FIVE, [], "the job has 2 nodes, the recipe trains on 5. Fix: sbatch --nodes=5"),
        (FIVE, ["nodes=9"], "the job has 2 nodes, the recipe trains on 9"),
    ],
)
@pytest.mark.usefixtures("in_job")
def test_run_with_a_wrong_recipe_is_one_line(
    recipe: str | None, words: list[str], said: str, tmp_path: Path, scontrol: Scontrol
) -> None:
    if recipe is not None:
        (tmp_path / "r").mkdir()
        (tmp_path / "r" / "run.sbatch").write_text("#!/bin/bash\n")
        scontrol.job(Command=f"{tmp_path}/r/run.sbatch nodes=9 -- x")
        if recipe:
            (tmp_path / "r" / "recipe.yaml").write_text(recipe)
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert main(["run", *words, "--", "anything", "--at=all"]) == 78
    assert said in err.getvalue()
    assert err.getvalue().count("\n") == 1
    assert err.getvalue().startswith("muster run: ")


@pytest.mark.usefixtures("in_job")
def test_run_on_a_run_dir_that_cannot_be_made_is_73(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = "name: r\nsummary: s\nnodes: 1\ncommands: [{name: a, run: b}]"
    (tmp_path / "recipe.yaml").write_text(recipe)
    (tmp_path / "file").write_text("in the way")
    words = ["run", "--recipe", str(tmp_path), "--run-dir", str(tmp_path / "file" / "run")]
    assert main(words) == 73
    assert "RUN_DIR cannot be written: Not a directory. Fix: give --run-dir" in (
        capsys.readouterr().err
    )


def test_verify_says_good_or_what_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = publish(tmp_path, 1), publish(tmp_path, 2)
    (bad / "shard_0.bin").write_bytes(b"other")
    assert main(["verify", str(good)]) == 0
    assert capsys.readouterr().out == f"{good}: good\n"
    assert main(["verify", str(good), str(bad), str(tmp_path / "none")]) == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"{good}: good"
    assert second.startswith(f"{bad}: shard_0.bin has 5 bytes instead of ")
    assert third == f"{tmp_path}/none: manifest.json is missing or unreadable"


def test_report_of_a_folder_that_is_no_run_is_one_line() -> None:
    done = muster("report", "/no/run")
    assert done.returncode in (65, 69)
    assert done.stderr.count("\n") == 1
    assert ". Fix: " in done.stderr


@pytest.mark.parametrize("length", [256, 5000])
@pytest.mark.parametrize(
    "words",
    [
        ["image", "import", "a:1", "--output"],
        ["image", "build", "pytorch", "--output", "/tmp/a/b", "--tool", "buildah", "--wheels"],
        ["image", "check"],
        ["audit"],
        ["report"],
        ["caretake", "--token", "1", "--keep", "1", "--keep-every", "1"],
        ["lint", "--fix"],
        ["describe"],
        ["create", str(ON_PREMISES), "--node", "head1", "--list", "--steps"],
        ["slurm-conf", "programs", str(ON_PREMISES), "--dir"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_path_that_no_file_can_have_is_one_line(
    words: list[str],
    length: int,
    program: Program,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "nice", lambda _: 0)  # caretake's, for good
    program("buildah", "exit 1")
    place = f"/tmp/{'x' * length}"
    assert main([*words, place]) in (64, 65, 73, 78)
    err = capsys.readouterr().err
    assert (err.count("\n"), ". Fix: " in err) == (1, True)


def test_a_path_that_leads_in_a_circle_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert main(["audit", str(tmp_path / "loop")]) == 65
    err = capsys.readouterr().err
    assert "Too many levels of symbolic links. Fix: name another path" in err


def test_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
    publish(tmp_path, 1)
    line = f'{sys.executable} -m muster verify "$@" | true; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", line, "bash", *[str(tmp_path / "step_00000001")] * 50],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("verb", "module"), ALONE.items())
def test_a_verb_that_starts_all_the_time_loads_its_own_module_only(verb: str, module: str) -> None:
    code = (
        "import sys, muster.cli as cli; cli.build_parser(sys.argv[1])"
        ".parse_known_args([sys.argv[1], '--help'])"
    )
    loaded = f"import atexit, sys; atexit.register(lambda: print(*sys.modules)); {code}"
    done = subprocess.run(
        [sys.executable, "-c", loaded, verb], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert f"muster {verb}" in done.stdout
    words = done.stdout.split()
    assert [name for name in MODULES if name in words] == [module]
