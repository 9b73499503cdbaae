"""Everything this repository can do, one session each: `./run SESSION`, or `nox -s SESSION`.

The sessions only say what is run; how an environment is made is in tests/sessions/.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from tests.sessions import archive, scripts  # noqa: E402  (found through the line above)
from tests.sessions.environment import CPU, Environment, alone, by_environment  # noqa: E402

nox.options.default_venv_backend = "none"
nox.options.sessions = ["tests"]

SLURM_HERE = "import muster.cluster.packages as p; exit(p.main())"
WORKERS = 2  # test processes side by side
in_each_environment = nox.parametrize(
    "home", [nox.param(name, id=name) for name in (CPU.name, *sorted(alone()))]
)


@nox.session
def demo(session: nox.Session) -> None:
    """Lose nodes under a training run on a local Slurm cluster, and watch it recover by itself."""
    # Before a minute of installing: is there a Slurm, or may we install it?
    session.run(sys.executable, "-c", SLURM_HERE)
    CPU.run(session, "-m", "tests.demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run lint and every test that is not marked slow: what CI runs."""
    lint(session)
    if os.environ.get("CI") == "true":  # once, before the processes would do it at once
        session.run(sys.executable, "-c", SLURM_HERE)
    # Side by side: tests on a cluster mostly wait for Slurm to notice something.
    side_by_side = ("-n", str(WORKERS), "--dist", "loadscope")  # as tests/conftest.py says
    slowest = ("--durations", "30", "--durations-min", "15")  # what to shorten when CI grows
    CPU.run(session, "-m", "pytest", "-m", "not slow", *side_by_side, *slowest, *session.posargs)


@nox.session
@in_each_environment
def smoke(session: nox.Session, home: str) -> None:
    """Train every recipe for a few training steps on this machine, without Slurm."""
    # The other files need the libraries of the recipes that they test.
    files = "tests/recipes" if home == CPU.name else "tests/recipes/test_every_recipe_runs.py"
    Environment(home).run(session, "-m", "pytest", files, "-k", "smoke", *session.posargs)


@nox.session
def recipes(session: nox.Session) -> None:
    """Ask of every recipe what CI asks of one: defects, other layouts, changes: minutes."""
    CPU.run(session, "-m", "pytest", "-m", "slow", "tests/recipes", *session.posargs)


@nox.session
@nox.parametrize("recipe", [nox.param(name, id=name) for name in sorted(alone())])
def frameworks(session: nox.Session, recipe: str) -> None:
    """Train the recipes whose libraries need an environment of their own: minutes to install."""
    own = sorted(ROOT.glob(f"tests/recipes/test_{recipe}*.py"))
    each = ("every_recipe_runs", "framework_equality", "defects", "change_at_restart")
    files = [*(f"tests/recipes/test_{test}.py" for test in each), *map(str, own)]
    files += ["tests/multinode/test_faults.py"]
    Environment(recipe).run(session, "-m", "pytest", *files, *session.posargs)


@nox.session
def multinode(session: nox.Session) -> None:
    """Train the recipes on the local Slurm cluster while faults are injected."""
    CPU.run(session, "-m", "pytest", "tests/multinode", *session.posargs)


@nox.session
@in_each_environment
def faults(session: nox.Session, home: str) -> None:
    """Break every recipe in every way on the list; `-- --help` has recipes, faults and storms."""
    words = by_environment(session.posargs).get(home)
    if words is None:
        session.skip("no recipe that was named is at home here")
    Environment(home).run(session, "-m", "tests.faults", *words)


@nox.session
def health(session: nox.Session) -> None:
    """Break every line of the health checks, cut every answer, burn nodes in: their slow tests."""
    folders = ("tests/unit/health", "tests/cluster")
    CPU.run(session, "-m", "pytest", "-m", "slow", *(session.posargs or folders))


@nox.session
def lifecycle(session: nox.Session) -> None:
    """Create whole clusters from nothing by the real scripts, accounting included: minutes."""
    CPU.run(session, "-m", "pytest", "-m", "slow", "tests/lifecycle", *session.posargs)


@nox.session
def containers(session: nox.Session) -> None:
    """Build every recipe's image, train in it on a local cluster, lose nodes: up to an hour."""
    tools = {"buildah": "buildah", "mksquashfs": "squashfs-tools", "bwrap": "bubblewrap"}
    scripts.need(session, tools)
    CPU.run(session, "-m", "pytest", "tests/containers", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure recovery and overhead against their limits, and others beside; on an idle machine."""
    CPU.run(session, "-m", "benchmarks", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Check every link and run the commands of README, tutorials and how-to pages."""
    CPU.run(session, "-m", "pytest", "tests/docs", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and types of Python, style of bash, batch scripts, and links."""
    CPU.run(session, "-m", "ruff", "check", ".")
    CPU.run(session, "-m", "ruff", "format", "--check", ".")
    typed = [name for name in (*archive.PACKAGES, "tests") if any((ROOT / name).rglob("*.py"))]
    CPU.run(session, "-m", "mypy", "noxfile.py", *typed)
    llama = ROOT / "recipes" / "llama2_fsdp"  # whose way of saving is measured
    CPU.run(session, "-m", "mypy", "benchmarks", env={"MYPYPATH": f"{llama}:{ROOT}"})
    # A recipe is a folder of its own: its files import each other by their bare names.
    for recipe in sorted({path.parent for path in ROOT.glob("recipes/*/*.py")}):
        CPU.run(session, "-m", "mypy", str(recipe), env={"MYPYPATH": f"{recipe}:{ROOT}"})
    scripts.need(session, scripts.SHELL_TOOLS)
    files = scripts.shell_scripts()
    session.run("shellcheck", "-x", *files, external=True)
    session.run("shfmt", "-i", "2", "-ci", "-d", *files, external=True)
    hadolint = str(CPU.folder / "bin" / "hadolint")
    session.run(hadolint, *scripts.dockerfiles(), external=True)
    CPU.run(session, "-m", "muster", "lint", *scripts.batch_scripts())
    CPU.run(session, "-m", "pytest", "-q", "tests/docs/test_links.py")


@nox.session
def pyz(session: nox.Session) -> None:
    """Build dist/muster.pyz: the one file that is installed on a node."""
    file = archive.build(session)
    session.log(f"{file.relative_to(ROOT)}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    nox.main()
