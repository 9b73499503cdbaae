"""`muster slurm-conf render|diff|check`: the thin shell around render.py and dry_start.py."""

from __future__ import annotations

import argparse
import difflib
import io
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from muster.argument_types import above_zero
from muster.errors import ConfigError, DataError, UnavailableError

FILES = ("slurm.conf", "muster.conf", "gres.conf", "cgroup.conf", "topology.conf", "plugstack.conf")
Files = Mapping[str, Optional[str]]


def add_parser(subparsers: Any) -> None:
    """Add `slurm-conf` and its verbs."""
    from lifecycle.cli import add_source  # noqa: PLC0415

    text = "Slurm's configuration from the description of a cluster, beside your own lines"
    parser = subparsers.add_parser("slurm-conf", help=text, description=text)
    parser.set_defaults(verb="slurm-conf")
    verbs = parser.add_subparsers(dest="conf_verb", metavar="VERB", required=True)
    for name, function, told in (
        ("render", _render, "write the files; what is right already is not touched"),
        ("diff", _diff, "show what render would change; exit code 1 if it would"),
        ("check", _check, "let the real slurmctld and slurmd read the result, in a private folder"),
        ("programs", _programs, "write the programs that slurm.conf names, such as the prolog"),
    ):
        verb = verbs.add_parser(name, help=told, description=told)
        verb.set_defaults(func=function)
        add_source(verb)
        verb.add_argument("--dir", type=Path, help="of the files; default: slurm.config_dir")
        if name != "programs":
            verb.add_argument("--slurm-version", metavar="23.11", help="default: slurm.version")
    programs = verbs.choices["programs"]
    programs.add_argument("--check", action="store_true", help="only say what would change")
    render = verbs.choices["render"]
    render.add_argument("--print", action="store_true", dest="print_", help="write nothing")
    check = verbs.choices["check"]
    check.add_argument("--limit-s", type=above_zero, default=60.0, help="default %(default)s")


def _rendered(args: argparse.Namespace) -> tuple[Any, Path, Files, Files]:
    """(description, folder, files as they are, files as they should be)."""
    from lifecycle.cli import description_of  # noqa: PLC0415
    from slurm.conf.render import render  # noqa: PLC0415

    description = description_of(args)
    folder = args.dir if args.dir is not None else description.slurm.config_dir
    version = args.slurm_version or description.slurm.version or _installed()
    present = _Present(folder)
    wanted = render(description, version, present)
    return description, folder, present, wanted


def _installed() -> str:
    from slurm.conf.dry_start import installed_version  # noqa: PLC0415

    version = installed_version()
    if version is None:
        fix = "--slurm-version 23.11, or slurm.version in cluster.yaml"
        raise ConfigError("slurm: version", "no Slurm here that could be asked", fix)
    return version


class _Present(dict[str, Optional[str]]):
    """The files of a folder, read when they are asked for; None: there is none."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def get(self, name: str, default: Optional[str] = None) -> Optional[str]:  # type: ignore[override]
        """The text of a file."""
        if name not in self:
            path = self.folder / name
            fix = "make it a text file"
            try:
                if path.is_fifo():
                    raise DataError(str(path), "is a FIFO", fix)
                # Not as text: an operator's \r\n stay what they are.
                self[name] = path.read_bytes().decode("utf-8")
            except FileNotFoundError:
                self[name] = None
            except (OSError, UnicodeDecodeError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "not UTF-8 text"
                raise DataError(str(path), reason, fix) from None
        return self[name] if self[name] is not None else default


def _render(args: argparse.Namespace) -> int:
    from slurm.files import replace  # noqa: PLC0415

    _, folder, present, wanted = _rendered(args)
    if args.print_:
        for name, text in wanted.items():
            if text is not None:
                print(f"##### {folder / name}\n{text}")
        return 0
    if not folder.is_dir():
        raise DataError(str(folder), "no such folder", f"mkdir -p {folder}, or name it with --dir")
    changed = []
    # What includes it comes after it: a slurmctld that starts in between finds everything.
    for name in sorted(wanted, key=lambda name: name == "slurm.conf"):
        text = wanted[name]
        if text is None:
            continue
        before = present.get(name)
        if before != text and replace(folder / name, text.encode()):
            changed.append(name)
            print(f"{folder / name}: {'new' if before is None else 'changed'}")
        else:
            print(f"{folder / name}: unchanged")
    if changed:
        print("then: scontrol reconfigure (after a change of nodes or plugins restart slurmctld)")
    return 0


def _programs(args: argparse.Namespace) -> int:
    from lifecycle.cli import description_of  # noqa: PLC0415
    from slurm.conf.programs import install  # noqa: PLC0415

    folder = args.dir if args.dir is not None else description_of(args).slurm.config_dir
    told = install(folder / "muster", dry=args.check)
    for path, state in told.items():
        print(f"{path}: {state}")
    return int(args.check and set(told.values()) != {"unchanged"})


def _diff(args: argparse.Namespace) -> int:
    _, folder, present, wanted = _rendered(args)
    differs = False
    for name, text in wanted.items():
        before, after = present.get(name) or "", text or ""
        lines = difflib.unified_diff(
            io.StringIO(before).readlines(),  # by \n alone, as Slurm reads it
            io.StringIO(after).readlines(),
            str(folder / name),
            f"{folder / name} (rendered)",
        )
        for line in lines:
            differs = True
            sys.stdout.write(line if line.endswith("\n") else f"{line}\n\\ No newline at end\n")
    return int(differs)


def _check(args: argparse.Namespace) -> int:
    from slurm.conf.dry_start import ask  # noqa: PLC0415
    from slurm.conf.expected import differences, gpus_of_one  # noqa: PLC0415

    description, folder, _, wanted = _rendered(args)
    if description.platform != "plain":
        what = f"{description.platform} has the rest of slurm.conf, so it cannot be started here"
        raise UnavailableError(str(folder), what, "look at the lines: muster slurm-conf diff")
    gpus = gpus_of_one(description)
    files = _with_includes(wanted, folder)
    for _ in range(3):  # a free port may be somebody else's a moment later
        with tempfile.TemporaryDirectory(prefix="muster-slurm-conf-") as private:
            answer = ask(files, Path(private), gpus, args.limit_s)
        if not any("already in use" in line for line in answer.complaints):
            break
    wrong = [*answer.complaints, *differences(description, answer.partitions, answer.gpus)]
    for line in wrong:
        print(f"muster slurm-conf: {line}", file=sys.stderr)
    if not wrong:
        looked = f", slurmd {len(answer.gpus)} nodes' GPUs" if answer.gpus else ""
        print(
            f"slurmctld {answer.version} accepts it: {len(answer.partitions)} partitions, "
            f"answered after {answer.seconds:.1f} s{looked}"
        )
        if gpus and not answer.gpus:
            print("not looked at: gres.conf and cgroup.conf by slurmd, which needs root")
    return int(bool(wrong))


def _with_includes(wanted: Files, folder: Path) -> Files:
    """With an operator's includes written out: the private folder has no such files."""
    from slurm.conf.owned import written_out  # noqa: PLC0415

    present = _Present(folder)
    return {**wanted, "slurm.conf": written_out(wanted["slurm.conf"] or "", present.get)}
