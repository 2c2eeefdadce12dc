from collections.abc import Mapping
from pathlib import Path

from osmosis.errors import NotFound, ValidationError

APP = "osmosis"
DEFAULT_PLATFORM_URL = "http://127.0.0.1:7575"


def config_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of credentials and settings: `OSMOSIS_CONFIG_DIR`, else `$XDG_CONFIG_HOME/osmosis`."""
    if moved := environ.get("OSMOSIS_CONFIG_DIR"):
        return Path(moved).expanduser()
    if xdg := environ.get("XDG_CONFIG_HOME"):
        return Path(xdg) / APP
    return Path("~/.config").expanduser() / APP


def data_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of the embedded platform: `OSMOSIS_DATA_DIR`, else the user data directory."""
    if moved := environ.get("OSMOSIS_DATA_DIR"):
        return Path(moved).expanduser()
    import platformdirs  # a fiftieth of the start of an evaluation, which asks for neither folder

    return platformdirs.user_data_path(APP)


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of environments, wheels and downloads: `OSMOSIS_CACHE_DIR`, else the user cache."""
    if moved := environ.get("OSMOSIS_CACHE_DIR"):
        return Path(moved).expanduser()
    import platformdirs

    return platformdirs.user_cache_path(APP)


def folder_inside(root: Path, name: str, key: str) -> Path:
    """Return a folder below `root`; raise for one that is not there, or leads elsewhere (`..`, a link)."""
    folder = (root / name).resolve()
    if not folder.is_relative_to(root.resolve()):
        raise ValidationError(
            f"{key}: {name} leads out of {root}",
            hint=f"copy the folder into {root}, and give its path relative to that",
        )
    if not folder.is_dir():
        raise NotFound(
            f"{key}: there is no folder {root / name}",
            hint=f"create and commit it, or give the path of another one relative to {root}",
        )
    return folder
