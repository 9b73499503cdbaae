"""Delivers pages: webhook, e-mail, a site's own command; and the dead-man's beat.

All of it happens in one thread of its own, with a time limit for everything, so that a mail server
that hangs never holds up a run. Addresses that are secrets are read from files at the moment of
use; what a failure says about itself is reduced to words in which they cannot be.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import smtplib
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Callable, Optional

from muster.site import Notify
from resume.durable import append_line, read_lines
from resume.pages import Page, page_for

_PAUSES_S = (1.0, 5.0)  # between the tries of one delivery
_HOUR_S = 3600.0
_ALIVE_S = 30.0  # a supervisor that has not ticked for so long is not alive
_TICK_S = 0.5


@dataclass
class Notifier:
    """Takes events of the supervisor, decides which are pages, sends them in the background."""

    rules: Notify
    run_dir: Path
    facts: Callable[[], Mapping[str, Any]]  # recipe, job, step, ... of the run, as of now
    pauses_s: tuple[float, ...] = _PAUSES_S
    _queue: queue.Queue[Page] = field(default_factory=queue.Queue)
    _thread: Optional[threading.Thread] = None
    _closing: threading.Event = field(default_factory=threading.Event)
    _alive_at: float = field(default_factory=time.monotonic)
    _beaten_at: Optional[float] = None
    _state: str = "running"
    _sent: list[tuple[float, str, str]] = field(default_factory=list)  # time, kind, what
    _withheld: int = 0

    def __post_init__(self) -> None:
        """Remember the pages of earlier supervisors: a job that comes back must not flood."""
        if self.configured:
            for line in read_lines(self.run_dir / "pages.jsonl"):
                with contextlib.suppress(KeyError, TypeError, ValueError):
                    self._sent.append((float(line["time"]), line["kind"], line["what"]))

    @property
    def configured(self) -> bool:
        """Whether the site wants to hear anything."""
        r = self.rules
        return bool(r.webhook_file or r.email_to or r.command or r.beat_file)

    def tick(self) -> None:
        """The supervisor is alive."""
        self._alive_at = time.monotonic()
        if self.configured and self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def take(self, event: str, facts: Mapping[str, Any]) -> None:
        """An event was written into the journal; returns at once."""
        if event in ("done", "stopped"):
            self._state = event
        page = page_for(event, facts) if self.configured else None
        if page is not None and page.kind in self.rules.pages and self._may_send(page):
            self._queue.put(page)
            self.tick()

    def _may_send(self, page: Page) -> bool:
        """Not the same thing twice an hour, not more than the site can stand; a stop always."""
        now = time.time()
        self._sent = [s for s in self._sent if now - s[0] < _HOUR_S]
        again = any(s[1:] == (page.kind, page.what) for s in self._sent)
        if not page.urgent and (again or len(self._sent) >= self.rules.max_per_hour):
            self._withheld += 1
            return False
        self._sent.append((now, page.kind, page.what))
        return True

    def close(self, timeout_s: float) -> None:
        """Send what is waiting and the last beat; give up after timeout_s."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    # -- in the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                page = self._queue.get(timeout=_TICK_S)
            except queue.Empty:
                if self._closing.is_set():
                    break
            else:
                self._deliver(page)
            self._beat()
        self._beat(last=True)

    def _deliver(self, page: Page) -> None:
        facts = dict(self.facts())
        withheld, self._withheld = self._withheld, 0
        if withheld:
            facts["pages that were not sent"] = withheld
        said = {
            name: self._try(send, page, facts)
            for name, send, wanted in (
                ("webhook", self._webhook, self.rules.webhook_file is not None),
                ("email", self._email, bool(self.rules.email_to)),
                ("command", self._command, bool(self.rules.command)),
            )
            if wanted
        }
        with contextlib.suppress(OSError):  # a full disk may be what the page is about
            line = {"time": time.time(), **asdict(page), "sent": said}
            append_line(self.run_dir / "pages.jsonl", line, durable=False)

    def _try(
        self, send: Callable[[Page, dict[str, Any]], None], page: Page, facts: dict[str, Any]
    ) -> str:
        """`sent`, or why not after the last try."""
        said = ""
        for pause_s in (*self.pauses_s, None):
            try:
                send(page, facts)
            except Exception as error:  # noqa: BLE001  (whatever it is, training goes on)
                said = harmless(error)
            else:
                return "sent"
            if pause_s is not None:
                time.sleep(pause_s)
        return said

    def _webhook(self, page: Page, facts: dict[str, Any]) -> None:
        run = str(facts.get("run", ""))
        body = {"text": f"{page.subject(run)}\n{page.text(facts)}", **asdict(page), **facts}
        self._post(self.rules.webhook_file, body)

    def _post(self, url_file: Optional[Path], body: Mapping[str, Any]) -> None:
        url = secret(url_file)
        if not url.startswith(("https://", "http://")):
            raise ValueError
        data = json.dumps(body, default=str).encode()
        request = urllib.request.Request(  # noqa: S310  (the line above)
            url, data, {"Content-Type": "application/json", "User-Agent": "muster"}
        )
        with urllib.request.urlopen(request, timeout=self.rules.timeout_s) as answer:  # noqa: S310
            answer.read(1000)

    def _email(self, page: Page, facts: dict[str, Any]) -> None:
        message = EmailMessage()
        message["Subject"] = page.subject(str(facts.get("run", "")))
        message["From"] = self.rules.email_from or f"muster@{os.uname().nodename}"
        message["To"] = ", ".join(self.rules.email_to)
        message.set_content(page.text(facts))
        if self.rules.smtp is None:
            self._pipe(self.rules.sendmail, message.as_bytes())
            return
        host, _, port = self.rules.smtp.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=self.rules.timeout_s) as server:
            server.send_message(message)

    def _command(self, page: Page, facts: dict[str, Any]) -> None:
        line = json.dumps({**asdict(page), **facts}, default=str)
        self._pipe(self.rules.command, line.encode() + b"\n")

    def _pipe(self, argv: list[str], text: bytes) -> None:
        subprocess.run(
            argv,
            input=text,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=self.rules.timeout_s,
            check=True,
        )

    def _beat(self, *, last: bool = False) -> None:
        """Tell the dead-man's switch that we are alive, if we are; it pages when it hears none."""
        now = time.monotonic()
        if self.rules.beat_file is None:
            return
        early = self._beaten_at is not None and now - self._beaten_at < self.rules.beat_s
        if not last and (early or now - self._alive_at > _ALIVE_S):
            return
        self._beaten_at = now
        with contextlib.suppress(Exception):  # silence is the message
            self._post(self.rules.beat_file, {"state": self._state, **self.facts()})


def secret(path: Optional[Path]) -> str:
    """The first line of a file."""
    if path is None:
        raise FileNotFoundError
    return path.expanduser().read_text(encoding="utf-8").split("\n", 1)[0].strip()


def harmless(error: Exception) -> str:
    """What went wrong, without a word of the address: many errors repeat it."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, OSError):
        error = error.reason
    if isinstance(error, subprocess.CalledProcessError):
        return f"exit code {error.returncode}"
    if isinstance(error, (subprocess.TimeoutExpired, TimeoutError)):
        return "time limit"
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return os.strerror(error.errno) if error.errno > 0 else type(error).__name__
    if isinstance(error, http.client.HTTPException):
        return "no proper answer"
    return type(error).__name__
