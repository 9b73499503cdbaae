"""The supervisor's side of the guards, with a fake srun that starts the real guard here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from muster.errors import CreateError
from muster.site import Site
from resume import allocation, lease
from resume.allocation import Allocation
from resume.fleet import Fleet, NodeView, guard_srun, step_environment
from resume.nodewatch import NodeWatch
from resume.sight import Wanted
from tests.harness.programs import Scontrol, node_record, put

ROOT = Path(__file__).resolve().parents[2]
LONG = 30.0
Program = Callable[[str, str], Path]

# One guard a node: labels its lines, gives each of them all of the input.
SRUN = f"""#!/bin/sh
''''exec '{sys.executable}' "$0" "$@" # a shebang cannot hold a blank'''
import os, subprocess, sys, threading
options = [word for word in sys.argv[1:] if word.startswith("--")]
nodelist = next(o for o in options if o.startswith("--nodelist=")).partition("=")[2].split(",")
command = sys.argv[1 + next(i for i, w in enumerate(sys.argv[1:]) if not w.startswith("--")):]
guards = []
for number, name in enumerate(nodelist):
    env = {{**os.environ, "SLURMD_NODENAME": name}}
    guards.append(subprocess.Popen(command, env=env, stdin=-1, stdout=-1))
def label(number, guard):
    for line in guard.stdout:
        os.write(1, b"%d: " % number + line)
threads = [threading.Thread(target=label, args=pair) for pair in enumerate(guards)]
for thread in threads:
    thread.start()
while block := os.read(0, 65536):
    for guard in guards:
        guard.stdin.write(block)
        guard.stdin.flush()
for guard in guards:
    guard.stdin.close()
sys.exit(max(guard.wait() for guard in guards))
"""

GUARD = """
import os, sys
from functools import partial
from pathlib import Path
from resume import guard
run_dir, check = Path(sys.argv[1]), sys.argv[2]
node = os.environ["SLURMD_NODENAME"]
nonce = "no" if node in os.environ.get("BLIND", "").split() else "the nonce"
sys.exit(guard.serve(guard.GuardArguments(run_dir, "7", 0, 1, 1000.0, nonce, [check])))
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "nonce").write_text("the nonce")
    lease.take(folder, "7", 0, 0)
    return folder


@pytest.fixture
def check(tmp_path: Path) -> Path:
    """Fit, but for the nodes that a file names."""
    (tmp_path / "unfit").write_text("")
    line = f'grep -qx "$SLURMD_NODENAME" "{tmp_path}/unfit"'
    return put(
        tmp_path,
        "check",
        f"""{line} && echo '{{"fit": false, "unfit": ["gpu"]}}' || echo '{{"fit": true}}'""",
    )


@pytest.fixture
def fleet(run_dir: Path, check: Path, program: Program, scontrol: Scontrol) -> Iterator[Fleet]:
    program("srun", SRUN)
    one = Fleet(
        [sys.executable, "-c", GUARD, str(run_dir), str(check)], run_dir / "logs" / "guards.log"
    )
    yield one
    one.leave()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def reported(fleet: Fleet, rank: int) -> bool:
    return rank in fleet.exits(["n1", "n2"])


def test_guards_of_two_nodes_from_hello_to_bye(fleet: Fleet, tmp_path: Path) -> None:
    assert not fleet.running()
    assert not fleet.order(do="alive")
    fleet.start(["n1", "n2"])
    views = fleet.nodes
    until(lambda: all(view.hello for view in views.values()))
    assert [view.shared for view in views.values()] == [True, True]
    assert fleet.running()
    assert max(fleet.silent_s(name) for name in views) < LONG
    beats = tmp_path / "beats"
    fleet.prepare(3, beats, fresh=True)
    until(lambda: all(view.ready == 3 for view in views.values()))
    assert all(view.port for view in views.values())
    (beats / "rank_0.json").write_text('{"phase": "step", "step": 5}')
    until(lambda: all(view.beats for view in views.values()))
    phase, step, age, node = fleet.beats(["n1"])[0]
    assert (phase, step, node) == ("step", 5, "n1")
    assert age >= 0
    for rank, code in ((1, 0), (0, 137)):
        (beats / f"rank_{rank}.exit").write_text(f"{code}\n")
        until(partial(reported, fleet, rank))
    assert list(fleet.exits(["n1", "n2"]).items()) == [(1, 0), (0, 137)]  # first seen first
    fleet.order(do="kill", attempt=3)
    until(lambda: all(view.clean == 3 for view in views.values()))
    fleet.check()
    until(lambda: all(view.gate for view in views.values()))
    fleet.prepare(4, beats, fresh=True, see=Wanted(tmp_path / "step_00000005", "a0", 0.0))
    until(lambda: all(view.ready == 4 for view in views.values()))
    assert [view.unseen for view in views.values()] == [
        "manifest.json is missing or unreadable"
    ] * 2
    assert (fleet.exits(["n1", "n2"]), fleet.beats(["n1", "n2"])) == ({}, {})
    fleet.leave()
    assert not fleet.running()
    assert not fleet.order(do="alive")


SAID = [
    b"not json\n", b"0: {\n", b"0: []\n", b'0: {"n": ["n1"]}\n', b'0: {"n": "n9", "hello": 1}\n',
    b'0: {"n": "n1", "r": [], "x": {}}\n', b'0: {"n": "n1", "r": {"0": []}, "x": {}}\n',
    b'0: {"n": "n1", "r": {"0": 3}, "x": {}}\n', b'0: {"n": "n1", "r": {}, "x": {"0": "one"}}\n',
    b'0: {"n": "n1", "ready": Infinity, "port": 1}\n', b'0: {"n": "n1", "hello": true}\n',
    b'0: {"n": "n1", "gate": true}\n', b'0: {"n": "n1", "r": {"x": ["a", 1, 2]}, "x": {}}\n',
    b"0: " + b"[" * 100_000 + b"\n", b'0: {"n": "n1", ' + b"\xff\n",
    b'0: {"n": "n1"}1: {"n": "n2"}\n',
]  # fmt: skip


def test_garbled_lines_do_not_deafen_the_supervisor(
    fleet: Fleet, program: Program, tmp_path: Path
) -> None:
    """After every kind of torn line a whole one is still heard."""
    whole = [json.dumps({"n": "n1", "r": {}, "x": {str(i): i}}).encode() for i in range(len(SAID))]
    text = b"".join(b"%s0: %s\n" % pair for pair in zip(SAID, whole, strict=True))
    (tmp_path / "said").write_bytes(text)
    program("srun", f"cat {tmp_path}/said; cat >/dev/null")
    fleet.start(["n1", "n2"])
    last = len(SAID) - 1
    until(lambda: fleet.exits(["n1"]).get(last) == last)
    assert len(fleet.exits(["n1"])) == 1


def test_an_srun_that_no_longer_reads_does_not_hold_the_supervisor(
    fleet: Fleet, program: Program
) -> None:
    program("srun", "exec sleep 600")
    fleet.start(["n1"])
    deadline = time.monotonic() + LONG
    while fleet.order(do="alive", text="x" * 2000):
        assert time.monotonic() < deadline
    assert fleet.running()


def test_srun_that_ends_is_seen(fleet: Fleet, program: Program, run_dir: Path) -> None:
    program("srun", "echo 'srun: error: no' >&2; exit 1")
    fleet.start(["n1"])
    until(lambda: not fleet.running())
    assert (run_dir / "logs" / "guards.log").read_text() == "srun: error: no\n"


def test_srun_line_of_the_guards() -> None:
    argv = guard_srun(["n1", "n3"], ["muster", "guard"])
    assert argv[0] == "srun"
    assert argv[-2:] == ["muster", "guard"]
    assert {"--overlap", "--no-kill", "--label", "--nodes=2", "--ntasks=2", "--nodelist=n1,n3"} <= (
        set(argv)
    )
    # slurm.conf may say otherwise; the end of one guard must not be the end of all
    assert {"--kill-on-bad-exit=0", "--wait=0"} <= set(argv)


def test_environment_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PYXIS_CONTAINER_IMAGE", "/a.sqsh")
    monkeypatch.setenv("PYTHONPATH", f"/a{os.pathsep}{ROOT}{os.pathsep}/b")
    environment = step_environment()
    gone = {"SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "PYXIS_CONTAINER_IMAGE"}
    assert not gone & set(environment)
    assert environment["SLURM_JOB_ID"] == "7"
    assert environment["PYTHONPATH"] == os.pathsep.join([str(ROOT), "/a", "/b"])
    text = "import resume, muster.errors; print(resume.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment, cwd="/", capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(ROOT / "resume" / "__init__.py")


# -- the gate over an allocation -------------------------------------------------------------


class Waiter:
    """Waits, and remembers what was said."""

    host = "head"

    def __init__(self) -> None:
        self.said: list[str] = []
        self.known: dict[str, tuple[str, str]] = {}
        self.noted: list[tuple[str, str]] = []

    def note(self, event: str, **facts: object) -> None:
        self.noted.append((event, str(facts["node"])))

    def suspects(self) -> dict[str, tuple[str, str]]:
        return self.known

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def gate(fleet: Fleet, run_dir: Path, scontrol: Scontrol) -> Callable[..., Allocation]:
    def make(*records: str, names: str = "n1,n2,n3") -> Allocation:
        scontrol.nodes(*(records or [node_record(name) for name in names.split(",")]))
        scontrol.job(NodeList=names)
        watch = NodeWatch("7", names.split(","))
        watch.refresh()
        return Allocation(Site(gate_timeout_s=LONG), fleet, watch, run_dir, Waiter())

    return make


def test_gate_keeps_slurms_order(gate: Callable[..., Allocation]) -> None:
    one = gate()
    assert one.gate(2) == ["n1", "n2", "n3"]
    assert (one.bad, one.bad_text()) == ({}, "nothing known")


def test_unfit_lost_and_drained_nodes_are_out_and_stay_out(
    gate: Callable[..., Allocation], tmp_path: Path, scontrol: Scontrol
) -> None:
    (tmp_path / "unfit").write_text("n2\n")
    drained = node_record("n4", "IDLE+DRAIN", Reason="muster:gpu:hardware Xid 79 [root@x]")
    one = gate(
        node_record("n1"), node_record("n2"), node_record("n3", "DOWN*"), drained,
        names="n1,n2,n3,n4",
    )  # fmt: skip
    assert one.gate(1) == ["n1"]
    assert one.bad == {
        "n2": "gpu", "n3": "lost, says Slurm", "n4": "muster:gpu:hardware Xid 79",
    }  # fmt: skip
    (tmp_path / "unfit").write_text("")
    assert one.gate(1) == ["n1"]  # well again, but what runs there is not ours


def test_a_node_that_does_not_see_the_run_dir_is_out(
    gate: Callable[..., Allocation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLIND", "n3")
    one = gate()
    assert one.gate(2) == ["n1", "n2"]
    assert list(one.bad) == ["n3"]


def test_a_run_dir_that_only_one_node_sees_is_an_error(
    gate: Callable[..., Allocation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLIND", "n2 n3")
    with pytest.raises(CreateError, match="RUN_DIR is not shared: node n2 does not see it"):
        gate().gate(2)


def test_a_spare_that_is_slow_does_not_hold_up(
    gate: Callable[..., Allocation], check: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation, "_SPARE_WAIT_S", 0.3)
    check.write_text(
        "#!/bin/bash\n[[ $SLURMD_NODENAME == n3 ]] && sleep 3\necho '{\"fit\": true}'\n"
    )
    one = gate()
    assert one.gate(2) == ["n1", "n2"]
    assert one.bad == {}  # slow, not bad


def test_an_srun_that_starts_no_step_is_no_nodes_fault(
    gate: Callable[..., Allocation], program: Program, run_dir: Path
) -> None:
    allocation = gate()
    tries = run_dir / "tries"
    refuse = f"echo x >>'{tries}'; echo 'srun: error: Invalid generic resource' >&2; exit 1"
    program("srun", refuse)
    assert allocation.gate(2) == []
    assert allocation.bad == {}
    assert allocation.refused == "srun: error: Invalid generic resource"
    assert len(tries.read_text().splitlines()) == 3
    program("srun", f"rm '{tries}'; {refuse}")
    assert allocation.gate(2) == []  # nothing of the last time is remembered
    assert len(tries.read_text().splitlines()) == 1


def test_nobody_waits_for_the_dead(
    gate: Callable[..., Allocation], monkeypatch: pytest.MonkeyPatch
) -> None:
    allocation = gate(names="head,n1,n2,n3")
    silence = {"head": 9.0, "n1": 0.3, "n2": 9.0, "n3": 9.0}
    monkeypatch.setattr(allocation.fleet, "silent_s", silence.__getitem__)
    monkeypatch.setattr(allocation, "answers", lambda name: name == "n3")
    assert allocation.without_answer(list(silence)) == ["n2"]
    allocation.fleet.nodes = {name: NodeView() for name in silence}
    monkeypatch.setattr(allocation.fleet, "check", lambda *_: None)
    monkeypatch.setattr(allocation.fleet, "running", lambda: True)
    for name in ("head", "n1", "n3"):
        allocation.fleet.nodes[name].gate = True
    began = time.monotonic()
    assert allocation.ask_suspects(list(silence), 0.0) is not None
    assert allocation.gate(4) == ["head", "n1", "n3"]
    assert time.monotonic() - began < LONG, "it was waited for n2"
    assert allocation.bad == {"n2": "does not respond"}


def test_a_suspect_stays_out_until_it_boots(gate: Callable[..., Allocation]) -> None:
    first = gate()
    first.gate(2)
    first.condemn("n2", "does not respond")
    assert isinstance(first.waiter, Waiter)
    assert first.waiter.noted == [("suspect", "n2")]
    boot = first.fleet.boots["n2"]
    first.fleet.leave()
    again = gate()
    assert isinstance(again.waiter, Waiter)
    again.waiter.known = {"n2": (boot, "does not respond"), "n3": ("another boot", "lost")}
    assert again.gate(2) == ["n1", "n3"]
    assert again.bad == {"n2": "suspect until it boots: does not respond"}
    assert again.waiter.noted == [("suspect_cleared", "n3")]


def test_what_three_nodes_show_is_no_nodes_fault(
    gate: Callable[..., Allocation], tmp_path: Path
) -> None:
    (tmp_path / "unfit").write_text("n1\nn2\nn3\n")
    one = gate()
    assert one.gate(2) == []
    assert one.bad == {}
    assert "3 nodes fail alike: gpu" in one.shared_fault
    (tmp_path / "unfit").write_text("n1\n")
    assert one.gate(2) == ["n2", "n3"]
    assert (list(one.bad), one.shared_fault) == (["n1"], "")


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        ({}, ""),
        ({"n1": ["a: x"], "n2": ["a: x"]}, ""),
        ({"n1": ["a: x"], "n2": ["b: y"], "n3": ["c: z"]}, ""),
        ({"n1": ["a: x"], "n2": ["a: y"], "n3": ["b: z", "a: w"]}, "3 nodes fail alike: a: x"),
        ({"n1": []}, ""),
    ],
)
def test_shared_fault(failed: dict[str, list[str]], said: str) -> None:
    assert allocation.shared_fault(failed) == said


def test_who_passed_the_check_after_a_failure_is_not_asked_again(
    gate: Callable[..., Allocation], tmp_path: Path
) -> None:
    one = gate()
    one.gate(2)
    suspect = one.ask_suspects(["n1", "n2"], since=0.0)
    assert suspect is not None
    assert (suspect.verdict, suspect.node) == ("unknown", None)
    (tmp_path / "unfit").write_text("n1\n")
    assert one.gate(2)[:2] == ["n1", "n2"]
    one.passed_at -= 1000
    assert one.gate(2) == ["n2", "n3"]


def test_who_passed_a_check_ahead_of_a_loss_is_not_asked_again(
    gate: Callable[..., Allocation], tmp_path: Path
) -> None:
    one = gate()
    one.gate(2)
    one.passed_at -= 1000
    (tmp_path / "unfit").write_text("n2\n")
    one.check_ahead()
    views = one.fleet.nodes
    deadline = time.monotonic() + LONG
    while any(view.gate is None for view in views.values()) and time.monotonic() < deadline:
        time.sleep(0.02)
    (tmp_path / "unfit").write_text("n1\n")
    one.check_ahead()  # a second time at once asks nobody
    assert one.gate(2) == ["n1", "n3"]
    one.passed_at -= 1000
    assert one.gate(1) == ["n2", "n3"]


def test_a_short_command_that_went_well_needs_no_second_gate(
    gate: Callable[..., Allocation], tmp_path: Path
) -> None:
    one = gate()
    one.gate(2)
    (tmp_path / "unfit").write_text("n1\n")
    one.nothing_failed()
    assert one.gate(2)[:2] == ["n1", "n2"]
    one._gated_at -= 1000  # it took long
    one.passed_at -= 1000
    one.nothing_failed()
    assert one.gate(2) == ["n2", "n3"]


def test_an_answer_that_is_still_to_come_is_waited_for(
    gate: Callable[..., Allocation], tmp_path: Path
) -> None:
    one = gate()
    one.gate(2)
    (tmp_path / "unfit").write_text("n1\n")
    one.passed_at -= 1000
    one.check_ahead()
    assert one.gate(2) == ["n2", "n3"]


def test_a_report_in_several_lines_is_one(fleet: Fleet) -> None:
    view = NodeView()
    fleet.nodes = {"n1": view}
    fleet._note(view, {"n": "n1", "r": {"0": ["step", 1, 0.1]}, "x": {}, "more": True})
    assert not view.beats
    fleet._note(view, {"n": "n1", "r": {"1": ["step", 1, 0.1]}, "x": {"0": 137}, "o": 2})
    assert (sorted(view.beats), view.exits, view.kills) == ([0, 1], {0: 137}, 2)


# -- what Slurm says of the nodes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "allocated", "lost", "condemned"),
    [
        (node_record("n1"), "n1", False, None),
        (node_record("n1", "DOWN"), "n1", True, None),
        (node_record("n1", "ALLOCATED*"), "n1", False, None),  # missed a ping
        (node_record("n1"), "n2", True, None),  # taken out of the job
        (node_record("n1"), "(null)", False, None),  # the job is on its way
        (node_record("n1", "MIXED+DRAIN", Reason="muster:gpu:hardware off the bus [root@x]"), "n1",
         False, "muster:gpu:hardware off the bus"),
        (node_record("n1", "MIXED+DRAIN", Reason="muster:disk:policy nearly full [root@x]"), "n1",
         False, None),
        (node_record("n1", "MIXED+DRAIN", Reason="maintenance on Monday [ann@x]"), "n1", False,
         None),
        (node_record("n1", Reason="muster:gpu:hardware old [root@x]"), "n1", False, None),
        ("", "n1", False, None),
    ],
)  # fmt: skip
def test_node_watch(
    record: str, allocated: str, lost: bool, condemned: str | None, scontrol: Scontrol
) -> None:
    scontrol.nodes(record)
    scontrol.job(NodeList=allocated)
    watch = NodeWatch("7", ["n1"])
    watch.refresh()
    assert (watch.lost("n1"), watch.condemned("n1")) == (lost, condemned)


def test_a_silent_slurm_changes_nothing(scontrol: Scontrol) -> None:
    watch = NodeWatch("7", ["n1", "n2"])
    watch.refresh()
    assert set(watch.nodes) == {"n1", "n2"}
    scontrol.nodes(node_record("n1", "DOWN"))
    (scontrol.state / "job").write_text("")
    watch.refresh()
    assert not watch.lost("n1")
    assert not NodeWatch("7", ["n1"]).lost("n1")


def test_a_large_job_and_a_slow_slurm_are_asked_rarely(scontrol: Scontrol) -> None:
    watch = NodeWatch("7", [f"n{number}" for number in range(1000)])
    watch.refresh()
    assert watch.period_s >= 10.0


def test_away_means_that_slurm_does_not_answer_now(scontrol: Scontrol) -> None:
    watch = NodeWatch("7", ["n1", "n2"])
    assert not watch.away()
    (scontrol.state / "job").write_text("")
    assert not watch.away()  # it has answered just now
    watch.answered_at -= 100
    assert watch.away()
    assert watch.address("n1") == "127.0.0.1"
    assert watch.address("unknown") == "unknown"
