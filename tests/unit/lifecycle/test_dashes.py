"""Folders whose names begin with - are no options of the programs that are given them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lifecycle.runner.execute import Places, run_step
from lifecycle.runner.ledger import Ledger
from lifecycle.runner.step import parse

STEP = "#!/usr/bin/env bash\n# Does nothing.\n"


def test_a_folder_may_begin_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("-x")
    places = Places(folder, folder, folder, folder)
    places.create()
    step = folder / "a.sh"
    step.write_text(STEP)
    done = run_step(parse(step, STEP), places, dry=True, again=False, on_apply=lambda: None)
    assert (done.state, done.tail) == ("unchanged", ())
    ledger = Ledger(folder, "n1")
    ledger.note("a", "changed")
    assert ledger.copy_to(Path("-shared")) is None
    assert Path("-shared/n1.json").is_file()
