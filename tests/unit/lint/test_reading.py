"""The reader sees what sbatch and bash see, and gets through whatever bytes a file has."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm.lint import directives, shell
from slurm.lint.fix import fixed
from slurm.lint.linter import decode, encode, lint
from slurm.lint.options import SBATCH, SRUN, Option, parse
from slurm.lint.programs import MAX_WRITTEN_OUT
from slurm.lint.script import Script

ROOT = Path(__file__).resolve().parents[3]
PLANTED = sorted(
    path for path in (ROOT / "tests" / "data" / "sbatch").rglob("*.sbatch") if path.is_file()
)
HERE = Path("/nonexistent")


# What sbatch itself says it found, with an authentication that needs no daemon.
CONF = """ClusterName=x
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
AuthType=auth/none
CredType=cred/none
MessageTimeout=1
TCPTimeout=1
NodeName=n1
PartitionName=p Nodes=ALL
"""
LINES = [
    '#SBATCH --nodes=3   --job-name="a b"  # c --time=3',
    "#SBATCH -t 10 --comment=a#b --mem=3G",
    "#SBATCH--ntasks=4",
    " #SBATCH --mem=3G\n# SBATCH --mem=4G\n##SBATCH --mem=2G\n#sbatch --mem=1G",
    "#SBATCH --comment=x\\\n#SBATCH -n 2",
    "#SBATCH --account='q\\'r' --comment=\"it's\" --wckey='\"'",
    "#SBATCH --comment=a\\ b --comment='' \"\"",
    "#SBATCH --comment=a\"b c\"d'e f' -J\\#",
    '#SBATCH -n2 --comment="a\\ b\\"c" --comment=\\#d -c 2 "" -N 3',
    '#SBATCH -n2 --comment="a\\',
    "\n\n   \n\t\n# text\n#SBATCH -n 2",
    "true\n#SBATCH -n 2",
    "#SBATCH -n 2\n: '\n#SBATCH -n 3\n'",
    '#SBATCH --comment="not closed\n#SBATCH -n 2',
    "#SBATCH: -n 2",
    "#SBATCH -n2 -vv\t-J\tx\n#SBATCH",
]


@pytest.fixture(scope="module")
def sbatch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("sbatch"):
        pytest.skip("no sbatch. Fix: apt-get install slurm-client")
    folder = tmp_path_factory.mktemp("sbatch")
    (folder / "slurm.conf").write_text(CONF)
    return folder


@pytest.mark.parametrize("lines", LINES)
def test_same_words_as_sbatch(sbatch: Path, lines: str) -> None:
    text = f"#!/bin/sh\n{lines}\ntrue\n"
    (sbatch / "job").write_text(text)
    done = subprocess.run(
        ["sbatch", "-vvv", "--test-only", "job"],
        cwd=sbatch,
        env={"SLURM_CONF": str(sbatch / "slurm.conf"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    theirs = re.findall(r'Found in script, argument "(.*)"', done.stderr)
    read = [one for one in directives.read(text.split("\n")) if not one.late]
    upto = next((n + 1 for n, one in enumerate(read) if one.problem), len(read))
    assert [word for one in read[:upto] for word in one.words] == theirs
    refused = re.search(r"Unmatched|Unexpected `:`", done.stderr)
    assert any(one.problem for one in read) == bool(refused)


def test_same_options_as_the_manual_of_sbatch_and_srun(sbatch: Path) -> None:
    """All that this machine's Slurm lists in its help is known, with the same letter."""
    for program, table in (("sbatch", SBATCH), ("srun", SRUN)):
        done = subprocess.run(
            [program, "--help"],
            env={"SLURM_CONF": str(sbatch / "slurm.conf"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        listed = re.findall(r"^ +(?:-(\w), )?--([a-z-]+)(\[?=)?", done.stdout, re.MULTILINE)
        assert len(listed) > 50
        for letter, name, value in listed:
            assert name in table.takes
            assert not letter or table.letters[letter] == name
            assert value != "=" or table.takes[name] != "no", name


def test_options() -> None:
    words = ["-n2", "-N", "3", "--part=x", "--mem", "4G", "-kQ", "--exclusive", "prog", "-n4"]
    found, rest = parse(words, SBATCH)
    assert [(one.name, one.value) for one in found] == [
        *(("ntasks", "2"), ("nodes", "3"), ("partition", "x"), ("mem", "4G")),
        *(("no-kill", "Q"), ("exclusive", "")),
    ]
    assert rest == ["prog", "-n4"]
    assert parse(["--node=1", "--", "-x"], SBATCH) == ([Option("node", "1", known=False)], ["-x"])


def texts(script: str) -> list[list[str]]:
    return [one.texts for one in shell.read(script).commands if one.words]


# Where a word stands that starts nothing, and where a quote hides what follows.
PROGRAMS_ONLY = [
    ("f() { a; }; function g { b; }\nfunction h() { c; }\ni ( ) (d)", [["a"], ["b"], ["c"], ["d"]]),
    ("case $x in a) b ;; c|'d e') f ;& (g | h) i;; esac; j", [["b"], ["f"], ["i"], ["j"]]),
    ("case x\nin # )\n  a)\n b <<E ;;\nc)\nE\n esac)\n", [["b"]]),
    ("case a in b) case c in d) e;; f) g; esac;; h) i; esac | j", [["e"], ["g"], ["i"], ["j"]]),
    (
        "a $(case b in c) d;; e) f; esac) g",
        [["a", "$(case b in c) d;; e) f; esac)", "g"], ["d"], ["f"]],
    ),
    ("echo case in in a; b", [["echo", "case", "in", "in", "a"], ["b"]]),
    ("[[ $x =~ ^(a|b)$ && c ]] && d", [["[[", "$x", "=~", "^", "a", "b", "$", "c", "]]"], ["d"]]),
    ("a $'it\\'s' b\nc 'd'", [["a", "it\\'s", "b"], ["c", "d"]]),
    ('a "$\'b" c', [["a", "$'b", "c"]]),
    (
        "a ${x:-$'\\'}'} ${y:-'}'} \"${z:-it's}\" b",
        [["a", "${x:-$'\\'}'}", "${y:-'}'}", "${z:-it's}", "b"]],
    ),
    ("A=( '(' \"(\" \\( $'(' # it's (\n b=(c) ); d", [["d"]]),
    ('A=( $(a \'(\') "$(b ")")" ); c', [["a", "("], ["b", ")"], ["c"]]),
    (
        "a @(b|'('); c $(( '(' )); ((\"(\")); d",
        [["a", "@(b|'(')"], ["c", "$(( '(' ))"], ['(("("))'], ["d"]],
    ),
    ('x=$[1<<2]\na "$[b[1]<<3]"\nc', [["a", "$[b[1]<<3]"], ["c"]]),
]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a b # c\nd", [["a", "b"], ["d"]]),
        ("a 'b # c' \"d;e\" f\\ g", [["a", "b # c", "d;e", "f g"]]),
        ("a \\\n  b", [["a", "b"]]),
        ("a <<E\nsrun x\nE\nb", [["a"], ["b"]]),
        ("a <<'E' | b\nsrun\nE\nc <<-F\n\tx\n\tF\nd", [["a"], ["b"], ["c"], ["d"]]),
        ("a <<<x 2>&1 >f &>g", [["a"]]),
        ("X=1 Y=$(b c) a", [["b", "c"], ["a"]]),
        ("if a; then b; else c; fi", [["a"], ["b"], ["c"]]),
        ("for i in 1 2; do a; done", [["for", "i", "in", "1", "2"], ["a"]]),
        ("(a; b) && { c; }", [["a"], ["b"], ["c"]]),
        ('a "$(b "$(c)" `d`)"', [["a", '$(b "$(c)" `d`)'], ["b", "$(c)", "`d`"], ["c"], ["d"]]),
        ("x=(a 'b c') d", [["d"]]),
        ("((i > 3)) && a", [["((i > 3))"], ["a"]]),
        ("a $((1 + (2 * 3))) ${x:-$(b)}", [["a", "$((1 + (2 * 3)))", "${x:-$(b)}"], ["b"]]),
        ("a > >(tee log)", [["a", ">(tee log)"], ["tee", "log"]]),
        *PROGRAMS_ONLY,
    ],
)  # fmt: skip
def test_commands(script: str, expected: list[list[str]]) -> None:
    assert sorted(texts(script)) == sorted(expected)


def test_pipes_and_background() -> None:
    first, second, third = shell.read("a |\n b &\nc").commands
    assert (first.in_pipe, second.in_background, third.after) == (True, True, "")
    assert (first.line, second.line, third.line) == (1, 2, 3)


# Pieces of which a file that hurts a reader is made.
PIECES = st.sampled_from(
    [
        *(
            "#SBATCH ",
            "#!/bin/bash\n",
            "\n",
            "\r\n",
            " ",
            "\\",
            "'",
            '"',
            "`",
            "$(",
            "${",
            "$((",
            "((",
        ),
        *("))", ")", "}", "<<E\n", "E\n", "<<", "<<-", "<<<", "|", "||", "&", ";;", ">(", "srun "),
        *("exec ", "a=(", "--time=", "--signal=B:", "@", "--output=", "--auto-resume=1 ", "done"),
        *("while true; do ", "[@]}", "# muster lint: allow ", "MASTER_ADDR=", "--container-image="),
        *("\0", "\udcff", "%j", "~/", "timeout ", "-k ", "-", "--", "trap x USR1\n", "until "),
        *("wait\n", "/fsx/", "X=$X ", "$X ", "\ufeff", "case x in ", "srun) ", "esac", "[[ ", "]]"),
        *(
            "$'",
            "\\'",
            "$[",
            "]",
            "function ",
            "{ ",
            "}",
            "+(",
            "\n#!/bin/sh\n",
            "#!/usr/bin/node\n",
        ),
    ]
)


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=40).map("".join).map(encode) | st.binary(max_size=200))
@example(b"")
@example(b"\xff\xfe#SBATCH")
@example(b"srun a\n'b\n")
@example(b"#!/bin/sh\n" + b'$("${' * 3000)
@example(b"#!/bin/sh\n" + b'"${' * 3000)
@example(b"#!/bin/sh\n" + b"`$((" * 3000)
@example(b"#!/bin/sh\n" + b"a=(" * 3000)
@example(b"#!/bin/sh\n#SBATCH --time=" + b"9" * 5000)
@example(b"#!/bin/sh\n#SBATCH --signal=B:USR1@" + b"9" * 5000)
@example(b"#!/bin/sh\nX=$X$X\nsrun $X ${X[@]}\n")
def test_whatever_the_bytes_are(data: bytes) -> None:
    """Nothing is raised, and --fix comes to rest without touching what it does not mean."""
    assert encode(decode(data)) == data
    for one in lint(data, "job.sbatch", HERE):
        assert str(one).count("\n") == 0
        assert 1 <= one.spot.line <= data.count(b"\n") + 1
    once = fixed(data, "job.sbatch", HERE)
    assert fixed(once, "job.sbatch", HERE) == once


@settings(max_examples=200)
@given(st.sampled_from(PLANTED), st.integers(0, 2000), st.integers(0, 40), st.binary(max_size=9))
def test_whatever_happens_to_a_real_script(path: Path, start: int, gone: int, put: bytes) -> None:
    data = path.read_bytes()
    damaged = data[:start] + put + data[start + gone :]
    lint(damaged, str(path), HERE)
    once = fixed(damaged, str(path), HERE)
    assert fixed(once, str(path), HERE) == once


# Each made a first version look at the whole script again for every one of its lines or words.
MANY = 10_000
LONG = [
    "x=aa\n" * MANY + "srun $x\n" * MANY,
    f"x={'a' * 10**6}\n" + "srun --container-image=$x a\n" * 1000,
    "srun a\n" * MANY + "#" * 4 * 10**6,
    "x=a\n" * MANY + "srun --auto-resume=1 " + "rdzv " * MANY * 10,
    "MASTER_ADDR=$MASTER_ADDR\n" * MANY + "srun --auto-resume=1 a\n",
    "readlink " * MANY * 5,
    "wait\n" * MANY * 2 + "srun a &\n" * MANY * 2,
    "PATH=a\n" * MANY + "srun --container-image=b a\n",
    "#\n" * MANY * 5 + "a\n" + "#SBATCH -n1\n" * MANY,
]


@pytest.mark.parametrize("text", LONG, ids=lambda text: text[:20])
def test_a_long_script_comes_to_an_end(text: str) -> None:
    lint(f"#!/bin/bash\n{text}".encode(), "job.sbatch", HERE)


def test_variables_are_written_out_up_to_a_limit() -> None:
    script = Script(f"#!/bin/sh\nx='{'a ' * 1000}'\n" + "srun $x b\n" * 1000, HERE, HERE)
    words = sum(len(one.arguments) for one in script.programs)
    assert MAX_WRITTEN_OUT < words < MAX_WRITTEN_OUT + 3000
    assert script.programs[1].arguments == (*["a"] * 1000, "b")
    assert script.programs[-1].arguments == ("$x", "b")


def test_a_long_script_is_read_once() -> None:
    """Each of these made a first version read on to the end of the file again and again."""
    pieces = ("$(", '"$(', "`a ", "${x", "<<E\n", "((", "'", "case x in a)", "{ ( ", "$'a", "$[")
    more = ("a=('", 'a=("', "[[ (", "case x in ", "case x\n", ";;", "function a ", "+(a ", "${x'")
    for piece in pieces + more:
        lint(f"#!/bin/bash\n{piece * 20_000}".encode(), "job.sbatch", HERE)
