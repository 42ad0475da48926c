"""Sessions that set up everything they need: ``nox -s demo``, ``nox -s tests``, …."""

from __future__ import annotations

import re
import sys

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"

STACKS = ("gluonts", "pytorchts")
FAST = ("-n", "2", "-m", "not slow and not long")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def install(session: nox.Session, stack: str, *extras: str) -> None:
    """Install the package with the versions that this stack is tested with."""
    if stack == "pytorchts":
        if sys.version_info[:2] > (3, 11):
            session.error("PyTorchTS 0.6.0 needs Python 3.10 or 3.11.")
        extras = (*extras, "pytorchts")
    package = f".[{','.join(extras)}]" if extras else "."
    session.install("-c", f"constraints/{stack}.txt", package)


@nox.session
@nox.parametrize("stack", STACKS, ids=STACKS)
def tests(session: nox.Session, stack: str) -> None:
    """Test one stack in an environment of its own; the first is linted, too."""
    lint = ("lint",) if stack == "gluonts" else ()
    install(session, stack, "test", *lint)
    session.run("python", "-m", "pip", "check")
    if lint:
        session.run("ruff", "check", ".")
        session.run("ruff", "format", "--check", ".")
        session.run("mypy")
    session.run("pytest", "-n", "2", *session.posargs, env=ONE_THREAD)


@nox.session(python="3.10")
@nox.parametrize("stack", STACKS, ids=STACKS)
def lowest(session: nox.Session, stack: str) -> None:
    """Run the fast tests with the lowest versions that pyproject.toml allows."""
    pins = session.create_tmp() + "/lowest.txt"
    with open(pins, "w") as file:
        file.write("\n".join(lowest_pins(stack)))
    extras = ["test"] + ["pytorchts"] * (stack == "pytorchts")
    session.install("-c", pins, f".[{','.join(extras)}]")
    session.run("python", "-m", "pip", "check")
    # What old libraries say of each other's old habits is no fault of ours.
    flags = ("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")
    session.run("pytest", *FAST, *flags, *session.posargs, env=ONE_THREAD)


@nox.session
@nox.parametrize("stack", STACKS, ids=STACKS)
def newest(session: nox.Session, stack: str) -> None:
    """Run the fast tests with whatever is the newest today, without constraints."""
    extras = ["test"] + ["pytorchts"] * (stack == "pytorchts")
    session.install(f".[{','.join(extras)}]")
    session.run("python", "-m", "pip", "check")
    session.run("pytest", *FAST, *session.posargs, env=ONE_THREAD)


def lowest_pins(stack: str) -> list[str]:
    """The lower bound of every direct requirement, as an exact pin."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    groups = project["optional-dependencies"]
    names = ["arrow", "kmeans", "notebooks", "test", "tune"]
    required = project["dependencies"] + [line for n in names for line in groups[n]]
    bounds = (re.match(r"([\w-]+)>=([\w.]+)", line) for line in required)
    found = dict(bound.groups() for bound in bounds if bound is not None)
    if stack == "gluonts":
        found["gluonts"] = "0.17.0"  # lower ones are for PyTorchTS
    return [f"{name}=={version}" for name, version in found.items()]


@nox.session
@nox.parametrize("stack", STACKS, ids=STACKS)
def benchmark(session: nox.Session, stack: str) -> None:
    """Measure steps against the stack's own trainer, and the index at scale."""
    install(session, stack, "arrow")
    session.run("python", "benchmarks/steps.py", *session.posargs, env=ONE_THREAD)
    session.run("python", "benchmarks/index.py", env=ONE_THREAD)


@nox.session
def demo(session: nox.Session) -> None:
    """SCott against plain SGD on the paper's synthetic data: a table and a plot."""
    install(session, "gluonts")
    session.run("python", "-m", "pts_scott.demo", *session.posargs)
