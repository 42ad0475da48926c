"""What pyproject.toml says of the package; ``nox -s wheel`` builds and installs it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
README = (ROOT / "README.md").read_text()
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
CONSTRAINTS = sorted(ROOT.glob("constraints/*.txt"))
# .github is for the repository alone; the others are in every sdist.
NOT_LISTED = {".github", ".gitignore", "pyproject.toml"}
FILES = "https://github.com/pts-scott/pts-scott/blob/v0.0.0/"
IMAGES = "https://raw.githubusercontent.com/pts-scott/pts-scott/v0.0.0/"


def readme_on_pypi() -> str:
    """Return the README as the build writes it into the metadata."""
    hook = PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = README
    for rule in hook["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    return text.replace("$HFPR_VERSION", "0.0.0")


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```.*?^```", text, flags=re.M | re.S)


def test_sdist_lists_every_file_and_folder_of_the_repository():
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    command = ["git", "ls-files"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    tracked = {path.partition("/")[0] for path in found.stdout.splitlines()}
    include = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert {path.removeprefix("/") for path in include} == tracked - NOT_LISTED


def test_links_and_images_on_pypi_lead_to_files_of_the_repository():
    text = readme_on_pypi()
    for kind, link in re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", text):
        base = IMAGES if kind else FILES
        if "pts-scott/pts-scott" in link:
            path = link.removeprefix(base).partition("#")[0]
            assert (ROOT / path).exists(), link
        else:
            assert link.startswith("https://"), link
    assert IMAGES in text
    assert f"{FILES}README.md#" in text
    assert code_blocks(text) == code_blocks(README)


@pytest.mark.parametrize("extra", [name for name, needs in EXTRAS.items() if needs])
def test_readme_names_every_extra(extra):
    install = README.partition("## Install")[2].partition("\n## ")[0]
    assert f"| `{extra}` |" in install


@pytest.mark.parametrize("path", CONSTRAINTS, ids=lambda path: path.stem)
def test_constraints_are_exact_versions_of_releases(path):
    pins = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
    names = [pin.partition("==")[0].lower() for pin in pins]
    assert len(names) == len(set(names))
