"""Changes of inputs that leave their shape whole, so that more than the first check of a reader is reached. Pure."""

import copy
import json
import random
import re
from typing import Any

_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 63, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 32, (1 << 63) - 1,
    1 << 63, 1 << 64, -(1 << 63), 10**30, 10**400, 0.0, -0.0, 0.5, 1e-320, 1e308, float("inf"), float("nan"), "", "0",
    "nan", "inf", "-1", "\x1b[2J", "\ud800", "\0", "é\u202e", "x" * 300, "../x", "$tensor", [], {}, [[]], {"": {}},
    {"$tensor": None}, {"$tuple": 1}, {"$dict": []}, {"$float": "x"},
)  # fmt: skip
_PIECE = re.compile(r"[\w%@$]+|[ \t]+|\n|.", re.DOTALL)
_ODD_WORDS = (
    "0", "1", "-1", "31", "32", "64", "2147483647", "2147483648", "4294967296", "9223372036854775807",
    "18446744073709551616",
    "1e400", "0x", "0xffffffffffffffff", "0f7F800000", "0fFF800000", "nan", "(", ")", "[", "]", "{", "}", "<", ">", '"',
    "'", "\\", ",", ";", ":", "%", "@", "!", "-", "\n", "\r", "\0", "\x1b", "é", "_",
)  # fmt: skip


def of_json(value: Any, rng: random.Random) -> Any:
    """The value, with a few places changed, left out, doubled or exchanged."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 6))):
        places = list(_places(root))
        where, key = rng.choice(places)
        match rng.randrange(8):
            case 0 | 1 | 2:
                where[key] = _other(where[key], rng)
            case 3:
                where[key] = copy.deepcopy(rng.choice(_ODD))
            case 4 if where is not root:
                del where[key]
            case 5 if isinstance(where, list) and where is not root:
                where.insert(rng.randrange(len(where) + 1), copy.deepcopy(where[key]))
            case 6 if isinstance(where, dict):
                where[rng.choice(("kind", "$tensor", "x", ""))] = copy.deepcopy(where[key])
            case _:
                there, its = rng.choice(places)
                where[key] = copy.deepcopy(there[its])
    return root[0]


def _places(root: Any) -> Any:
    left = [root]
    while left:
        inside = left.pop()
        for key in inside if isinstance(inside, dict) else range(len(inside)):
            yield inside, key
            if isinstance(inside[key], dict | list):
                left.append(inside[key])


def _other(value: Any, rng: random.Random) -> Any:
    """Another value of its type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        odd = copy.deepcopy(rng.choice(_ODD))  # a list of it that was shared grew into a circle, and all memory went
        return rng.choice((value + 1, value - 1, -value, value * 2, value << rng.randrange(70), odd))
    if isinstance(value, float):
        return rng.choice(
            (
                -value,
                value * 2,
                value * 1e300,
                value / 1e300,
                float("nan"),
                int(value) if value == value and abs(value) < 1e300 else 0,
            )
        )
    if isinstance(value, str):
        return of_text(value, rng) if len(value) < 20_000 else value[: rng.randrange(100)]
    if isinstance(value, list) and value:
        rng.shuffle(value)
        return value
    return copy.deepcopy(rng.choice(_ODD))


def of_text(text: str, rng: random.Random, other: str = "") -> str:
    """The text, with a few of its words or lines changed, left out, doubled or exchanged; `other`: a text of which
    words are taken."""
    if rng.random() < 0.3:
        pieces, vocabulary = text.splitlines(keepends=True), other.splitlines(keepends=True)
    else:
        pieces, vocabulary = _PIECE.findall(text), _PIECE.findall(other)
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        at = rng.randrange(len(pieces) + 1)
        until = min(len(pieces), at + rng.choice((1, 1, 1, 2, 5, 20)))
        match rng.randrange(6):
            case 0:
                del pieces[at:until]
            case 1:
                pieces[at:at] = pieces[at:until] * rng.choice((1, 1, 1, 3, 50))
            case 2 if pieces:
                pieces[at:until] = [rng.choice(pieces)]
            case 3 if vocabulary:
                start = rng.randrange(len(vocabulary))
                pieces[at:until] = vocabulary[start : start + rng.choice((1, 1, 3, 20))]
            case 4:
                pieces[at:at] = [rng.choice(_ODD_WORDS)] * rng.choice((1, 1, 1, 2, 300))
            case _:
                pieces[at:until] = [rng.choice(_ODD_WORDS)]
    return "".join(pieces)


def of_json_text(data: bytes, rng: random.Random) -> bytes | None:
    """Changed JSON; None for what is none."""
    try:
        return json.dumps(of_json(json.loads(data), rng)).encode()
    except (ValueError, RecursionError):
        return None
