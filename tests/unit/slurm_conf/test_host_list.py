"""Node names in Slurm's short form expand to the same names in the same order."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.description.host_list import expand
from slurm.conf.host_list import compress

ROWS = [
    ([f"n{i}" for i in range(1, 101)], "n[1-100]"),
    ([f"n{i:03}" for i in range(1, 101)], "n[001-100]"),
    (["n1", "n2", "n4", "head", "n7", "n8"], "n[1-2,4],head,n[7-8]"),
    (["n9", "n10", "n11"], "n[9-11]"),
    (["n09", "n10", "n99", "n100"], "n[09-10,99-100]"),
    (["n2", "n1"], "n[2,1]"),
    (["a-st-b-1", "a-st-b-2", "a-dy-b-1"], "a-st-b-[1-2],a-dy-b-1"),
    ([f"10.0.0.{i}" for i in range(11, 15)], "10.0.0.[11-14]"),
    (["r1.x", "r2.x"], "r1.x,r2.x"),
    (["n7"], "n7"),
    ([], ""),
]


@pytest.mark.parametrize(("names", "short"), ROWS)
def test_short_form(names: list[str], short: str) -> None:
    assert compress(names) == short
    if names:
        assert expand(short, "test") == names


@pytest.mark.parametrize("short", [short for names, short in ROWS if names])
def test_slurm_expands_it_the_same(short: str, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=x\nNodeName=n\n")
    if not shutil.which("scontrol"):
        pytest.skip("no scontrol. Fix: apt-get install slurm-client")
    done = subprocess.run(
        ["scontrol", "show", "hostnames", short],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SLURM_CONF": str(conf)},
    )
    assert done.stdout.split() == expand(short, "test")


NAMES = st.lists(
    st.builds(
        lambda stem, number, width, tail: f"{stem}{number:0{width}}{tail}",
        st.sampled_from(["n", "gpu", "a-1-", "x"]),
        st.integers(0, 120),
        st.integers(1, 3),
        st.sampled_from(["", "", "", "b"]),
    )
    | st.sampled_from(["head", "n", "gpu"]),
    max_size=30,
)


@given(NAMES)
def test_no_name_is_lost(names: list[str]) -> None:
    assert (expand(compress(names), "test") if names else []) == names
