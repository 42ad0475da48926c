"""Hooks of the documentation site: pages and links that leave this folder.

The files at the top of the repository are pages of the site, too, and links lead to the
same place on the site and on GitHub, whatever file they stand in.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
#: Pages of the site that are files at the top of the repository.
TOP_LEVEL = {
    "architecture.md": "ARCHITECTURE.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}
LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in the folder of the documentation."""
    from mkdocs.structure.files import File

    for page, file in TOP_LEVEL.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / file)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite links to files outside of the documentation."""
    uri = page.file.src_uri
    source = ROOT / TOP_LEVEL[uri] if uri in TOP_LEVEL else DOCS / uri
    return LINK.sub(
        lambda link: site_link(link[1], source, uri, config.repo_url), markdown
    )


def site_link(link: str, source: Path, uri: str, repository: str) -> str:
    """Return the link on the site for one that is relative to its file.

    Parameters
    ----------
    link
        The link as written, without its anchor.
    source
        The file that it stands in.
    uri
        The page that this file becomes, relative to the folder of the documentation.
    repository
        Address of the repository, which has all files that are no pages.
    """
    target = Path(os.path.normpath(source.parent / link))
    pages = {ROOT / file: page for page, file in TOP_LEVEL.items()}
    if target in pages:
        page = pages[target]
    elif target.is_relative_to(DOCS):
        page = target.relative_to(DOCS).as_posix()
    else:
        kind = "tree" if target.is_dir() else "blob"
        return f"{repository}/{kind}/main/{target.relative_to(ROOT).as_posix()}"
    return os.path.relpath(page, Path(uri).parent)
