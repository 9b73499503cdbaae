"""A condemned GPU in another node: what one node wrote down, the next one reads, on real files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck import registry
from healthcheck.env import Env
from healthcheck.facts import Facts
from healthcheck.finding import Finding
from healthcheck.strikes import LOCAL, Strike, StrikeBook, file_of
from tests.harness.fake_tools import good
from tests.harness.fake_tools.install import install
from tests.harness.fake_tools.judge import worst

SERIAL = "1650323100003"
Look = Callable[[Path], Finding]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Whether a fit node n9 with that GPU, and this state folder, may return to service."""
    node = good.node()
    at = install(node, tmp_path / "n9")
    monkeypatch.setenv("PATH", f"{at.bin}:/usr/bin:/bin")
    site = replace(node.site, strikes_path=Path("/shared"))
    (one,) = [one for one in registry.discover() if one.name == "gpu_strikes"]

    def ask(state: Path) -> Finding:
        facts = Facts(Env(tmp_path, 45, state), node.profile, site, when="return", node="n9")
        return worst(registry.run_checks([one], facts))

    return ask


def condemn(book: StrikeBook) -> None:
    book.write(SERIAL, [Strike(1.7e9, "aaaaaaaa", "n7", "xid.79", "reboot"),
                        Strike(9e9, "bbbbbbbb", "n7", "xid.79", "replace")])  # fmt: skip


def test_it_is_refused_in_another_node_until_it_is_forgiven(look: Look, tmp_path: Path) -> None:
    shared, state = tmp_path / "shared", tmp_path / "state"
    shared.mkdir()
    assert look(state).status == "PASS"
    condemn(StrikeBook(tmp_path / "n7", shared))
    found = look(state)
    assert (found.status, found.action, found.gpu) == ("FAIL", "replace", SERIAL)
    assert "xid.79 on node n7" in found.detail
    (shared / file_of(SERIAL)).unlink()
    assert look(state).status == "PASS"


def test_it_is_refused_in_the_node_that_condemned_it(look: Look, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    condemn(StrikeBook(tmp_path / "state" / LOCAL, None))
    assert look(tmp_path / "state").status == "FAIL"


def test_what_cannot_be_read_is_not_known(look: Look, tmp_path: Path) -> None:
    shared, state = tmp_path / "shared", tmp_path / "state"
    assert "No such file" in look(state).detail
    shared.mkdir()
    (shared / file_of(SERIAL)).symlink_to("/etc/passwd")
    assert look(state).status == "UNKNOWN"
    (shared / file_of(SERIAL)).unlink()
    os.mkfifo(shared / file_of(SERIAL))  # holds its reader, as a file server that is away does
    found = look(state)
    assert (found.status, found.action) == ("UNKNOWN", "none")
    assert "hangs" in found.detail


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
@pytest.mark.may_skip("only root can give a file away")
def test_a_user_cannot_condemn_a_gpu(look: Look, tmp_path: Path) -> None:
    condemn(StrikeBook(None, tmp_path / "shared"))
    os.chown(tmp_path / "shared" / file_of(SERIAL), 65534, 65534)
    found = look(tmp_path / "state")
    assert (found.status, "not permitted" in found.detail) == ("UNKNOWN", True)
