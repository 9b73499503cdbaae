"""Who owns a run: tokens only grow, and of two supervisors one finds out that it is history."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.errors import TemporaryError
from resume.lease import Lease, LeaseWatch, owns, read_owner, take

SHORT = 0.05


def test_first_owner(tmp_path: Path) -> None:
    assert read_owner(tmp_path) is None
    assert owns(tmp_path, 0)
    assert take(tmp_path, "7", 0, 60) == 1
    owner = read_owner(tmp_path)
    assert owner is not None
    assert (owner["token"], owner["job"], owner["restart"]) == (1, "7", 0)


def test_a_restart_of_the_same_job_takes_over_at_once(tmp_path: Path) -> None:
    one = Lease(tmp_path, take(tmp_path, "7", 0, 60))
    one.renew()
    # The lease moves, and an hour of patience would not end in this test.
    assert take(tmp_path, "7", 1, 3600) == 2
    assert (owns(tmp_path, 1), owns(tmp_path, 2), owns(tmp_path, 3)) == (False, True, True)


def test_another_job_waits_and_takes_over_what_stands_still(tmp_path: Path) -> None:
    Lease(tmp_path, take(tmp_path, "7", 0, 60)).renew()
    assert take(tmp_path, "8", 0, SHORT) == 2
    assert take(tmp_path, "9", 0, SHORT) == 3


def test_another_job_that_is_alive_is_left_alone(tmp_path: Path) -> None:
    token, over = take(tmp_path, "7", 0, 60), threading.Event()
    (tmp_path / "lease").write_text("1 0\n")

    def live() -> None:
        count = 0
        while not over.wait(0.01):
            count += 1
            (tmp_path / "lease").write_text(f"{token} {count}\n")

    alive = threading.Thread(target=live)
    alive.start()
    try:
        with pytest.raises(TemporaryError, match=r"job 7 on .* is training here.*scancel 7") as e:
            take(tmp_path, "8", 0, 0.3)
    finally:
        over.set()
        alive.join()
    assert e.value.code == 75
    assert owns(tmp_path, token)


def test_jobs_that_start_together_never_share_a_token(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)

    def start(job: int) -> int | None:
        barrier.wait()
        try:
            return take(tmp_path, str(job), 0, 0.5)
        except TemporaryError:
            return None

    with ThreadPoolExecutor(4) as pool:
        tokens = [token for token in pool.map(start, range(4)) if token is not None]
    assert tokens
    assert len(set(tokens)) == len(tokens)
    assert sum(owns(tmp_path, token) for token in tokens) == 1


def test_a_claim_of_a_job_that_died_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    for token in ("1", "2"):
        (tmp_path / "tokens" / token).touch()
    assert take(tmp_path, "7", 0, SHORT) == 3


@pytest.mark.parametrize("content", ["", "[", "[]", "3"])
def test_owner_file_that_is_no_owner_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text(content)
    assert read_owner(tmp_path) is None
    assert owns(tmp_path, 1)


def test_lease_advances_and_a_failing_file_system_does_not_kill(tmp_path: Path) -> None:
    one = Lease(tmp_path, 4)
    texts = []
    for _ in range(3):
        one.written_at = 0.0  # long ago
        one.renew()
        texts.append((tmp_path / "lease").read_text())
    assert texts == ["4 1\n", "4 2\n", "4 3\n"]
    Lease(tmp_path / "none", 4).renew()


def test_lease_is_not_written_again_within_a_second(tmp_path: Path) -> None:
    one = Lease(tmp_path, 4)
    one.renew()
    one.written_at = time.monotonic() + 1000
    one.renew()
    assert (tmp_path / "lease").read_text() == "4 1\n"


def test_watch_counts_from_the_last_change(tmp_path: Path) -> None:
    watch = LeaseWatch(tmp_path, changed_at=time.monotonic() - 1000)
    assert watch.still_s() >= 1000  # no lease yet
    for text in ("1 1\n", "1 2\n", "2 1\n"):
        (tmp_path / "lease").write_text(text)
        assert watch.still_s() < 1000
        watch.changed_at -= 1000
        assert watch.still_s() >= 1000


def test_owner_file_is_json_for_the_ranks(tmp_path: Path) -> None:
    take(tmp_path, "7", 0, 60)
    assert json.loads((tmp_path / "owner.json").read_text())["token"] == 1
