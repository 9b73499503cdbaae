"""The proof at the end of a build that NCCL will find EFA: each thing that is missing fails it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "containers" / "fabric.sh"
PLUGIN = "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so"
KNOWN = f"\tlibnccl-net-ofi.so (libc6,x86-64) => {PLUGIN}\n\tlibc.so.6 (libc6) => /lib/libc.so.6\n"
NEEDS = "\tlibfabric.so.1 => /opt/amazon/efa/lib/libfabric.so.1\n\tlibcuda.so.1 => not found\n"
INSTALLED = "efa-config 1.17\nlibnccl-ofi-ngc 1.16.3-1\nlibnccl-ofi_1.16.3-1_amd64.deb\n"


def prove(tmp_path: Path, known: str, needs: str, installed: str) -> tuple[int, str]:
    for name, text in (("ldconfig", known), ("ldd", needs)):
        program = tmp_path / name
        (tmp_path / f"{name}.txt").write_text(text)
        program.write_text(f"#!/bin/sh\ncat {tmp_path}/{name}.txt\n")
        program.chmod(0o755)
    (tmp_path / "installed").write_text(installed)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "EFA_INSTALLED": str(tmp_path / "installed"),
        "AWS_OFI_NCCL_VERSION": "1.16.3",
    }  # fmt: skip
    done = subprocess.run(  # without a version of EFA the script itself does nothing
        ["bash", "-c", f"source {SCRIPT} && fabric::prove"],
        env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_good_image_is_proven(tmp_path: Path) -> None:
    assert prove(tmp_path, KNOWN, NEEDS, INSTALLED) == (0, "")


@pytest.mark.parametrize(
    ("known", "needs", "installed", "said"),
    [
        (KNOWN.replace("libnccl-net", "libother"), NEEDS, INSTALLED, "no libnccl-net*.so of /opt"),
        (KNOWN.replace("/opt/amazon", "/usr"), NEEDS, INSTALLED, "no libnccl-net*.so of /opt"),
        (KNOWN, f"{NEEDS}\tlibhwloc.so.15 => not found\n", INSTALLED, "does not find libhwloc"),
        (KNOWN, NEEDS, INSTALLED.replace("1.16.3", "1.15.0"), "aws-ofi-nccl is not 1.16.3"),
    ],
    ids=["no plugin", "another plugin", "a library is missing", "another version"],
)  # fmt: skip
def test_what_is_missing_fails_the_build(
    known: str, needs: str, installed: str, said: str, tmp_path: Path
) -> None:
    code, error = prove(tmp_path, known, needs, installed)
    assert code == 1
    assert said in error
    assert " Fix: " in error
