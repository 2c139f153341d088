"""Which folders a confined worker may read: Python, the installed packages, and of ours what its role imports.

A rule of Landlock's covers all that lies below, and there is none that takes something away. So where a private thing
lies inside of a readable folder, the folder's other entries are named one by one.

Never readable: task files (with their held-out cases), the judge, the expert kernels, tests, runs, the history of a
checkout, and whatever else happens to be on `sys.path`, such as the folder of the script that runs.
"""

import contextlib
import functools
import glob
import importlib.util
import os
import pwd
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_OUR_PACKAGES = ("agent", "benchmarks", "prompts", "tests", "tools")
_OF_A_PREFIX = ("bin", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg", "share", "targets")
_SITES = ("*-packages", "lib*/python*/*-packages", "lib*/python*/*/*-packages", "local/lib*/python*/*-packages")
_NEEDED = ("numpy", "torch", "triton", "cuda.bindings")  # wherever they are installed
_TOOLS = Path(__file__).resolve().parent


class Roots(NamedTuple):
    """What may be read with all that is below, and folders of which only the listing may be read."""

    readable: tuple[Path, ...]
    listed: tuple[Path, ...]


def roots(our_parts: Iterable[str]) -> Roots:
    """Python, its packages, and of the package `tools` its own modules and the named sub-packages."""
    found = libraries()
    ours = [*sorted(_TOOLS.glob("*.py")), *(_TOOLS / part for part in our_parts)]
    return Roots((*found.readable, *ours), (*found.listed, _TOOLS))


@functools.cache  # a jail hides what it is computed from
def libraries() -> Roots:
    """Python and its packages, but for ours."""
    return without(sorted(library_folders()), private_places(_TOOLS))


def library_folders() -> set[Path]:
    """Where Python and the packages live that a worker imports; each by the name that Python knows and by its own."""
    found = {path for prefix in _prefixes() for name in _OF_A_PREFIX if (path := prefix / name).exists()}
    found |= {Path(entry) for entry in sys.path if entry.endswith("-packages") and os.path.isdir(entry)}
    found |= {folder for name in _NEEDED for folder in _home_of(name)}
    return found | {path.resolve() for path in found}


def _home_of(name: str) -> Iterator[Path]:
    """The site folder that a package is installed in; of one that lies in a checkout only the package."""
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            package = Path(place)
            yield next((p for p in package.parents[: name.count(".") + 1] if _is_site(p)), package)


def _is_site(folder: Path) -> bool:
    """Do packages get installed there? `pip install --target` takes any folder."""
    return folder.name.endswith("-packages") or any(folder.glob("*.dist-info"))


def _prefixes() -> set[Path]:
    return {Path(sys.prefix), Path(sys.base_prefix), Path("/"), Path("/usr"), Path("/usr/local")}


def private_places(package: Path) -> set[Path]:
    """What no worker may read, even where it lies inside of a readable folder: our packages wherever they are
    installed, the checkout that runs, and the home folder."""
    sites = {Path(entry).resolve() for entry in sys.path if entry}
    for prefix in _prefixes():
        sites |= {Path(path).resolve() for pattern in _SITES for path in glob.glob(str(prefix / pattern))}
    found = {site / name for site in sites for name in _OUR_PACKAGES if _is_ours(site / name)}
    found |= {package.with_name(name) for name in _OUR_PACKAGES}
    if not _is_site(package.parent):
        found.add(package.parent)
    return found | {home()}


def _is_ours(path: Path) -> bool:
    """A folder of that name that holds one of our modules: others may have a package `tests` too."""
    marks = ("cli.py", "throughput.py", "py.typed", "exploits", "sandbox_rules.py")
    return any((path / mark).exists() for mark in marks)


def without(folders: Iterable[Path], private: Iterable[Path]) -> Roots:
    """The folders but for what is private in them; a folder that is private itself may hold readable ones."""
    readable: list[Path] = []
    listed: list[Path] = []
    hidden = tuple(private)
    for folder in folders:
        for path, whole in _parts(folder, hidden):
            (readable if whole else listed).append(path)
    return Roots(tuple(dict.fromkeys(readable)), tuple(dict.fromkeys(listed)))


def _parts(folder: Path, private: tuple[Path, ...]) -> Iterator[tuple[Path, bool]]:
    """(path, whether it may be read whole; else only listed)."""
    real = folder.resolve()
    inside = tuple(path for path in private if path.is_relative_to(real))
    if real in inside:
        return
    if not inside:
        yield folder, True
        return
    yield folder, False
    with contextlib.suppress(OSError):
        for entry in sorted(folder.iterdir()):
            if not entry.is_symlink() or entry.resolve().is_relative_to(real):  # a rule would follow it outside
                yield from _parts(entry, inside)


def home() -> Path:
    """The user's home folder; "/" for an unknown user, as in a container."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    except KeyError:
        return Path("/")
