"""The stand-in for Pyxis takes its options, and no other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SRUN = Path(__file__).resolve().parent / "srun"


def said(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {"STANDIN_SRUN": "/bin/echo", "STANDIN_CACHE": "/nowhere", "PATH": "/usr/bin:/bin"} | more
    argv = [str(SRUN), *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_without_a_container_srun_is_srun() -> None:
    assert said("--nodes=2", "sh", "-c", "a --container-image=b").stdout == (
        "--nodes=2 sh -c a --container-image=b\n"
    )


def test_with_one_the_program_is_entered_on_the_node() -> None:
    done = said("--nodes=2", "--container-image=/a.sqsh", "--no-container-mount-home", "sh", "x")
    assert done.stdout.startswith("--nodes=2 /")
    assert done.stdout.endswith(" sh x\n")
    assert '"container-image": "/a.sqsh"' in done.stdout


def test_a_variable_is_the_default_of_an_option() -> None:
    done = said("--container-mounts=/b:/b", "sh", PYXIS_CONTAINER_IMAGE="/a.sqsh")
    assert '"container-image": "/a.sqsh"' in done.stdout
    done = said("--container-image=/b.sqsh", "sh", PYXIS_CONTAINER_IMAGE="/a.sqsh")
    assert '"container-image": "/b.sqsh"' in done.stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--container-mount=/a:/b"], "unrecognized option '--container-mount=/a:/b'"),
        (["--container-images=/a"], "unrecognized option"),
        (["--container-image=a.sqsh"], "is an image of a registry"),
        (["--container-image=/a", "--container-name=b"], "does not do {'container-name'}"),
    ],
)
def test_what_pyxis_would_not_take_is_refused(words: list[str], why: str) -> None:
    done = said(*words, "true")
    assert done.returncode != 0
    assert why in done.stderr
