"""Rules about disks and file systems."""

from __future__ import annotations

from healthcheck.policy.rule import Rule

RULES: dict[str, Rule] = {
    "scratch_space": Rule(
        "software",
        "drain",
        "delete old files there, or name another disk as scratch_path in the site file",
    ),
    "scratch_space.missing": Rule("configuration", "none", "correct scratch_path in the site file"),
    "shared_writable": Rule("storage", "none", "look at the mount and its file server"),
    "shared_writable.denied": Rule("configuration", "none", "choose a folder you may write to"),
}
