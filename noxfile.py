"""Sessions that set up everything they need: ``nox -s demo``, ``nox -s tests``, …."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import nox

nox.options.sessions = ["tests", "autogluon"]
nox.options.reuse_venv = "yes"

BACKENDS = ("gluonts", "pytorchts")
FAST = "not slow and not long and not hosts and not gpu"
SLOW = "slow and not long and not hosts and not gpu"
HOSTS = "hosts"
#: Tests of code that sees only tensors, and both backends are tested with one torch.
TENSORS_ONLY = ("tests/engine", "tests/method", "tests/diagnostics")
#: Slow tests that depend on no backend either.
SLOW_TWICE = (*TENSORS_ONLY, "tests/training", "tests/test_notebooks.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def tests(session: nox.Session, backend: str) -> None:
    """Lint (once), and run the fast tests of each backend in its own environment.

    Arguments after ``--`` go to pytest and leave out the checks before it.
    """
    lint = backend == "gluonts"
    install(session, backend, "test", *(["lint"] if lint else []))
    if not session.posargs:
        session.run("python", "-m", "pip", "check")
        if lint:
            session.run("ruff", "check", ".")
            session.run("ruff", "format", "--check", ".")
            session.run("mypy")
            session.run("lint-imports")
    run_pytest(session, FAST, *(without(TENSORS_ONLY) if backend == "pytorchts" else ()))


@nox.session(venv_backend="none")
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def slow(session: nox.Session, backend: str) -> None:
    """Run the slow tests of each backend in the environment of its ``tests`` session."""
    ignored = without(SLOW_TWICE) if backend == "pytorchts" else []
    run_in_tests_session(session, backend, "-m", SLOW, *ignored)


@nox.session(venv_backend="none")
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def hosts(session: nox.Session, backend: str) -> None:
    """Train over several hosts, which are network namespaces; needs root and iproute2.

    One test at a time: their hosts have the same addresses, and several processes each.
    """
    run_in_tests_session(session, backend, "-m", HOSTS, "-n", "0", "tests/hosts")


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def gpu(session: nox.Session, backend: str) -> None:
    """Compare training on an accelerator with the CPU; docs/gpu.md says how to report.

    Without constraints, so that torch's build is that of the machine: PyPI's, or the one
    of the index that the environment variable ``TORCH_INDEX_URL`` names (ROCm, XPU, …).
    """
    if backend == "pytorchts" and sys.version_info[:2] > (3, 11):
        session.skip("PyTorchTS 0.6.0 needs Python 3.10 or 3.11.")
    if "TORCH_INDEX_URL" in os.environ:
        session.install("torch", "--index-url", os.environ["TORCH_INDEX_URL"])
    session.install(package(backend, "test"))
    # One process: several would share the memory of the device.
    session.run("pytest", "-m", "gpu", "tests/gpu", *session.posargs, env=ONE_THREAD)


@nox.session
def autogluon(session: nox.Session) -> None:
    """Run all tests of the AutoGluon integration, in an environment of their own."""
    tools = ("pytest", "pytest-xdist")
    session.install("-c", "constraints/autogluon.txt", ".[autogluon]", *tools)
    session.run("python", "-m", "pip", "check")
    run_pytest(session, "not long and not hosts", "tests/integrations")


@nox.session
def build(session: nox.Session) -> None:
    """Build sdist and wheel in ``dist``, and check what they hold."""
    session.install("build", "twine")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build")
    session.run("twine", "check", "--strict", *map(str, Path("dist").iterdir()))
    session.run("python", "tests/packaging/check_distributions.py", "dist")


@nox.session(reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Install the built wheel in an empty environment, and run the README's examples."""
    session.run(sys.executable, "-m", "nox", "-s", "build", external=True)
    (built,) = Path("dist").glob("*.whl")
    session.install("-c", "constraints/gluonts.txt", f"{built}[arrow]")
    session.run("python", "-I", "tests/packaging/run_readme.py", env=ONE_THREAD)


@nox.session(python="3.10")
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def lowest(session: nox.Session, backend: str) -> None:
    """Run the fast tests with the lowest versions that pyproject.toml allows."""
    pins = session.create_tmp() + "/lowest.txt"
    with open(pins, "w") as file:
        file.write("\n".join(lowest_pins(backend)))
    session.install("-c", pins, package(backend, "test"))
    session.run("python", "-m", "pip", "check")
    # Old versions of the libraries use deprecated features of each other.
    ignored = ("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")
    run_pytest(session, FAST, *ignored)


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def newest(session: nox.Session, backend: str) -> None:
    """Run the fast tests with the newest released versions, without constraints."""
    session.install(package(backend, "test"))
    session.run("python", "-m", "pip", "check")
    run_pytest(session, FAST)


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def benchmark(session: nox.Session, backend: str) -> None:
    """Measure steps against the backend's own trainer, and large data."""
    install(session, backend, "arrow")
    session.run("python", "benchmarks/steps.py", *session.posargs, env=ONE_THREAD)
    session.run("python", "benchmarks/index.py", env=ONE_THREAD)
    session.run("python", "benchmarks/large.py", env=ONE_THREAD)


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def libraries(session: nox.Session, backend: str) -> None:
    """Compare every model with other training loops: the tables of docs/speed.md."""
    if backend == "gluonts":  # their own constraints differ from those of the tests
        others = ("autogluon.timeseries==1.6.*", "neuralforecast==3.*")
        session.install("torch==2.13.0", package(backend), *others)
    else:
        install(session, backend)
    session.run("python", "benchmarks/libraries.py", *session.posargs, env=ONE_THREAD)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into ``site``; a warning is an error.

    The API reference is read from the sources, so the package is not installed.
    """
    extras = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
    session.install("-c", "constraints/docs.txt", *extras["docs"])
    quiet = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", *(session.posargs or ("build", "--strict")), env=quiet)


@nox.session
def demo(session: nox.Session) -> None:
    """Compare training at equal time, on generated data: sentences and a plot."""
    install(session, "gluonts")
    session.run("python", "-m", "pts_scott.demo", *session.posargs)


def run_in_tests_session(session: nox.Session, backend: str, *arguments: str) -> None:
    """Run pytest with these arguments in the environment of ``tests``.

    A session cannot use the environment of another one, but it can run that session
    again, with other tests.
    """
    command = (sys.executable, "-m", "nox", "-s", f"tests({backend})")
    session.run(*command, "--", *arguments, *session.posargs, external=True)


def package(backend: str, *extras: str) -> str:
    """Return the requirement for this package with the backend's extras."""
    if backend == "pytorchts":
        extras = (*extras, "pytorchts")
    return f".[{','.join(extras)}]" if extras else "."


def install(session: nox.Session, backend: str, *extras: str) -> None:
    """Install the package with the pinned versions that this backend is tested with."""
    if backend == "pytorchts" and sys.version_info[:2] > (3, 11):
        session.error("PyTorchTS 0.6.0 needs Python 3.10 or 3.11.")
    session.install("-c", f"constraints/{backend}.txt", package(backend, *extras))


def without(paths: tuple[str, ...]) -> list[str]:
    """Return the options by which pytest leaves out some folders and files."""
    return [f"--ignore={path}" for path in paths]


def run_pytest(session: nox.Session, marks: str, *options: str) -> None:
    """Run the tests with these marks on two workers; posargs may select others."""
    arguments = ("-n", "2", "-m", marks, *options, *session.posargs)
    session.run("pytest", *arguments, env=ONE_THREAD)


def lowest_pins(backend: str) -> list[str]:
    """Return the lower bound of every direct requirement as an exact pin."""
    project = nox.project.load_toml("pyproject.toml")["project"]
    groups = project["optional-dependencies"]
    names = ["arrow", "notebooks", "test", "tune"]
    required = project["dependencies"] + [line for n in names for line in groups[n]]
    bounds = (re.match(r"([\w-]+)>=([\w.]+)", line) for line in required)
    found = dict(bound.groups() for bound in bounds if bound is not None)
    if backend == "gluonts":
        found["gluonts"] = "0.17.0"  # lower versions are for PyTorchTS
    return [f"{name}=={version}" for name, version in found.items()]
