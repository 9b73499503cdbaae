"""A person is told what happened, once, without a secret, and nothing waits for the telling."""

from __future__ import annotations

import email
import json
import sys
import threading
import time
from collections.abc import Callable
from email import policy
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ConfigError
from muster.site import PAGE_KINDS, Notify, load_site
from resume import notify
from resume.notify import Notifier
from resume.pages import Page, page_for
from tests.harness.listeners import mail_relay, webhook

STOPPED = {"why": "rank 0 exited with 3, twice", "fix": "see rank_0.log", "exit_code": 1}
SET_ASIDE = {"checkpoint": "step_00000500", "problems": ["a.bin does not match its checksum"]}
LONG = 60.0


def facts() -> dict[str, Any]:
    return {"run": "llama 7", "run_dir": "/r/runs/7", "job": "7", "host": "n1", "step": 12}


def a_file(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    return path


def notifier(tmp_path: Path, **rules: Any) -> Notifier:
    return Notifier(Notify(**rules), tmp_path, facts, pauses_s=(0.0, 0.0))


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "pages.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_webhook_gets_the_whole_story(tmp_path: Path) -> None:
    with webhook() as hook:
        one = notifier(tmp_path, webhook_file=a_file(tmp_path / "url", hook.url))
        one.take("stopped", STOPPED)
        one.close(LONG)
        ((path, body),) = hook.got
    assert path == "/hooks/T0P-SECRET"
    assert body["kind"] == "stopped"
    assert body["step"] == 12
    assert body["text"].splitlines()[:4] == [
        "muster: llama 7: stopped: rank 0 exited with 3, twice",
        "What happened: rank 0 exited with 3, twice",
        "What was done: the run was stopped, the job has ended; it does not come back by itself",
        "What to do:    see rank_0.log",
    ]
    assert lines(tmp_path)[0]["sent"] == {"webhook": "sent"}


def test_a_webhook_that_fails_is_tried_again(tmp_path: Path) -> None:
    with webhook(500, 503) as hook:
        one = notifier(tmp_path, webhook_file=a_file(tmp_path / "url", hook.url))
        one.take("stopped", STOPPED)
        one.close(LONG)
        assert len(hook.got) == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, "No such file or directory"),
        ("http://127.0.0.1:9/T0P-SECRET", "Connection refused"),
        ("ftp://127.0.0.1/T0P-SECRET", "ValueError"),
        ("http://127.0.0.1:9/T0P SECRET\x01", "no proper answer"),
        ("http://127.0.0.1:x/T0P-SECRET", "no proper answer"),
        ("http://[::1/T0P-SECRET", "ValueError"),
        ("", "ValueError"),
    ],
)
def test_no_error_repeats_the_address(url: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "url" if url is None else a_file(tmp_path / "url", url)
    one = notifier(tmp_path, webhook_file=file)
    one.take("stopped", STOPPED)
    one.close(LONG)
    text = (tmp_path / "pages.jsonl").read_text()
    assert "SECRET" not in text
    assert lines(tmp_path)[0]["sent"] == {"webhook": said}


def test_an_answer_that_never_comes_holds_up_nobody(tmp_path: Path) -> None:
    hang = threading.Event()
    with webhook(hang=hang) as hook:
        file = a_file(tmp_path / "url", hook.url)
        one = notifier(tmp_path, webhook_file=file, timeout_s=0.2)
        one.take("stopped", STOPPED)
        assert lines(tmp_path) == []  # it came back before anything was sent
        wait(lambda: lines(tmp_path))
        assert lines(tmp_path)[0]["sent"] == {"webhook": "time limit"}
        hang.set()
        one.close(LONG)


def test_close_gives_up_in_time(tmp_path: Path) -> None:
    hang = threading.Event()
    with webhook(hang=hang) as hook:
        one = notifier(tmp_path, webhook_file=a_file(tmp_path / "url", hook.url), timeout_s=LONG)
        one.take("stopped", STOPPED)
        one.close(0.05)
        assert one._thread is not None
        assert one._thread.is_alive()
        hang.set()
        one.close(LONG)
        assert not one._thread.is_alive()


def test_mail_through_a_relay(tmp_path: Path) -> None:
    with mail_relay() as (address, got):
        one = notifier(tmp_path, email_to=["a@site", "b@site"], email_from="m@site", smtp=address)
        one.take("set_aside", SET_ASIDE)
        one.close(LONG)
    message = email.message_from_string(got[0], policy=policy.default)
    assert (message["To"], message["From"]) == ("a@site, b@site", "m@site")
    assert message["Subject"].startswith("muster: llama 7: set_aside: checkpoint step_00000500 is")
    assert "What to do:    nothing for this run." in message.get_content()


def test_mail_through_sendmail_and_a_command(tmp_path: Path) -> None:
    keep = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"]
    one = notifier(
        tmp_path,
        email_to=["a@site"],
        sendmail=[*keep, str(tmp_path / "mail")],
        command=[*keep, str(tmp_path / "page")],
    )
    one.take("stopped", STOPPED)
    one.close(LONG)
    assert "To: a@site" in (tmp_path / "mail").read_text()
    assert json.loads((tmp_path / "page").read_text())["todo"] == "see rank_0.log"
    assert lines(tmp_path)[0]["sent"] == {"email": "sent", "command": "sent"}


def test_a_command_that_fails_says_how(tmp_path: Path) -> None:
    one = notifier(tmp_path, command=["sh", "-c", "exit 7"])
    one.take("stopped", STOPPED)
    one.close(LONG)
    assert lines(tmp_path)[0]["sent"] == {"command": "exit code 7"}


def test_not_twice_an_hour_not_too_many_but_a_stop_always(tmp_path: Path) -> None:
    one = notifier(tmp_path, command=["true"], max_per_hour=2)
    for number in (1, 1, 2, 3):
        one.take("set_aside", {**SET_ASIDE, "checkpoint": f"step_{number:08d}"})
    one.take("stopped", STOPPED)
    one.close(LONG)
    told = [(line["kind"], line["what"][:24]) for line in lines(tmp_path)]
    assert told == [
        ("set_aside", "checkpoint step_00000001"),
        ("set_aside", "checkpoint step_00000002"),
        ("stopped", "rank 0 exited with 3, tw"),
    ]
    again = notifier(tmp_path, command=["true"], max_per_hour=2)  # the job came back
    again.take("set_aside", {**SET_ASIDE, "checkpoint": "step_00000004"})
    again.close(LONG)
    assert len(lines(tmp_path)) == 3


def test_withheld_pages_are_counted_in_the_next(tmp_path: Path) -> None:
    with webhook() as hook:
        one = notifier(tmp_path, webhook_file=a_file(tmp_path / "url", hook.url), max_per_hour=1)
        for number in (1, 2, 3):
            one.take("set_aside", {**SET_ASIDE, "checkpoint": f"step_{number:08d}"})
        one.take("stopped", STOPPED)
        one.close(LONG)
        counts = [body.get("pages that were not sent") for _, body in hook.got]
    assert sum(count or 0 for count in counts) == 2


def test_only_what_the_site_wants(tmp_path: Path) -> None:
    one = notifier(tmp_path, command=["true"], pages=["done"])
    one.take("set_aside", SET_ASIDE)
    one.take("done", {"step": 60})
    one.close(LONG)
    assert [line["kind"] for line in lines(tmp_path)] == ["done"]
    silent = notifier(tmp_path)
    silent.take("stopped", STOPPED)
    silent.tick()
    assert silent._thread is None  # nothing is configured, nothing runs


def test_the_beat_says_how_the_run_is_and_ends_with_its_end(tmp_path: Path) -> None:
    with webhook() as switch:
        file = a_file(tmp_path / "beat", switch.url)
        one = notifier(tmp_path, beat_file=file, beat_s=0.01)
        one.tick()
        wait(lambda: len(switch.got) >= 2)
        one.take("done", {"step": 60})
        one.close(LONG)
        states = [body["state"] for _, body in switch.got]
    assert states[0] == "running"
    assert states[-1] == "done"
    assert switch.got[0][1]["run"] == "llama 7"


def test_a_supervisor_that_stands_still_does_not_beat(tmp_path: Path) -> None:
    with webhook() as switch:
        one = notifier(tmp_path, beat_file=a_file(tmp_path / "beat", switch.url))
        one._alive_at -= notify._ALIVE_S + 1
        one._beat()
        assert switch.got == []
        one._alive_at = time.monotonic()
        one._beat()
        one._beat()  # too early
        assert len(switch.got) == 1


EVENTS = [
    ("incident", {"cause": "storage", "detail": "disk full"}, "storage"),
    ("incident", {"cause": "hang", "detail": "x"}, None),
    ("rolled_back", {"why": "spike", "to_step": 5, "skip": "6-9"}, "rollback"),
    ("requeued", {"why": "no spare", "cause": "node_lost"}, "requeue"),
    ("supervisor_started", {"reason": "takeover", "job": "7", "host": "n2"}, "takeover"),
    ("supervisor_started", {"reason": "first", "job": "7", "host": "n2"}, None),
    ("attempt_ended", {"action": "swap", "cause": "node_lost", "why": "x", "node": "n3"}, "swap"),
    ("attempt_ended", {"action": "retry", "cause": "hang", "why": "x", "node": None}, "retry"),
    ("attempt_ended", {"action": "done", "cause": None, "why": "x", "node": None}, None),
    ("set_aside", SET_ASIDE, "set_aside"),
    ("stopped", STOPPED, "stopped"),
    ("done", {"step": 60}, "done"),
    ("gate", {}, None),
]


@pytest.mark.parametrize(("event", "told", "kind"), EVENTS)
def test_pages_say_all_three_things(event: str, told: dict[str, Any], kind: str | None) -> None:
    page = page_for(event, told)
    assert (page.kind if page else None) == kind
    if page is not None:
        assert page.what
        assert page.done
        assert page.todo
        assert page.kind in PAGE_KINDS
        assert "\n" not in page.subject("x\ny")


def test_every_kind_has_a_page() -> None:
    assert {kind for *_, kind in EVENTS if kind} == set(PAGE_KINDS)


def test_a_long_story_is_cut_in_the_subject_only() -> None:
    page = Page("stopped", "x" * 500, "y", "z")
    assert len(page.subject("r")) == 200
    assert "x" * 500 in page.text({})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("notify: {pages: [stoped]}", "did you mean 'stopped'"),
        ("notify: {smtp: 'relay:x'}", "no host:port"),
        ("notify: {smtp: ''}", "no host:port"),
        ("notify: {beat_s: 0}", "above 0"),
        ("notify: {email_to: [a], sendmail: []}", "no way to send"),
        ("notify: {webhook: x}", "unknown key 'webhook'"),
    ],
)
def test_wrong_settings_are_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?i){said}"):
        load_site(a_file(tmp_path / "site.yaml", text))


def test_settings_from_yaml(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    site = load_site(a_file(file, "notify: {webhook_file: ~/hook, email_to: [a@b], pages: [done]}"))
    assert site.notify.webhook_file == Path("~/hook")
    assert site.notify.pages == ["done"]


def test_a_file_in_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    a_file(tmp_path / "hook", " https://x/y \nsecond line")
    assert notify.secret(Path("~/hook")) == "https://x/y"
