"""The home of all clusters is made while the last of another takes it away."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.cluster.folder import Folder
from muster.errors import CreateError


def test_a_home_that_is_taken_away_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (Folder(tmp_path / "home", name) for name in ("one", "other"))
    chmod, left = Path.chmod, [3]

    def late(self: Path, mode: int) -> None:
        if left[0]:
            left[0] -= 1
            other.remove(keep_logs=False)
        chmod(self, mode)

    monkeypatch.setattr(Path, "chmod", late)
    one.make_home()
    assert (one.home.is_dir(), left) == (True, [0])


def test_a_home_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CreateError, match=r"no/home: No such file or directory\. Fix: set MUSTER"):
        Folder(tmp_path / "no" / "home", "one").make_home()
