"""The home of all clusters is made while the last of another takes it away."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from muster.cluster.folder import Folder
from muster.errors import CreateError


def test_a_home_that_is_taken_away_meanwhile_is_made_again(tmp_path: Path) -> None:
    one, other = (Folder(tmp_path / "home", name) for name in ("one", "other"))
    over = threading.Event()

    def take_away() -> None:
        while not over.is_set():
            other.remove(keep_logs=False)

    thread = threading.Thread(target=take_away)
    thread.start()
    try:
        for _ in range(500):
            one.make_home()
    finally:
        over.set()
        thread.join()


def test_a_home_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CreateError, match=r"no/home: No such file or directory\. Fix: set MUSTER"):
        Folder(tmp_path / "no" / "home", "one").make_home()
