"""Enroot's settings for a site, and the prolog that makes the folders which they name."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

ENROOT = Path(__file__).resolve().parents[3] / "containers" / "enroot"
PROLOG = ENROOT / "prolog.d" / "muster_enroot.sh"
ME = os.geteuid()
FOLDERS = {
    "ENROOT_RUNTIME_PATH": "/run/enroot/user-$(id -u)",
    **{
        f"ENROOT_{name.upper()}_PATH": f"/var/lib/enroot/{name}/user-$(id -u)"
        for name in ("cache", "data", "temp")
    },
}


def settings() -> dict[str, str]:
    lines = (ENROOT / "enroot.conf.d" / "50-muster.conf").read_text("utf-8").splitlines()
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def prolog(tmp_path: Path, uid: str) -> str:
    places = {
        "MUSTER_ENROOT_RUN": f"{tmp_path}/run/enroot",
        "MUSTER_ENROOT_DISK": f"{tmp_path}/disk",
    }
    # install -o root is for root; who runs the tests as himself owns the folders himself.
    done = subprocess.run(
        ["bash", str(PROLOG)], env={"PATH": os.environ["PATH"], "SLURM_JOB_UID": uid, **places},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    return done.stderr


def test_the_settings_that_users_stumble_over() -> None:
    assert settings() == {
        **FOLDERS,
        "ENROOT_SQUASH_OPTIONS": "-comp zstd -Xcompression-level 3 -b 1M",
        "ENROOT_LOGIN_SHELL": "no", "ENROOT_MOUNT_HOME": "no", "ENROOT_REMAP_ROOT": "no",
        "ENROOT_ROOTFS_WRITABLE": "no", "ENROOT_RESTRICT_DEV": "no",
    }  # fmt: skip


@pytest.mark.skipif(ME != 0, reason="a prolog is root")
def test_the_prolog_makes_the_folders_that_the_settings_name(tmp_path: Path) -> None:
    assert prolog(tmp_path, "1234") == ""
    assert prolog(tmp_path, "1234") == ""
    for path in FOLDERS.values():
        here = path.replace("/run/", f"{tmp_path}/run/").replace(
            "/var/lib/enroot", f"{tmp_path}/disk"
        )
        facts = Path(here.replace("$(id -u)", "1234")).stat()
        assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (1234, 0o700)
        above = Path(here).parent.stat()
        assert (above.st_uid, stat.S_IMODE(above.st_mode)) == (0, 0o1777)
    # Pyxis makes the folders in it as root, and takes one that is there already.
    pyxis = (tmp_path / "disk" / "pyxis").stat()
    assert (pyxis.st_uid, stat.S_IMODE(pyxis.st_mode)) == (0, 0o755)


@pytest.mark.skipif(ME != 0, reason="a prolog is root")
def test_a_folder_that_somebody_else_put_there_is_not_given_away(tmp_path: Path) -> None:
    data = tmp_path / "disk" / "data"
    data.mkdir(parents=True)
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    (data / "user-1234").symlink_to(theirs)
    (data / "user-1235").mkdir()
    assert "data/user-1234 is a link" in prolog(tmp_path, "1234")
    assert "data/user-1235 is not of user 1235" in prolog(tmp_path, "1235")
    assert theirs.stat().st_uid == (data / "user-1235").stat().st_uid == 0


@pytest.mark.parametrize("uid", ["", "../x", "0 0"])
def test_the_prolog_never_fails(tmp_path: Path, uid: str) -> None:
    assert "Fix: call it as a prolog" in prolog(tmp_path, uid)
    assert list(tmp_path.iterdir()) == []
