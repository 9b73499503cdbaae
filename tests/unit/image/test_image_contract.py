"""What is wrong with an image: each rule sees its fault, and a good image has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import DataError
from muster.image.contract import FABRIC, RULES, entries, problems, resolve
from muster.image.squash import Settings, compression, enroot_files, prepare, require_whole
from slurm.lint.rules.site import _FABRIC
from tests.unit.image.squash_files import write_squash

LISTING = """\
drwxr-xr-x 0/0                      74 2026-11-29 22:36 squashfs-root
lrwxrwxrwx 0/0                       7 2026-11-29 22:36 squashfs-root/bin -> usr/bin
drwxr-xr-x 0/0                      34 2026-11-29 22:36 squashfs-root/etc
-rw-r--r-- 0/0                       4 2026-11-29 22:36 squashfs-root/etc/environment
-rw-r--r-- 0/0                       0 2026-11-29 22:36 squashfs-root/etc/fstab
-rw-r--r-- 0/0                     174 2026-11-29 22:36 squashfs-root/etc/rc
-rw-r--r-- 0/0                      48 2026-11-29 22:36 squashfs-root/etc/rc.local
drwxrwxrwt 0/0                       3 2026-11-29 22:36 squashfs-root/tmp
drwxr-xr-x 0/0                      26 2026-11-29 22:36 squashfs-root/usr
drwxr-xr-x 0/0                      25 2026-11-29 22:36 squashfs-root/usr/bin
-rwxr-xr-x 0/0                 1265648 2026-11-29 22:36 squashfs-root/usr/bin/bash
-rwxr-xr-x 0/0                  125640 2026-11-29 22:36 squashfs-root/usr/bin/dash
lrwxrwxrwx 0/0                       4 2026-11-29 22:36 squashfs-root/usr/bin/sh -> dash
"""
ENVIRONMENT = """\
PATH=/usr/bin
NVIDIA_VISIBLE_DEVICES=all
NVIDIA_DRIVER_CAPABILITIES=compute,utility
PYTORCH_VERSION=2.10.0a0
PYTHONNOUSERSITE=1
"""
DATE = "2026-11-29 22:36 squashfs-root"
FAULTS = [
    ("enroot-files", f"-rw-r--r-- 0/0                     174 {DATE}/etc/rc\n", ""),
    ("enroot-files", f"-rw-r--r-- 0/0                       0 {DATE}/etc/fstab\n", ""),
    ("enroot-files", "-rw-r--r-- 0/0                      48", "drwxr-xr-x 0/0     48"),
    ("device-nodes", f"drwxrwxrwt 0/0                       3 {DATE}/tmp\n",
     f"crw-r--r-- 0/0                   1,  3 {DATE}/null\n"),
    ("device-nodes", f"drwxrwxrwt 0/0                       3 {DATE}/tmp\n",
     f"brw-r--r-- 0/0                 259, 12 {DATE}/disk\n"),
    ("shell", "bin/sh -> dash", "bin/sh -> zsh"),
    ("shell", "squashfs-root/usr/bin/bash", "squashfs-root/usr/bin/bashful"),
    ("shell", "-rwxr-xr-x 0/0                 1265648", "-rw-r--r-- 0/0        1265648"),
    ("shell", "bin/sh -> dash", "bin/sh -> sh"),
    ("shell", "-rwxr-xr-x 0/0                  125640", "-rw-r--r-- 0/0        125640"),
    ("modes", "drwxrwxrwt 0/0", "drwx------ 0/0"),
    ("modes", "-rw-r--r-- 0/0                       4", "-rw------- 0/0        4"),
    ("owner", "drwxrwxrwt 0/0", "drwxrwxrwt 1000/1000"),
]  # fmt: skip


def found(
    listing: str = LISTING, environment: str = ENVIRONMENT, packed_with: str = "zstd"
) -> list[str]:
    return [problem.rule for problem in problems(entries(listing), environment, packed_with)]


def test_a_good_image_has_no_problem() -> None:
    assert found() == []
    assert found(environment=ENVIRONMENT.replace("compute,utility", "all")) == []


@pytest.mark.parametrize(("rule", "before", "after"), FAULTS)
def test_each_fault_is_seen_and_no_other(rule: str, before: str, after: str) -> None:
    assert before in LISTING
    assert found(LISTING.replace(before, after)) == [rule]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("NVIDIA_VISIBLE_DEVICES=all\n", ""),
        ("compute,utility", "utility"),
        ("PYTORCH_VERSION=2.10.0a0", "PYTORCH_VERSION="),
        ("PYTHONNOUSERSITE=1\n", ""),
    ],
)
def test_each_variable_is_asked_for(before: str, after: str) -> None:
    assert found(environment=ENVIRONMENT.replace(before, after)) == ["variables"]


def test_every_rule_has_its_fault() -> None:
    elsewhere = {"variables", "fabric", "compression"}
    assert {rule for rule, *_ in FAULTS} | elsewhere == set(RULES)


@pytest.mark.parametrize("line", ["FI_PROVIDER=efa", "NCCL_SOCKET_IFNAME=eth0", "NCCL_NET=IB"])
def test_a_variable_of_one_cluster_is_named(line: str) -> None:
    assert found(environment=f"{ENVIRONMENT}{line}\nNCCL_VERSION=2.28\n") == ["fabric"]


def test_the_names_are_those_of_lint() -> None:
    assert FABRIC.pattern == _FABRIC.pattern


def test_what_some_nodes_cannot_unpack_is_named(tmp_path: Path) -> None:
    seen = {}
    for number, name in enumerate(("gzip", "lzma", "lzo", "xz", "lz4", "zstd", "new"), start=1):
        write_squash(tmp_path / name)
        head = bytearray((tmp_path / name).read_bytes())
        head[20:22] = number.to_bytes(2, "little")
        (tmp_path / name).write_bytes(head)
        seen[name] = found(packed_with=compression(tmp_path / name))
    assert [name for name, rules in seen.items() if rules] == ["lzma", "lzo", "new"]
    assert seen["lzo"] == ["compression"]
    (tmp_path / "short").write_bytes(b"hsqs")
    with pytest.raises(DataError):
        compression(tmp_path / "short")


def test_a_problem_says_what_comes_of_it() -> None:
    (problem,) = problems(entries(LISTING.replace("drwxrwxrwt", "drwx------")), ENVIRONMENT, "xz")
    assert str(problem) == "modes: /tmp: ordinary users cannot read it"


def test_links_are_followed_within_the_image() -> None:
    files = entries(
        f"drwxr-xr-x 0/0 3 {DATE}\nlrwxrwxrwx 0/0 3 {DATE}/a -> /b/../c\n"
        f"drwxr-xr-x 0/0 3 {DATE}/c\n-rw-r--r-- 0/0 3 {DATE}/c/d\n"
        f"lrwxrwxrwx 0/0 3 {DATE}/up -> ../../../c/d\n"
    )
    assert resolve(files, "a/d") == files["c/d"]
    assert resolve(files, "up") == files["c/d"]
    assert resolve(files, "a/e") is None


def test_what_enroot_gets() -> None:
    files = enroot_files(Settings(["A=b c"], "/work", ["/start", "x y"], ["sh", "-c"]))
    assert files["etc/environment"] == "A=b c\n"
    assert 'cd "/work" && unset OLDPWD || exit 1\n' in files["etc/rc"]
    assert files["etc/rc"].endswith("|| set -- sh -c\nexec /start 'x y' \"$@\"\n")
    assert enroot_files(Settings())["etc/rc"].endswith('set -- /bin/sh\nexec "$@"\n')


def test_a_root_is_prepared(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.write_text("kept")
    (root / "etc" / "environment").symlink_to(outside)
    (root / "closed").mkdir(mode=0o700)
    (root / "closed" / "program").touch(mode=0o700)
    (root / "secret").touch(mode=0o600)
    prepare(root, Settings(["A=1"]))
    assert outside.read_text() == "kept"
    assert (root / "etc" / "environment").read_text() == "A=1\n"
    modes = {
        p.name: oct(p.stat().st_mode & 0o777) for p in root.rglob("*") if p.parent != root / "etc"
    }
    assert modes == {
        "etc": "0o755", "closed": "0o755", "program": "0o755", "secret": "0o644"
    }  # fmt: skip


def test_other_line_ends_in_a_name_hide_no_file() -> None:
    name = "usr/a\u2028b\x85"
    listing = f"{LISTING}crw-r--r-- 0/0 1, 3 {DATE}/{name}\n"
    assert entries(listing)[name].mode == "crw-r--r--"
    assert found(listing) == ["device-nodes"]
    assert found(environment=f"{ENVIRONMENT}A=\u2028NCCL_PROTO=x\n") == []


def test_a_file_with_something_missing_is_not_whole(tmp_path: Path) -> None:
    path = tmp_path / "a b.sqsh"
    write_squash(path)
    require_whole(path)
    write_squash(path, missing=1)
    with pytest.raises(DataError, match="4999 of 5000 bytes"):
        require_whole(path)
    for text in (b"", b"hsqs", b"#!/bin/sh\n" + bytes(100)):
        path.write_bytes(text)
        with pytest.raises(DataError, match=r"is no squashfs\. Fix: rm '.*a b\.sqsh'"):
            require_whole(path)
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        require_whole(path)
