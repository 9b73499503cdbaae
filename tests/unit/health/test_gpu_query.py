"""One question per run, and what happens when the driver does not know a word of it."""

from __future__ import annotations

import json

import pytest

from healthcheck import registry
from healthcheck.read.gpu import (
    FIELDS,
    NEEDED,
    Gpu,
    listed,
    parse_gpus,
    parse_gres,
    parse_known_fields,
    smi,
)
from tests.harness.fake_tools import good
from tests.harness.fake_tools.gpus import rack
from tests.harness.fake_tools.node import Answer, FakeNode

NEW = ("gpu_recovery_action", "fabric.state", "clocks_event_reasons.active")


def asked(node: FakeNode, when: str) -> list[str]:
    """How one run calls nvidia-smi."""
    facts = node.facts(when, limit_s=registry.LIMIT_S[when])
    registry.run_checks(registry.discover(), facts)
    calls = facts.env.asked  # type: ignore[attr-defined]
    return [" ".join(argv[1:3]) for argv in calls if argv[0] == "nvidia-smi"]


@pytest.mark.parametrize("when", registry.MODES)
def test_the_big_question_is_asked_once(when: str) -> None:
    found = asked(good.node(), when)
    assert sum(words.startswith("--query-gpu=") for words in found) <= 1
    assert len(found) == len(set(found)) <= 4


def test_a_prolog_asks_three_short_questions() -> None:
    kinds = {words.split("=")[0] for words in asked(good.node(), "prolog")}
    assert kinds == {"--query-gpu", "nvlink -s", "--query-compute-apps"}


def test_an_old_driver_is_asked_for_what_it_knows_and_that_is_remembered() -> None:
    node = good.node()
    rack(node).unknown.update(NEW)
    facts = node.facts()
    gpus = facts.once(smi).gpus
    assert len(gpus) == 8
    assert [gpus[0].get(name) for name in NEW] == [None] * 3
    assert gpus[0].get("ecc.mode.current") == "Enabled"
    assert len(facts.env.asked) == 3  # type: ignore[attr-defined]
    again = node.facts()
    assert len(again.once(smi).gpus) == 8
    assert len(again.env.asked) == 1  # type: ignore[attr-defined]


def test_after_a_boot_there_may_be_another_driver() -> None:
    node = good.node()
    rack(node).unknown.update(NEW)
    node.facts().once(smi)
    node.files["/proc/sys/kernel/random/boot_id"] = "another"
    rack(node).unknown.clear()
    assert node.facts().once(smi).gpus[0].get(NEW[0]) == "None"


@pytest.mark.parametrize("text", ["", "[", "1", "null", '["b"]', '["another", "uuid"]', "{}"])
def test_a_damaged_memory_asks_for_everything(text: str) -> None:
    node = good.node()
    node.memory["nvidia_smi_fields"] = text
    assert node.facts().once(smi).gpus[0].get(NEW[0]) == "None"


def test_a_memory_without_what_is_needed_is_damaged() -> None:
    node = good.node()
    boot = node.files["/proc/sys/kernel/random/boot_id"]
    node.memory["nvidia_smi_fields"] = json.dumps([boot, "index", "uuid"])
    assert len(node.facts().once(smi).gpus) == 8


def test_a_driver_that_does_not_explain_itself_is_asked_for_the_least() -> None:
    node = good.node()
    rack(node).unknown.update(NEW)
    node.say("nvidia-smi", "?", rc=1, words="--help-query-gpu")
    gpus = node.facts().once(smi).gpus
    assert (len(gpus), set(gpus[0].values)) == (8, set(NEEDED))


def test_a_fit_driver_never_explains_itself() -> None:
    node = good.node()
    node.say("nvidia-smi", "the words is not a valid field to query", rc=0, words="-L")
    facts = node.facts()
    facts.once(smi)
    assert len(facts.env.asked) == 1  # type: ignore[attr-defined]
    assert node.memory.get("nvidia_smi_fields") is None


def test_a_slow_answer_is_asked_for_again_but_not_of_a_stuck_program() -> None:
    node = good.node()
    whole, calls = node.tools["nvidia-smi"], []

    def once_slow(arguments):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        calls.append(arguments)
        return Answer(hangs=True) if len(calls) == 1 else whole(arguments)

    node.tools["nvidia-smi"] = once_slow
    assert len(node.facts().once(smi).gpus) == 8
    node.say("nvidia-smi", hangs=True)
    facts = node.facts()
    assert facts.once(smi).done.timed_out
    assert len(facts.env.asked) == 2  # type: ignore[attr-defined]
    node.unkillable.add("nvidia-smi")
    facts = node.facts()
    assert facts.once(smi).unkillable
    assert len(facts.env.asked) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("when", registry.MODES)
def test_who_hangs_is_asked_nothing_more(when: str) -> None:
    node = good.node()
    node.say("nvidia-smi", hangs=True)
    assert len(asked(node, when)) in (0, 2)


@pytest.mark.parametrize(("limit_s", "status"), [(7.9, "UNKNOWN"), (8.1, "FAIL")])
def test_who_had_no_time_to_answer_does_not_hang(limit_s: float, status: str) -> None:
    node = good.node()
    node.say("nvidia-smi", hangs=True)
    found = node.check("nvidia_smi", "gate", limit_s=limit_s)
    assert [one.status for one in found] == [status]


def test_listed() -> None:
    node = good.node()
    assert node.facts().once(listed) == 8
    rack(node).cards.clear()
    assert node.facts().once(listed) == 0
    node.say("nvidia-smi", "what?")
    assert node.facts().once(listed) is None
    node.say("nvidia-smi", "No devices were found", hangs=True)
    assert node.facts().once(listed) is None


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:8", 8), ("gpu:h100:8(S:0-1)", 8), ("gpu:a:2,gpu:b:3", 5), ("gpu:h100:4,shard:16", 4),
     ("(null)", 0), ("", 0), ("mygpu:4", 0)],
)  # fmt: skip
def test_gres(gres: str, count: int) -> None:
    assert parse_gres(gres) == count


def test_a_row_counts_only_with_its_line_end() -> None:
    """16 lanes that are cut are one lane."""
    fields = (*NEEDED, "pcie.link.width.current")
    text = rack(good.node()).answer([f"--query-gpu={','.join(fields)}"]).out
    assert [gpu.get(fields[-1]) for gpu in parse_gpus(text, fields)] == ["16"] * 8
    for cut in (1, 2):
        assert len(parse_gpus(text[:-cut], fields)) == 7


def test_known_fields() -> None:
    text = 'List of "things":\n\n"uuid" or "gpu_uuid"\nAbout.\n\n"ecc.mode.current"\n say "no"\n'
    assert parse_known_fields(text) == {"uuid", "gpu_uuid", "ecc.mode.current"}


def test_the_name_is_the_serial_number_else_the_uuid() -> None:
    values = dict.fromkeys(FIELDS, "[N/A]") | {"uuid": "GPU-1", "serial": "1650323100003"}
    assert Gpu(values).name == "1650323100003"
    assert Gpu(values | {"serial": "0"}).name == "GPU-1"
    assert Gpu(values | {"serial": "[N/A]"}).name == "GPU-1"
