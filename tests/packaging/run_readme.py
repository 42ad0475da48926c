"""Run the README's examples with the installed package, from a folder of their own.

python -I tests/packaging/run_readme.py
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pts_scott

README = Path(__file__).resolve().parents[2] / "README.md"
#: Commands of the README that set up an environment, or need a clone.
SETUP = ("pip ", "python -m pip ")
#: Options that make a command short, and a file that it writes.
COMMANDS = {
    "train": (["--time_budget", "1"], "results/train/*/runs/*/predictor/*"),
    "bench": (
        ["--time_budget", "0.2", "--seeds", "[0]", "--evaluations", "2"],
        "results/bench/report.html",
    ),
}


def blocks(language: str) -> Iterator[tuple[int, str]]:
    """Yield the first line's number and the text of each block in a language."""
    text = README.read_text(encoding="utf-8")
    for found in re.finditer(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S):
        yield text.count("\n", 0, found.start(1)) + 1, found[1]


def run_python() -> None:
    """Run the Python blocks in order, in one namespace."""
    names: dict[str, object] = {"__name__": "__main__"}
    for line, block in blocks("python"):
        if "from pts." in block:
            print(f"README.md:{line}: not run: it is for PyTorchTS", flush=True)
            continue
        began = time.perf_counter()
        # Empty lines in front, so that a traceback has the line of the README.
        exec(compile("\n" * (line - 1) + block, str(README), "exec"), names)
        print(f"README.md:{line}: {time.perf_counter() - began:.1f} s", flush=True)


def run_commands() -> None:
    """Run the commands that are meant for an installed package."""
    for line, block in blocks("sh"):
        for command in block.splitlines():
            words = shlex.split(command, comments=True)
            if not words or command.startswith(SETUP):
                continue
            if words[0] != "pts-scott" or words[1] not in COMMANDS:
                sys.exit(f"README.md:{line}: {command!r} is not known to {__file__}")
            began = time.perf_counter()
            options, written = COMMANDS[words[1]]
            subprocess.run([*words, *options], check=True)
            if not any(Path().glob(written)):
                sys.exit(f"README.md:{line}: {command!r} has not written {written}")
            taken = time.perf_counter() - began
            print(f"README.md:{line}: {command}: {taken:.1f} s", flush=True)


def main() -> None:
    """Run everything, after a check that it is the installed package that runs."""
    for found in (pts_scott.__file__, shutil.which("pts-scott")):
        if found is None or not Path(found).is_relative_to(sys.prefix):
            sys.exit(f"{found} is not of the environment {sys.prefix}")
    print(f"pts_scott is {Path(pts_scott.__file__).parent}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        run_commands()
        run_python()
        os.chdir("/")


if __name__ == "__main__":
    main()
