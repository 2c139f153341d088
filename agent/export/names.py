"""Names of people and machines: which of them must not leave, and where a record gives them away."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tools.codec import Json

DEEPEST = 100  # levels of a JSON value that are walked
OWNER = r"""[^/\\\s"'`:;,<>()\[\]{}|*?&]+"""
_WORDS_NOT_NAMES = frozenset(
    "root user users home admin test tests main host hosts localhost local gpu gpus node nodes server worker runner"
    " build ubuntu debian docker container default nobody none null data kernel kernels model models task tasks"
    " softmax torch triton cuda nvidia python work code dev prod machine computer pc mac linux windows agent"
    # words of kernels and names of GPUs: a source in which they are taken out is no longer the one that was judged
    " max min sum dot exp log abs cos sin erf mean var std cat pow sqrt rsqrt floor ceil fma load store where range"
    " arange zeros ones full like row rows col cols block grid mask axis size dim shape warp warps stage seed rand"
    " acc out inp forward self math jit constexpr float double half int long bool char byte true false tensor device"
    " stride flip gather scan sort split join view trans permute a100 a10g h100 h200 b200 b300 l40s gh200 gb200 v100"
    " rtx tesla".split()
)
_HOST_FIELDS = re.compile(r"(?i)^(?:host|hostname|host_name|node|nodename|fqdn|machine_name)$")
_USER_FIELDS = re.compile(r"(?i)^(?:user|username|user_name|login|owner)$")
_HOME_OWNER = re.compile(rf"(?:/home/|/Users/|\\Users\\)({OWNER})")


@dataclass(frozen=True)
class Names:
    """Names that are taken out wherever they stand as whole words. `others`: of no kind that is known."""

    hosts: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    def __or__(self, other: "Names") -> "Names":
        return Names(self.hosts | other.hosts, self.users | other.users, self.others | other.others)


def names_here() -> Names:
    """Those of this machine and of who runs this process."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        user = ""
    return Names(frozenset(_host_forms(socket.gethostname())), frozenset((user,) if _is_name(user) else ()))


def names_in(facts: Json) -> Names:
    """Those that stored facts give away: fields named `host` or `user`, owners of home folders in paths."""
    hosts: set[str] = set()
    users: set[str] = set()
    for field, value in _leaves(facts, ""):
        users.update(filter(_is_name, _HOME_OWNER.findall(value)))
        if _HOST_FIELDS.match(field):
            hosts.update(_host_forms(value))
        elif _USER_FIELDS.match(field) and _is_name(value):
            users.add(value)
    return Names(frozenset(hosts), frozenset(users))


def _leaves(value: Json, field: str, level: int = 0) -> Iterable[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif level < DEEPEST and isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, str(key), level + 1)
    elif level < DEEPEST and isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, field, level + 1)


def _host_forms(name: str) -> set[str]:
    """A host's whole name, and what stands before its first dot."""
    return {n for n in (name, name.partition(".")[0]) if _is_name(n)}


def _is_name(name: str) -> bool:
    return len(name) >= 3 and name.lower() not in _WORDS_NOT_NAMES and not name.isdigit() and name.isprintable()
