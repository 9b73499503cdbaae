"""Rules about what the NVIDIA driver reports in the kernel log: Xid, SXid, a GPU that is gone.

By number; `xid` and `sxid` alone are for all others. Three things beat this table: the driver's own
recovery action (check gpu_recovery, Xid 154), the state of row remapping (check gpu_row_remap), and
that Xid 43 and 45 are only the end of what another fault began. Program faults are class software,
action none: the program is looked at, no node is.
"""

from __future__ import annotations

from healthcheck.finding import Action, Class
from healthcheck.policy.rule import REBOOT, REBOOT_THEN_REPLACE, REPLACE, RESET, Rule

_PROGRAM = "look at the program that ran on this GPU"
_WATCH = "nothing yet; again on the same GPU: run 'dcgmi diag -r 3' on the node"

_GROUPS: tuple[tuple[Class, Action, str, tuple[int, ...]], ...] = (
    # What a program does to its own context.
    ("software", "none", _PROGRAM,
     (8, 11, 13, 14, 25, 31, 32, 37, 38, 39, 40, 41, 43, 44, 45, 65, 66, 67, 68, 69, 73, 109, 137)),
    # The driver has dealt with it, or says more by other means.
    ("hardware", "none", _WATCH,
     (56, 57, 63, 80, 81, 92, 93, 94, 121, 122, 124, 125, 141, 144, 145, 146, 147, 148, 149, 150,
      152, 153, 157, 159, 160, 161, 162, 163, 164, 165, 166, 168, 169, 174, 175, 176)),
    ("configuration", "none", "update the driver", (78,)),
    # Memory or engines are wrong until a reset.
    ("hardware", "reset", RESET,
     (46, 48, 58, 60, 61, 62, 64, 74, 95, 110, 136, 140, 155, 156, 158, 171, 172, 173)),
    ("hardware", "reboot", REBOOT, (119, 120, 123, 151, 167)),
    ("hardware", "reboot", REBOOT_THEN_REPLACE, (79, 143)),
    ("hardware", "replace", REPLACE, (54,)),
)  # fmt: skip

RULES: dict[str, Rule] = {
    f"xid.{number}": Rule(class_, action, fix)
    for class_, action, fix, numbers in _GROUPS
    for number in numbers
}
RULES.update(
    {
        "xid": Rule("hardware", "none", "see the NVIDIA catalogue of Xids; " + _WATCH),
        "xid.repeated": Rule("hardware", "none", "run 'dcgmi diag -r 3' on the node"),
        # NVLink 5, where the driver's word decides.
        **{f"xid.{n}.fatal": Rule("hardware", "reset", RESET) for n in range(144, 151)},
        # What the driver asks for after Xid 154.
        "xid.154": Rule("hardware", "none", _WATCH),
        "xid.154.reset": Rule("hardware", "reset", RESET),
        "xid.154.reboot": Rule("hardware", "reboot", REBOOT),
        "xid.154.drain": Rule("hardware", "drain", "wait for its job to end, then reset the GPU"),
        # NVSwitch: resetting it means resetting all GPUs of the board.
        "sxid": Rule("hardware", "none", _WATCH),
        "sxid.fatal": Rule("hardware", "reset", RESET),
        "sxid.nonfatal": Rule("hardware", "none", _WATCH),
        "gpu_gone": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
        "gpu_gone.init": Rule("hardware", "reboot", REBOOT_THEN_REPLACE),
        "gpu_gone.all": Rule("software", "reboot", "look at the driver; " + REBOOT),
        "gpu_gone.gsp": Rule("hardware", "reboot", REBOOT),
    }
)
