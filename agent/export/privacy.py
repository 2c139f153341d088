"""What must not leave the machine: keys, home folders and other folders of people, and the names of hosts, users and
their addresses.

Each becomes a placeholder that says what it was. Nearly every text holds none, which has to be found out fast: a
pattern is only tried where one of its plain strings occurs; a text of 2.4 kB costs 75 us. Not found are secrets without
a mark or a name (a bare string of 40 characters, something in base64), and those whose name is on another line.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kerneltune.tools.schema.codec import Json

KEY, HOME, HOST, USER, EMAIL, IP = "<api-key>", "<home>", "<host>", "<user>", "<email>", "<ip>"
FOLDER, CWD, RUNS, VENV, TEMPORARY = "<folder>", "<cwd>", "<runs>", "<venv>", "<tmp>"
_MOST_TEXTS = 500  # clean ones, remembered whole: a prompt comes again with each row of its run
_SPELLS = ("token_ids", "logprobs")  # columns and fields that say in a model's vocabulary what texts beside them say
_SHORTEST = 17  # characters of the shortest key that is all letters and digits

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
_URL_FIELDS = re.compile(r"(?i)^(?:base_?url|endpoint|api_base)$")
_HOME_OWNER = re.compile(rf"(?:/home/|/Users/|\\Users\\)({OWNER})")


@dataclass(frozen=True)
class PrivateNames:
    """Names that are taken out wherever they stand as whole words."""

    hosts: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    folders: frozenset[tuple[str, str]] = frozenset()  # with what stands in their place

    def __or__(self, other: "PrivateNames") -> "PrivateNames":
        return PrivateNames(self.hosts | other.hosts, self.users | other.users, self.folders | other.folders)


def names_here(runs_dir: Path | None = None) -> PrivateNames:
    """Those of this machine, of who runs this process, and of the folders that it works in."""
    import getpass
    import socket
    import sys
    import tempfile

    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        user = ""
    here = {CWD: Path.cwd(), VENV: Path(sys.prefix), TEMPORARY: Path(tempfile.gettempdir())}
    here |= {RUNS: runs_dir.resolve()} if runs_dir else {}
    told = {(str(path), name) for name, path in here.items() if len(path.parts) > 2 and path.parts[1] not in _SYSTEM}
    hosts = frozenset(_host_forms(socket.gethostname()))
    return PrivateNames(hosts, frozenset((user,) if _is_name(user) else ()), frozenset(told))


def names_known(machines: Iterable[Json], runs_dir: Path | None = None) -> PrivateNames:
    """Names of this machine, its user, its folders, and those that the facts of other machines give away."""
    names = names_here(runs_dir)
    for machine in machines:
        names |= names_in(machine)
    return names


def names_in(facts: Json) -> PrivateNames:
    """Those that stored facts give away: fields named `host` or `user`, owners of home folders in paths."""
    hosts: set[str] = set()
    users: set[str] = set()
    for field, value in _leaves(facts, ""):
        users.update(filter(_is_name, _HOME_OWNER.findall(value)))
        if _HOST_FIELDS.match(field):
            hosts.update(_host_forms(value))
        elif _USER_FIELDS.match(field) and _is_name(value):
            users.add(value)
    return PrivateNames(frozenset(hosts), frozenset(users))


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


# Patterns -------------------------------------------------------------------------------------------------------------

# After a JSON escape the letter of the escape stands before the secret: `\nsk-…`.
_START = r"(?:(?<![A-Za-z0-9\\])|(?<=\\[nrtbf])|(?<=\\\\))"
_MARKED = {  # the plain string by which it is found: the rest of the key
    "sk-": r"(?:ant|proj|svcacct|admin|or|lf|None)-[\w-]{12,}|(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,}",
    "sk_live_": r"[A-Za-z0-9]{12,}",
    "sk_test_": r"[A-Za-z0-9]{12,}",
    "rk_live_": r"[A-Za-z0-9]{12,}",
    "AIza": r"[\w-]{30,}",
    "ya29.": r"[\w-]{20,}",
    "hf_": r"(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{20,}",
    "ghp_": r"[A-Za-z0-9]{20,}",
    "gho_": r"[A-Za-z0-9]{20,}",
    "ghu_": r"[A-Za-z0-9]{20,}",
    "ghs_": r"[A-Za-z0-9]{20,}",
    "ghr_": r"[A-Za-z0-9]{20,}",
    "github_pat_": r"\w{20,}",
    "glpat-": r"[\w-]{16,}",
    "xox": r"[abeoprs]-[\w-]{10,}",
    "AKIA": r"[A-Z0-9]{16}(?![A-Za-z0-9])",
    "ASIA": r"[A-Z0-9]{16}(?![A-Za-z0-9])",
    "wandb_v1_": r"[A-Za-z0-9_-]{20,}",
    "fw_": r"(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}",
    "hooks.slack.com/services/": r"[\w/-]{12,}",
    "npm_": r"(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{30,}",
    "pypi-": r"[\w-]{40,}",
    "gsk_": r"(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{20,}",
    "xai-": r"(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{20,}",
    "nvapi-": r"[\w-]{20,}",
    "SG.": r"[\w-]{16,}\.[\w-]{16,}",
    "eyJ": r"[\w-]{8,2000}+\.[\w-]{8,}(?:\.[\w-]*)?",
}
_PATTERNS = {mark: re.compile(rf"{_START}{re.escape(mark)}(?:{rest})") for mark, rest in _MARKED.items()}
_BROKEN = (  # may hold many "-" and "_"
    *("sk-", "AIza", "ya29.", "glpat-", "nvapi-", "SG.", "pypi-", "wandb_v1_", "hooks.slack.com/services/"),
)
_BROKEN_KEYS = [(mark, _PATTERNS[mark]) for mark in _BROKEN]
_KEYS = [(mark, pattern) for mark, pattern in _PATTERNS.items() if mark not in _BROKEN]
_LONG_RUN = b"a" * 12  # letters and digits in a row: all other keys have so many, and lines of code seldom do
_ALNUM = bytes(ord("a") if chr(i).isalnum() and i < 128 else 32 for i in range(256))
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:(?:(?!-----BEGIN).)*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|(?:[A-Za-z0-9+/=:,\s-]|\\+[nr])*)",
    re.DOTALL,
)

_GAP = r"""(?:[\\"'\t ]*(?:[:=]|=>)[\\"'\t ]*|[ ]+)"""
_MORE = r"[\w-]{0,64}"  # of a name; without a bound, a name that repeats itself would cost the square of its length
_VALUE = r"[A-Za-z0-9_\-+/=.~%!$#^*]"
_VALUE_CHARACTER = re.compile(_VALUE)
_NAMED = re.compile(
    rf"""((?:api|access|secret|private|auth|account|signing|encryption|subscription|license)[_-]?key|secret|token(?!iz)
    |credential|auth(?:orization)?|(?-i:(?<=[A-Z0-9_])_KEY))
    ({_MORE}{_GAP}(?:(?:bearer|basic|token)\s+)?)({_VALUE}{{16,400}})""",
    re.IGNORECASE | re.VERBOSE,
)
_BEFORE, _OWN = re.compile(r"[A-Z0-9_]{0,64}\Z"), re.compile(r"[A-Z0-9_]*_KEY")  # of a variable of somebody's own
_PASSWORD = re.compile(
    rf"(passw(?:or)?d|passphrase|passwd|[_-]pwd)({_MORE}{_GAP})([^\s\"'\\,;&(){{}}\[\]<>]{{4,}})(?![\w(\[.])",
    re.IGNORECASE,
)
_NAMES_SECRET = re.compile(r"(?i)key|secret|token|credential|auth|passw|passphrase|pwd")
_NAMES_PASSWORD = re.compile(r"(?i)passw|passphrase|(?:^|[_-])pwd$")
_NAMES_HASH = re.compile(r"(?i)sha\d|hash|digest|checksum|_id$|_ref$")
_BEARER = re.compile(r"(?i)(bearer\s+)([\w\-.~+/]{12,}=*)")
_IN_URL = re.compile(r"(?<=://)([^\s/:@\"'\\]*):([^\s@/\"'\\]+)(?=@)")
_SIGNATURE = re.compile(r"([?&]sig=)([A-Za-z0-9%+/=_-]{20,})")  # of Azure's shared links
_RUN = re.compile(r"[A-Za-z0-9+/]{16,}|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

_UNIX_HOME = re.compile(rf"(?:(?<!\\)\\{{1,16}})?/(?:home|Users)\\*/(?!\.\.){OWNER}")
_ROOT = re.compile(
    r"(?:(?<![\w.~\-)\]\s\\])|(?<=\\[nrt])|(?<=[:=]\s))\\*/root(?=\\*/\w|\\*/\.|\\?[\"'`]|$)"
    r"|(?<=\s)/root(?=/\w|/\.)",
    re.MULTILINE,
)
_WINDOWS_HOME = re.compile(
    rf"(?i)(?:(?<![a-z0-9])|(?<=\\[nrt]))[a-z]:(?:\\+|/)(?:Users|Documents and Settings)(?:\\+|/){OWNER}"
)
# Where clusters keep people's files. What stands below says who they are; the last part says what it is about.
_SHARED_ROOTS = (
    "scratch|gpfs\\w*|lustre\\w*|beegfs|nfs\\w*|data\\d*|mnt|fsx|efs|shared?|storage|projects?|workspaces?|work|raid"
    "|export|net|srv|media|vol\\w*|ssd\\w*|nvme\\w*|tmp/pytest-of-[^/\\s]+"
)
_SHARED_START = re.compile(rf"/(?:{_SHARED_ROOTS})/")
_SHARED = re.compile(rf"(?:(?<![\w.~\->)\]\\/])|(?<=\\[nrtbf]))/(?:{_SHARED_ROOTS})(?:/{OWNER})*/(?={OWNER})")
_SYSTEM = frozenset(("usr", "opt", "bin", "lib", "etc"))
_INTERNAL = "internal|corp|lan|local|intranet"
_INTERNAL_HOST = re.compile(
    rf"(?i)(?<=://)(?:[a-z0-9-]+\.)+(?:{_INTERNAL})(?![\w.-])"
    rf"|(?<![\w.@-])(?=[a-z.]*[\d-])(?:[a-z0-9-]+\.){{2,}}(?:{_INTERNAL})(?![\w(\[.-])"  # no module of Python's
)
_URL_HOST = re.compile(r"(?<=://)(?!localhost|127\.0\.0\.1|\[::1\])(?:[^\s/@]*@)?[^\s/:@\"'\\]+")
_TOP = "com org net edu gov mil int info biz dev app ai cloud tech local lan internal corp home intranet example test"
# In a kernel's source stands x@self.wq, a matrix product: two letters are a country's, and few words follow self.
_COUNTRIES = (
    "ac ad ae af ag ai al am ao aq ar as at au aw ax az ba bb bd be bf bg bh bi bj bm bn bo br bs bt bw by bz ca cc cd"
    " cf cg ch ci ck cl cm cn co cr cu cv cw cx cy cz de dj dk dm do dz ec ee eg er es et eu fi fj fk fm fo fr ga gb gd"
    " ge gf gg gh gi gl gm gn gp gq gr gs gt gu gw gy hk hm hn hr ht hu id ie il im in io iq ir is it je jm jo jp ke kg"
    " kh ki km kn kp kr kw ky kz la lb lc li lk lr ls lt lu lv ly ma mc md me mg mh mk ml mn mo mp mq mr ms mt mu mw mx"
    " my mz na nc ne nf ng ni nl no np nr nu nz om pa pe pf pg ph pk pl pm pn pr ps pt pw py qa re ro rs ru rw sa sb sc"
    " sd se sg sh si sk sl sm sn so sr ss st su sv sx sy sz tc td tf tg th tj tk tl tm tn to tr tt tv tw tz ua ug uk us"
    " uy uz va vc ve vg vi vn vu wf ws ye yt za zm zw"
)
_AT_DOMAIN = re.compile(r"@(?<=[\w+%-]@)[A-Za-z0-9-]+\.[A-Za-z]")
_EMAIL = re.compile(
    r"(?:(?<![\w.+%\-\\])|(?<=\\[nrtbf])|(?<=\\\\))[A-Za-z0-9_][\w.+%-]*@(?!self\.(?!com|org|net))(?:[A-Za-z0-9-]+\.)+"
    rf"(?:{f'{_TOP} {_COUNTRIES}'.replace(' ', '|')})(?![\w(\[-]|\.\w)"
)
_DOTTED = re.compile(r"\.\d{1,3}\.\d")
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = re.compile(rf"(?<![\w.+])(?<!==)(?<![vV])(?!127\.|0\.0\.0\.0)(?:{_OCTET}\.){{3}}{_OCTET}(?![\w]|\.\d)")
_COLONS = re.compile(r":[0-9a-fA-F]{0,4}:[0-9a-fA-F]")
_IPV6 = re.compile(
    r"(?i)(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
    r"|(?:fe80|fd[0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{1,4}){0,6}::[0-9a-f]{1,4}(?::[0-9a-f]{1,4})+"
    r"|fe80::[0-9a-f]{1,4}|(?:fd[0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{1,4}){1,6}::[0-9a-f]{0,4})(?![\w:])"
)


class Scrubber:
    """Takes secrets out of texts and JSON values. What holds none stays as it is; twice does what once does. `runs`:
    ids of runs; those that become alike are numbered, in the ids of their attempts, too."""

    def __init__(self, names: PrivateNames = PrivateNames(), runs: Iterable[str] = ()) -> None:
        named = ((names.hosts, HOST), (names.users, USER))
        self._names = [(_words(those), placeholder) for those, placeholder in named if those]
        self._literals = tuple({name.lower() for those, _ in named for name in those})
        self._folders = sorted(names.folders, key=lambda told: -len(told[0]))  # the innermost first
        self._clean: set[str] = set()
        self._runs: dict[str, str] = {}
        told, alike = dict[str, Json](), Counter[str]()
        for run_id in runs:
            told[_free(self.text(run_id), told, alike)] = run_id
        self._runs = {run_id: name for name, run_id in told.items() if name != run_id}

    def row(self, row: Mapping[str, Json]) -> dict[str, Json]:
        """The row of a table without secrets; its columns keep their names."""
        made = {
            name: value if value is None or isinstance(value, int | float) else self._value(value, 0)
            for name, value in row.items()
        }
        return made | self._unspelled(row, made)

    def _unspelled(self, given: Mapping[str, Json], made: Mapping[str, Json]) -> dict[str, Json]:
        """The tokens that say what was taken out of the texts beside them, as None."""
        spelled = [name for name in _SPELLS if made.get(name) is not None]
        return dict.fromkeys(spelled) if spelled and made != given else {}

    def text(self, text: str) -> str:
        """The text without secrets."""
        if len(text) < _SHORTEST and text.isalnum() and not self._literals:
            return text
        if self._runs:
            run_id, slash, rest = text.partition("/")
            if run_id in self._runs:
                return self._runs[run_id] + slash + self.text(rest)
        if text in self._clean:
            return text
        mended = _PEM.sub(KEY, text) if "-----BEGIN" in text else text  # the only secret of several lines
        if self._mended(mended) != mended:
            return "\n".join(map(self._mended, mended.split("\n")))
        if len(self._clean) > _MOST_TEXTS:
            self._clean.clear()
        self._clean.add(mended)
        return mended

    def _mended(self, text: str) -> str:
        for folder, placeholder in self._folders:
            if folder in text:
                text = re.sub(rf"{re.escape(folder)}(?![\w.-])", placeholder, text)
        low = text.lower()
        facts = _Facts(text, low, bool(_LONG_RUN in text.encode("utf-8", "replace").translate(_ALNUM)))
        for finds, mends in _MENDERS:
            if finds(facts):
                text = mends(text)
        if any(name in low for name in self._literals):
            for pattern, placeholder in self._names:
                text = pattern.sub(placeholder, text)
        return text

    def value(self, value: Json) -> Json:
        """The same of a JSON value, in depth: texts, and keys of objects. Keys that become alike are numbered."""
        return self._value(value, 0)

    def _value(self, value: Json, level: int) -> Json:
        if isinstance(value, str):
            return self.text(value)
        if not isinstance(value, dict | list | tuple):
            return value
        if level == DEEPEST:
            return self.text(_dumped(value))
        if not isinstance(value, dict):
            return [self._value(v, level + 1) for v in value]
        made, alike = dict[str, Json](), Counter[str]()
        for key, inner in value.items():
            secret = isinstance(inner, str) and isinstance(key, str) and _is_secret(key, inner)
            if isinstance(inner, str) and isinstance(key, str) and _URL_FIELDS.match(key):
                inner = _URL_HOST.sub(HOST, inner)
            made[_free(self.text(str(key)), made, alike)] = KEY if secret else self._value(inner, level + 1)
        return made | self._unspelled(value, made)


def _dumped(value: Json) -> str:
    try:
        return json.dumps(value, default=str)
    except (RecursionError, ValueError):
        return "…"


def _free(key: str, taken: Mapping[str, Json], alike: Counter[str]) -> str:
    """A key that is not taken, numbered from where the last one `alike` was."""
    name = key
    while name in taken:
        alike[key] += 1
        name = f"{key}-{alike[key] + 1}"
    return name


def _words(names: Iterable[str]) -> re.Pattern[str]:
    """Whole words, and parts of words that "-" and "_" join, where a name is too long to be one by chance."""
    order = sorted(names, key=lambda n: (-len(n), n))
    whole, joined = ("|".join(re.escape(n) for n in order if (len(n) > 3) is long) for long in (False, True))
    ways = [rf"(?:(?<![\w-])|(?<=\\[nrt]))(?:{whole})(?![\w-])"] if whole else []
    ways += [rf"(?:(?<![^\W_])|(?<=\\[nrt]))(?:{joined})(?![^\W_])"] if joined else []
    return re.compile(rf"(?i){'|'.join(ways)}")


def _is_random(value: str) -> bool:
    """Letters and digits without words between them, as in no name of a program."""
    return any(
        any(c.isdigit() for c in run)
        and sum(c.isalpha() for c in run) >= 2
        and len(set(run)) >= 8
        and ("/" not in run or not (run.islower() or run.isupper()))  # a path
        for run in _RUN.findall(value)
    )


def _is_secret(name: str, value: str) -> bool:
    if not _NAMES_SECRET.search(name) or value in (KEY, "") or _NAMES_HASH.search(name):
        return False
    if _NAMES_PASSWORD.search(name):
        return 4 <= len(value) <= 200 and not any(c.isspace() for c in value)
    return 16 <= len(value) <= 4000 and not any(c.isspace() for c in value) and _is_random(value)


def _without_named(text: str) -> str:
    """What looks like a value may be the next name, `"secret": "api_key=…"`, so the search goes on where it began."""
    made: list[str] = []
    done = at = 0
    while found := _NAMED.search(text, at):
        at = found.start(3)
        if not _is_random(found[3]) or _NAMES_HASH.search(_whole_name(text, found)):
            continue
        while at < len(text) and _VALUE_CHARACTER.match(text, at):
            at += 1
        if text[at : at + 1] not in ("(", "["):
            made += (text[done : found.start(3)], KEY)
            done = at
    return "".join((*made, text[done:]))


def _whole_name(text: str, found: re.Match[str]) -> str:
    """With its beginning, which the pattern does not look for: it would at each place, some hundred times."""
    name = found[1] + found[2]
    before = _BEFORE.search(text, max(found.start() - 64, 0), found.start()) if _OWN.match(name) else None
    return before[0] + name if before else name


def _without_passwords(text: str) -> str:
    return _PASSWORD.sub(lambda m: m.group() if m[3] in ("None", "True", "False") else m[1] + m[2] + KEY, text)


def _without_bearers(text: str) -> str:
    return _BEARER.sub(lambda m: m[1] + KEY if any(c.isdigit() or c.isupper() for c in m[2]) else m.group(), text)


def _replaced(pattern: re.Pattern[str], placeholder: str) -> Callable[[str], str]:
    return lambda text: pattern.sub(placeholder, text)


class _Facts(NamedTuple):
    """A text, its lower case, and whether it has a long run of letters and digits."""

    text: str
    low: str
    runs: bool


def _holds(mark: str) -> Callable[[_Facts], bool]:
    return lambda facts: mark in facts.text


def _without_keys(text: str) -> str:
    """Without those that are letters and digits in a row."""
    for mark, pattern in _KEYS:
        if mark in text:
            text = pattern.sub(KEY, text)
    return text


def _one_of(*needles: str) -> Callable[[_Facts], bool]:
    """Whether one of them occurs, in any case."""

    def occurs(facts: _Facts) -> bool:
        low = facts.low
        for needle in needles:  # noqa: SIM110 - any() takes twice as long, and this is asked for every text
            if needle in low:
                return True
        return False

    return occurs


_names_one = _one_of("_key", "-key", "apikey", "accesskey", "accountkey", "privatekey", "secret", "credential", "auth")


# What finds, and what mends; first those that a later one would cut up.
_MENDERS: tuple[tuple[Callable[[_Facts], object], Callable[[str], str]], ...] = (
    (lambda facts: "://" in facts.text and "@" in facts.text, _replaced(_IN_URL, f"{USER}:{KEY}")),
    *((_holds(mark), _replaced(pattern, KEY)) for mark, pattern in _BROKEN_KEYS),
    (lambda facts: facts.runs, _without_keys),
    (_one_of("bearer "), _without_bearers),
    (lambda facts: _names_one(facts) or (facts.runs and "token" in facts.low), _without_named),
    (_one_of("passw", "passphrase", "_pwd", "-pwd"), _without_passwords),
    (_one_of(":\\", ":/"), _replaced(_WINDOWS_HOME, HOME)),
    (_one_of("home", "users"), _replaced(_UNIX_HOME, HOME)),
    (_one_of("/root"), _replaced(_ROOT, HOME)),
    (lambda facts: _SHARED_START.search(facts.low), _replaced(_SHARED, f"{FOLDER}/")),
    (lambda facts: "sig=" in facts.text, lambda text: _SIGNATURE.sub(lambda m: m[1] + KEY, text)),
    (_one_of(".internal", ".corp", ".lan", ".local", ".intranet"), _replaced(_INTERNAL_HOST, HOST)),
    (lambda facts: "@" in facts.text and _AT_DOMAIN.search(facts.text), _replaced(_EMAIL, EMAIL)),
    (lambda facts: _DOTTED.search(facts.text), _replaced(_IPV4, IP)),
    (lambda facts: _COLONS.search(facts.text), _replaced(_IPV6, IP)),
)
