"""The sentences of a report: names of incidents, what was done about them, the conclusion. Pure."""

from __future__ import annotations

from typing import Optional

from resume.report.incidents import Incident

_NAMES = {
    "node_lost": "node {node} lost",
    "node_unfit": "node {node} unfit",
    "rank_failed": "a rank failed on {node}",
    "left_early": "ranks left before training was complete",
    "hang": "ranks on {node} hung",
    "launch_failed": "launch failed on {node}",
    "out_of_memory": "a rank ran out of memory",
    "infrastructure": "several nodes had the same trouble",
    "slurm_away": "the controller was away",
    "storage": "storage failed",
    "asked_to_leave": "asked to leave",
    "supervisor_lost": "supervisor lost",
    "batch_host_lost": "batch host {node} lost",
    "config": "configuration error",
    "data": "data missing or damaged",
    "diverged": "the loss was not finite",
    "loss_spike": "the loss spiked",
    "loss_mismatch": "the loss after a resume was not that of before",
}


def seconds(value: Optional[float]) -> str:
    """A duration for people: 9.1 s, 3 min 12 s, 2 h 5 min, 3 d 4 h."""
    if value is None:
        return "unknown"
    if value < 99.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(value / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(value / 3600)
    return f"{hours // 24} d {hours % 24} h"


def count(number: int, noun: str) -> str:
    """'1 training step', '4 training steps'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def name_incident(incident: Incident) -> str:
    """'power loss of n2 (worker)': the fault's own name where it is known, else the cause."""
    fault, node = incident.fault, incident.node
    if fault is None:
        known = _NAMES.get(incident.cause, incident.cause.replace("_", " ") + " on {node}")
        name = known.format(node=node) if node is not None else _without_node(known)
    else:
        name = fault.name
        if fault.node is not None and fault.node not in name:
            name += f" of {fault.node}" if name.endswith("loss") else f" on {fault.node}"
        if node is not None and fault.node is None and node not in name:
            name += f", seen on {node}"
    same_node = fault is None or fault.node is None or fault.node == node
    told = node is not None and node in name
    if incident.role is not None and told and same_node and incident.role not in name:
        name += f" ({incident.role})"
    return name


def _without_node(name: str) -> str:
    for words in (" on {node}", " {node}"):
        name = name.replace(words, "")
    return name


def answer(incident: Incident) -> str:  # noqa: PLR0911  (a table)
    """'swapped to spare n3': what was done about the incident."""
    new = " ".join(incident.new_nodes)
    if not incident.interrupted:
        return "training went on"
    if incident.verdict == "swap":
        return f"swapped to spare {new}" if new else "swapped nodes"
    if incident.verdict == "requeue":
        return f"requeued, now with {new}" if new else "requeued"
    if incident.verdict == "retry":
        return f"launched again, now with {new}" if new else "launched again on the same nodes"
    if incident.verdict == "wait":
        return "waited, then launched again"
    if incident.verdict == "takeover":
        return f"guard took over, now with {new}" if new else "guard took over"
    if incident.verdict == "stop":
        return f"stopped: {incident.why}" if incident.why else "stopped"
    return "launched again" if incident.next_attempt is not None else "not recovered yet"


def outcome(incident: Incident) -> str:
    """'swapped to spare n3, back in 9.1 s, 4 training steps lost'."""
    if not incident.interrupted:
        return answer(incident)
    if incident.phases is None:
        waiting = incident.next_attempt is not None or incident.verdict in ("requeue", "wait")
        return answer(incident) + (", not back yet" if waiting else "")
    lost = count(incident.lost_steps, "training step")
    lost = "no training step lost" if incident.lost_steps == 0 else f"{lost} lost"
    return f"{answer(incident)}, back in {seconds(incident.phases.total_s)}, {lost}"


def phase_figures(incident: Incident) -> str:
    """'detect 3.2 s, decide 0.4 s, launch 4.9 s, first training step 0.6 s'."""
    if incident.phases is None:
        return ""
    phases = incident.phases
    return (
        f"detect {seconds(phases.detect_s)}, decide {seconds(phases.decide_s)}, "
        f"launch {seconds(phases.launch_s)}, first training step {seconds(phases.first_step_s)}"
    )
