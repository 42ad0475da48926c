"""The configs that come with the package, which the command line finds by name."""

from __future__ import annotations

from pathlib import Path

from pts_scott._utils.arguments import nearest
from pts_scott.errors import ConfigError

_PACKAGE = Path(__file__).parent.parent
# In the wheel they are inside the package, in a clone beside it.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")
SUFFIX = ".yaml"
#: Folders of whole configs; the others hold their parts.
SETTINGS = ("comparison", "library", "paper", "sampling", "small-cpu")


def shipped_configs() -> dict[str, Path]:
    """Return the configs that come with the package, by name: ``paper/mlp-traffic``."""
    folder = next((f for f in _FOLDERS if (f / "optimizers.yaml").is_file()), None)
    if folder is None:
        return {}
    paths = sorted(
        path for kind in SETTINGS for path in (folder / kind).glob(f"*{SUFFIX}")
    )
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def find_config(given: str) -> Path:
    """Return the file that is meant: a path, or the name of a shipped config.

    Raises
    ------
    ConfigError
        If there is neither, and the text does not look like a path of its own.
    """
    path = Path(given)
    if "\0" in given or path.exists():
        return path
    shipped = shipped_configs()
    name = given.removeprefix("configs/").removesuffix(SUFFIX)
    if name in shipped:
        return shipped[name]
    raise ConfigError(
        f"there is no file {given!r}, and no config of that name comes with pts-scott. "
        f"{nearest(name, shipped, 'List them with: pts-scott configs.')}"
    )
