"""The runner on steps of a test's own: order, retries, limits, dry run, and what it says."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.created import ROOT, CreatedNode


def test_steps_run_in_order_of_their_needs_and_again_change_nothing(node: CreatedNode) -> None:
    node.file_step("a", "needs: c")
    node.file_step("b")
    node.file_step("c", "needs: b")
    first = node.run()
    assert first.stdout.splitlines()[:3] == ["b: changed", "c: changed", "a: changed"]
    assert first.stdout.splitlines()[-1].startswith("n1 (compute)")
    assert "3 steps: 3 changed, 0 unchanged" in first.stdout
    assert first.returncode == 0
    before = node.snapshot()
    again = node.run()
    assert again.stdout.splitlines()[:3] == ["b: unchanged", "c: unchanged", "a: unchanged"]
    assert node.snapshot() == before


def test_only_what_was_changed_is_made_right(node: CreatedNode) -> None:
    for name in "ab":
        node.file_step(name)
    node.run()
    (node.made / "a").write_text("damaged")
    (node.made / "b").chmod(0o600)
    done = node.run("--only", "a")
    assert done.stdout.splitlines()[0] == "a: changed"
    assert (node.made / "a").read_text() == "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
    assert node.run().stdout.splitlines()[:2] == ["a: unchanged", "b: changed"]


def test_a_dry_run_says_what_would_change_and_changes_nothing(node: CreatedNode) -> None:
    node.file_step("a")
    node.file_step("b", "needs: a")
    done = node.run("--check")
    assert done.returncode == 1
    assert f"a: would change: {node.made}/a: content" in done.stdout
    assert done.stdout.splitlines()[-1] == "n1 (compute): would change a b"
    assert node.snapshot() == {}
    assert not (node.folder / "state" / "ledger.json").exists()
    node.run()
    after = node.run("--check")
    assert (after.returncode, after.stdout.splitlines()[-1]) == (
        0,
        "n1 (compute): would change nothing",
    )


def test_from_and_only_choose_steps(node: CreatedNode) -> None:
    for name in "abc":
        node.file_step(name)
    assert node.run("--list").stdout.split()[::3] == ["a", "b", "c"]
    assert node.run("--from", "b").stdout.splitlines()[:2] == ["b: changed", "c: changed"]
    assert sorted(node.snapshot()) == ["b", "c"]
    wrong = node.run("--only", "ab")
    assert wrong.returncode == 64
    assert "this node has no step 'ab'" in wrong.stderr


def test_role_and_condition_decide_who_has_a_step(node: CreatedNode) -> None:
    node.file_step("all")
    node.file_step("heads", "roles: head login")
    node.file_step("gpus", "roles: compute\nwhen: node.gpus platform=plain|hyperpod")
    node.file_step("off", "when: containers.enroot")
    node.file_step("primary", "when: node.primary accounting.database!=local")
    assert node.run("--list", name="n2").stdout.split()[::3] == ["all", "gpus"]
    assert node.run("--list", name="head").stdout.split()[::3] == ["all", "heads", "primary"]


FAILS = """
step::check() { exit 10; }
step::apply() { echo one; echo two >&2; echo three; exit 69; }
"""


def test_the_last_line_names_step_exit_code_and_what_it_said(node: CreatedNode) -> None:
    node.file_step("a")
    node.step("b", FAILS, "needs: a\ntries: 1")
    node.file_step("c", "needs: b")
    done = node.run()
    assert done.returncode == 69
    (line,) = done.stderr.splitlines()
    assert line.startswith("muster create: n1: step 'b': failed with exit code 69: ")
    for word in ("one", "two", "three", "Fix: see ", "logs/b.log", "run it again"):
        assert word in line
    assert node.states() == {"a": "changed", "b": "failed"}
    assert node.ledger()["b"]["rc"] == 69
    assert "one\nthree\ntwo" in node.log("b")


def test_creation_goes_on_without_an_optional_step(node: CreatedNode) -> None:
    node.step("b", FAILS, "tries: 1\noptional: nobody needs it")
    node.file_step("c", "needs: b\noptional: neither")
    node.file_step("d")
    done = node.run()
    assert done.returncode == 0
    assert "b: failed with exit code 69 (optional: nobody needs it)" in done.stdout
    assert "c: skipped, since 'b' failed" in done.stdout
    assert "without the optional b c" in done.stdout.splitlines()[-1]
    assert node.states() == {"b": "failed", "c": "skipped", "d": "changed"}


def test_what_a_required_step_needs_is_required_too(node: CreatedNode) -> None:
    node.step("b", FAILS, "tries: 1\noptional: nobody needs it")
    node.file_step("c", "needs: b")
    done = node.run()
    assert done.returncode == 1
    assert "step 'c': failed with exit code 1: needs 'b'" in done.stderr


LATE = """
step::check() { [[ -e $MADE/late ]] || exit 10; }
step::apply() { echo x >>$MADE/tries; [[ $(wc -l <$MADE/tries) -lt 2 ]] && exit 75; : >$MADE/late; }
"""


def test_a_failed_step_is_tried_again(node: CreatedNode) -> None:
    node.step("late", LATE, "tries: 2")
    done = node.run()
    assert done.returncode == 0
    assert "late: changed after 2 tries" in done.stdout


def test_what_trying_again_cannot_help_is_not_tried_again(node: CreatedNode) -> None:
    node.step("a", "step::check() { exit 10; }\nstep::apply() { echo x >>$MADE/x; exit 78; }")
    done = node.run()
    assert done.returncode == 78
    assert (node.made / "x").read_text() == "x\n"


def test_a_step_that_hangs_is_stopped_with_all_it_started(node: CreatedNode) -> None:
    body = "step::check() { exit 10; }\nstep::apply() { sleep 300 & echo $! >$MADE/pid; wait; }"
    node.step("a", body, "limit_s: 1\ntries: 1")
    done = node.run()
    assert "step 'a': failed with exit code 124: no end within 1 s, stopped" in done.stderr
    pid = (node.made / "pid").read_text().strip()
    assert not Path("/proc", pid).exists() or " Z " in Path("/proc", pid, "stat").read_text()


def test_a_step_that_lies_is_found_out(node: CreatedNode) -> None:
    node.step(
        "a", "step::state() { [[ -e /nowhere ]] || step::differs 'no /nowhere' || :; }", "tries: 1"
    )
    done = node.run()
    assert "applied, and still: | no /nowhere" in done.stderr


WRONG_STEPS = [
    ("needs: nobody", "there is no step 'nobody'"),
    ("needs: a", "need each other: a"),
    ("roles: compote", "Did you mean 'compute'?"),
    ("when: slurm.lost_after", "Did you mean 'slurm.lost_after_s'?"),
    ("limit: 3", "unknown key 'limit'. Did you mean 'limit_s'?"),
    ("tries: none", "'none' is no number above 0"),
]


@pytest.mark.parametrize(("head", "message"), WRONG_STEPS)
def test_a_wrong_head_is_one_line(node: CreatedNode, head: str, message: str) -> None:
    node.file_step("a", head)
    done = node.run()
    assert done.returncode == 78
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_two_runners_on_one_node_take_turns(node: CreatedNode) -> None:
    # The first waits in its apply until the second has been seen waiting for the lock.
    body = """
step::check() { [[ -e $MADE/done ]] || exit 10; }
step::apply() { : >$MADE/begun; while [[ ! -e $MADE/go ]]; do sleep 0.05; done; : >$MADE/done; }
"""
    node.step("a", body)
    words, env = node.words(), node.environment()
    first = subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    _until((node.made / "begun").exists)
    refused = node.run("--wait-s", "0")
    assert refused.returncode == 75
    assert f"process {first.pid} is creating this node" in refused.stderr
    (node.made / "go").touch()
    assert "a: changed" in first.communicate(timeout=60)[0]
    assert "a: unchanged" in node.run().stdout


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


POINTS = ["check-begin", "check-end", "apply-begin", "apply-half", "apply-end", "checked-again"]
KILLED = """
at() { [[ ${KILL_AT:-} != "$NAME:$1" ]] || { KILL_AT=; kill -9 $PPID; kill -9 $$; }; }
NAME=$(basename "$0" .sh)
step::check() {
  [[ ! -e $MADE/$NAME.applied ]] || at checked-again
  at check-begin
  seq 9 | want::file $MADE/$NAME 0644
  [[ -e $MADE/$NAME.applied ]] || step::differs never
  at check-end
}
step::apply() {
  at apply-begin
  seq 4 >$MADE/$NAME
  at apply-half
  seq 9 | want::file $MADE/$NAME 0644
  : >$MADE/$NAME.applied
  at apply-end
}
"""


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", ["a", "b"])
def test_killed_anywhere_a_second_run_repairs(node: CreatedNode, name: str, point: str) -> None:
    node.step("a", KILLED)
    node.step("b", KILLED, "needs: a")
    killed = node.run(KILL_AT=f"{name}:{point}")
    assert killed.returncode == -signal.SIGKILL
    repaired = node.run()
    assert repaired.returncode == 0, repaired.stderr
    assert {k for k in node.snapshot() if "." not in k} == {"a", "b"}
    assert (node.made / name).read_text().split()[-1] == "9"
    before = node.snapshot()
    assert "2 steps: 0 changed, 2 unchanged" in node.run().stdout
    assert node.snapshot() == before


def test_a_step_cut_off_in_the_middle_is_applied_though_its_check_is_content(
    node: CreatedNode,
) -> None:
    body = """
step::check() { [[ -e $MADE/first ]] || exit 10; }
step::apply() {
  : >$MADE/first
  [[ -z ${KILL:-} ]] || { kill -9 $PPID; kill -9 $$; }
  : >$MADE/second
}
"""
    node.step("a", body)
    node.run(KILL="1")
    assert node.states() == {"a": "applying"}
    assert "a: changed" in node.run().stdout
    assert (node.made / "second").exists()


def test_the_step_of_a_killed_runner_is_waited_for(node: CreatedNode) -> None:
    body = """
step::check() { [[ -e $MADE/done ]] || exit 10; }
step::apply() {
  echo x >>$MADE/applied
  if [[ -n ${ORPHAN:-} ]]; then
    kill -9 $PPID
    while [[ ! -e $MADE/go ]]; do sleep 0.05; done
    : >$MADE/done
  fi
}
"""
    node.step("a", body, "tries: 1")
    assert node.run(ORPHAN="1").returncode == -signal.SIGKILL
    words, env = node.words(), node.environment()
    second = subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    _until(lambda: _waits(second.pid))
    (node.made / "go").touch()
    out = second.communicate(timeout=60)[0]
    assert second.returncode == 0, out


def _waits(pid: int) -> bool:
    """Whether the runner has started its step, which then waits for the lock."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(b"check" in Path("/proc", child, "cmdline").read_bytes() for child in children)


PASSWORDS = ['it\'s "quoted"', "two words", "$HOME `id` $(id)", "pässwörd-日本", "back\\slash!#%&*"]


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_secret_that_slips_out_of_a_step_is_blackened(node: CreatedNode, password: str) -> None:
    node.secrets.mkdir()
    (node.secrets / "db").write_text(password + "\n")
    body = 'step::apply() { echo "no: $(cat $MUSTER_SECRETS/db)"; exit 78; }'
    node.step("a", f"step::check() {{ exit 10; }}\n{body}")
    done = node.run()
    everything = done.stdout + done.stderr + node.log("a") + str(node.ledger())
    assert password not in everything
    assert "no: ***" in done.stderr


FILLS = """
step::check() { [[ -e $MADE/filled ]] || exit 10; }
step::apply() {
  [[ ! -e $MADE/filled ]] || return 0
  : >$MADE/filled
  cat /dev/zero >$MUSTER_STATE/ballast || true
}
"""


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_full_disk_is_one_line_and_then_repaired(node: CreatedNode, when: str) -> None:
    node.file_step("b", "needs: a")
    node.step("a", FILLS if when == "between" else "step::state() { :; }")
    state = node.folder / "state"
    fill = f"cat /dev/zero >{state}/ballast" if when == "before" else ":"
    script = f'mount -t tmpfs -o size=64k t {state}; {fill}; "$@"; rm {state}/ballast; exec "$@"'
    state.mkdir()
    words = ["unshare", "-m", "bash", "-c", script, "_", *node.words()]
    env = node.environment()
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("muster")]
    assert "No space left on device. Fix: make room" in line
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stderr
    assert "b: changed" in done.stdout


def test_the_ledger_is_copied_to_shared_storage(node: CreatedNode) -> None:
    shared = node.folder / "shared"
    mounts = f"[{{path: {shared}, kind: existing}}]"
    node.cluster.write_text(
        node.cluster.read_text() + f"mounts: {mounts}\nshared_dir: {shared}/ours\n"
    )
    shared.mkdir()
    node.file_step("a")
    node.run()
    copies = [path.name for path in (shared / "ours" / "ledger").iterdir()]
    assert copies == ["n1.json"]
    shared.rename(node.folder / "gone")
    shared.write_text("in its place")
    done = node.run()
    assert done.returncode == 0
    assert "the ledger's copy in" in done.stdout
