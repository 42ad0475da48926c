"""Compare the sdist and the wheel in a folder with the files that git tracks.

python tests/packaging/check_distributions.py dist
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKS = ("Homepage", "Documentation", "Repository", "Issues", "Changelog")


def tracked_files() -> set[str]:
    """Return the paths of the repository that belong in the sdist."""
    command = ["git", "ls-files"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {p for p in found.stdout.splitlines() if not p.startswith(".github/")}


def sdist_files(path: Path) -> set[str]:
    """Return the files of an sdist, without its top folder."""
    with tarfile.open(path) as archive:
        members = [member.name for member in archive.getmembers() if member.isfile()]
    return {name.partition("/")[2] for name in members}


def expected_in_wheel(tracked: set[str], metadata: str) -> set[str]:
    """Return what the wheel should hold; the configs are inside the package."""
    parts = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    return (
        {path for path in tracked if path.startswith("pts_scott/")}
        | {f"pts_scott/{path}" for path in tracked if path.startswith("configs/")}
        | {f"{metadata}/{part}" for part in parts}
    )


def differences(name: str, found: set[str], expected: set[str]) -> list[str]:
    """Return a line for each file too many or too few."""
    return [
        *(f"{name}: {path} is missing" for path in sorted(expected - found)),
        *(f"{name}: {path} is not in git" for path in sorted(found - expected)),
    ]


def problems_of_metadata(content: bytes) -> list[str]:
    """Return what PyPI would show wrongly."""
    metadata = message_from_bytes(content)
    urls = [line.partition(",")[0] for line in metadata.get_all("Project-URL", [])]
    problems = [f"metadata: no project URL {n}" for n in LINKS if n not in urls]
    if metadata["Description-Content-Type"] != "text/markdown":
        problems.append("metadata: the description is not Markdown")
    page = metadata.get_payload()
    for link in page.split("](")[1:]:
        if not link.startswith("https://"):
            problems.append(f"metadata: relative link {link.partition(')')[0]}")
    if "/v$HFPR_VERSION/" in page or f"/v{metadata['Version']}/" not in page:
        problems.append("metadata: links do not name the version")
    return problems


def main(folder: Path) -> int:
    """Print what is wrong, and return the exit code."""
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    tracked = tracked_files()
    problems = differences(sdist.name, sdist_files(sdist), tracked | {"PKG-INFO"})
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        metadata = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
        problems += differences(wheel.name, files, expected_in_wheel(tracked, metadata))
        problems += problems_of_metadata(archive.read(f"{metadata}/METADATA"))
    print("\n".join(problems) or f"{sdist.name} and {wheel.name} hold what they should")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
