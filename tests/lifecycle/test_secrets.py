"""Passwords that are hard to quote come through a step whole, and nobody else gets to see them.

Every program that is started is written down with its words and its environment.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.created import CreatedNode
from tests.harness.exec_log import ExecLog

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
PASSWORDS = {
    "quotes": "it's \"quoted\" 'twice' \\\"",
    "spaces": "  two  words ",
    "dollar": "$HOME `id` $(id) ${x} %s \\n",
    "utf8": "pässwörd-日本-🔑",
    "marks": "!#&*;|<>?[]{}~=\t-n",
}
STEP = """
step::state() {
  step::checking || secret::fetch db "$C_ACCOUNTING_PASSWORD_FILE" \\
    "${C_ACCOUNTING_PASSWORD_COMMAND[@]}"
  [[ -s $MUSTER_SECRETS/db ]] || { step::differs 'not known' || true; return 0; }
  secret::print db | want::file $MADE/whole 0600 "$(id -un)"
  printf 'pass=%s\\n' "$(secret::for_slurm db)" >/dev/null || true
}
"""


@pytest.mark.parametrize("source", ["file", "command"])
@pytest.mark.parametrize("kind", PASSWORDS)
def test_it_comes_through_and_is_seen_nowhere(
    node: CreatedNode, tmp_path: Path, kind: str, source: str
) -> None:
    password = PASSWORDS[kind]
    place = tmp_path / "password"
    place.write_text(f"{password}\n")
    where = f"file: {place}" if source == "file" else f"command: [/bin/cat, {place}]"
    accounting = f"accounting: {{database: local, password: {{{where}}}}}"
    text = node.cluster.read_text()
    node.cluster.write_text(text.replace('accounting: {database: "off"}', accounting))
    node.step("db", STEP)
    log = ExecLog(tmp_path)
    for state in ("changed", "unchanged"):
        done = subprocess.run(
            node.words(name="head"),
            env={**node.environment(), **log.environment},
            capture_output=True,
            timeout=60,
            check=False,
        )
        said = done.stdout + done.stderr
        assert f"db: {state}".encode() in said, said
        assert password.encode() not in said
    assert (node.made / "whole").read_bytes() == password.encode()
    assert (node.secrets / "db").stat().st_mode & 0o777 == 0o600
    assert node.secrets.stat().st_mode & 0o777 == 0o700
    seen = log.words()
    assert b"bash\0" in seen  # it did look
    assert password.encode() not in seen
    kept = [*(node.folder / "state").rglob("*"), *(node.folder / "logs").rglob("*")]
    assert [p for p in kept if p.is_file() and password.encode() in p.read_bytes()] == []
