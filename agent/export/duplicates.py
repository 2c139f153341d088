"""Which attempts say the same. Exactly: their normal forms are equal. Nearly: 0.8 of their 5-grams of tokens are.

Two passes: `see` every attempt, `settle`, then ask `of`. For each attempt a few numbers are kept and for each distinct
source 128 bytes more: a MinHash signature, one byte for each of 128 permutations. A byte is enough, since two that
differ agree by chance in one place of 256. Sixteen bands of eight bytes name the pairs worth a look, whole signatures
decide, and
pairs that are alike join their clusters. What is like is not always like all of its cluster: chains of small changes
hold together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from agent.export.normalise import Forms
from agent.export.trees import tree_form

JACCARD = 0.8
PERMUTATIONS = 128
_BAND = 8  # rows; sixteen bands find a pair of Jaccard 0.8 in 95 cases of 100, one of 0.5 in 6
_GRAM = 5
_BATCH = 512  # sources whose signatures are made together
_RECENT = 20_000  # sources that are known by their text alone
_CHUNK = 32_768  # rows that an array grows by
_PAIRS = 30_000  # compared together: 12 MB
_SEED = 20260101

Identity = Literal["tokens", "tree"]
_Ids = NDArray[np.uint64]
_Rows = NDArray[np.uint32]  # numbers of rows, forms or clusters


@dataclass(frozen=True, slots=True)
class Duplicate:
    """What is known of one attempt. Ids are 16 hex digits, the same in every export of the same attempts; `near` is the
    `exact` of the cluster's first member. `first`: nobody before it was the same, or nearly the same."""

    exact: str
    near: str
    exact_first: bool
    near_first: bool
    exact_count: int
    near_count: int


class Duplicates:
    """Sees attempts in the order in which they count as first. After `settle` it only answers, in any forked process.

    identity: "tokens" compares `Forms`, "tree" the syntax trees with local variables renamed (about 1 ms a source), and
    forms where there is no tree.
    """

    def __init__(self, identity: Identity = "tokens") -> None:
        self._identity = identity
        self._forms = Forms()
        self._attempts = _Growing(np.uint64)
        self._row_of = _Growing(np.uint32)
        self._exact = _Growing(np.uint64)
        self._signatures = _Growing((np.uint8, PERMUTATIONS))
        self._waiting: list[bytes] = []  # tokens of sources without a signature yet
        self._recent: dict[int, int] = {}
        self._settled: _Settled | None = None

    def see(self, attempt_id: str, source: str) -> None:
        """The first pass. An attempt that was seen already counts once. Raises RuntimeError after `settle`."""
        if self._settled is not None:
            raise RuntimeError(f"{attempt_id}: the duplicates are settled; it was not seen in the first pass")
        key = hash(source)
        row = self._recent.get(key)
        if row is None:
            row = self._new(source)
            if len(self._recent) >= _RECENT:
                self._recent.clear()
            self._recent[key] = row
        self._attempts.append(_number(attempt_id))
        self._row_of.append(row)

    def _new(self, source: str) -> int:
        form = self._forms.of(source)
        text = (self._identity == "tree" and tree_form(source)) or form.text
        self._exact.append(_number(text))
        self._waiting.append(form.words)
        if len(self._waiting) == _BATCH:
            self._sign()
        return len(self._exact) - 1

    def _sign(self) -> None:
        self._signatures.extend(_signatures(self._waiting))
        self._waiting.clear()

    def share(self) -> "Share":
        """What was seen, for another process to `absorb`; this one is empty afterwards."""
        if self._waiting:
            self._sign()
        self._recent.clear()
        return Share(self._attempts.taken(), self._row_of.taken(), self._exact.taken(), self._signatures.taken())

    def absorb(self, share: "Share") -> None:
        """As if the share's attempts had been seen here, now."""
        if self._waiting:
            self._sign()
        self._row_of.extend(share.row_of + np.uint32(len(self._exact)))
        self._attempts.extend(share.attempts)
        self._exact.extend(share.exact)
        self._signatures.extend(share.signatures)

    def settle(self) -> None:
        """Between the passes: find the clusters. Takes seconds for a million attempts."""
        if self._settled is None:
            self._settled = _settle(self.share())
            self._forms = Forms()

    def of(self, attempt_id: str) -> Duplicate:
        """The second pass. Raises KeyError for an attempt that was not seen, RuntimeError before `settle`."""
        if self._settled is None:
            raise RuntimeError("settle() comes before of()")
        return self._settled.of(attempt_id)


@dataclass(frozen=True, slots=True)
class Share:
    """What one process saw. `attempts` and `row_of` by attempt, `exact` and `signatures` by row."""

    attempts: _Ids
    row_of: NDArray[np.uint32]
    exact: _Ids
    signatures: NDArray[np.uint8]  # [rows, PERMUTATIONS]


@dataclass(frozen=True, slots=True)
class _Settled:
    """`attempts` is sorted; the rest is by distinct form, in the order of `exact`."""

    attempts: _Ids
    form_of: NDArray[np.uint32]  # of each attempt
    exact: _Ids
    first: _Ids  # the attempt that had it first
    count: NDArray[np.uint32]
    near: NDArray[np.uint32]  # the form that leads its cluster
    near_count: NDArray[np.uint32]

    def of(self, attempt_id: str) -> Duplicate:
        number = _number(attempt_id)
        at = int(self.attempts.searchsorted(np.uint64(number)))
        if at == len(self.attempts) or self.attempts.item(at) != number:
            raise KeyError(attempt_id)
        form = self.form_of.item(at)
        leader = self.near.item(form)
        first = self.first.item(form) == number
        return Duplicate(
            f"{self.exact.item(form):016x}",
            f"{self.exact.item(leader):016x}",
            first,
            first and leader == form,
            self.count.item(form),
            self.near_count.item(form),
        )


class _Growing:
    """An array that is appended to, chunk by chunk, so that nothing is copied while it grows."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = dtype
        self._full: list[NDArray[Any]] = []
        self._room: NDArray[Any] = np.empty(0, dtype)
        self._used = 0

    def __len__(self) -> int:
        return len(self._full) * _CHUNK + self._used

    def append(self, value: int) -> None:
        if self._used == len(self._room):
            self._more()
        self._room[self._used] = value
        self._used += 1

    def extend(self, values: NDArray[Any]) -> None:
        while len(values):
            if self._used == len(self._room):
                self._more()
            taken = min(len(values), len(self._room) - self._used)
            self._room[self._used : self._used + taken] = values[:taken]
            self._used += taken
            values = values[taken:]

    def _more(self) -> None:
        if self._used:
            self._full.append(self._room)
        self._room = np.empty(_CHUNK, self._dtype)
        self._used = 0

    def taken(self) -> NDArray[Any]:
        """All of it in one array. The chunks are let go of on the way, so that there are never two copies."""
        made = np.empty(len(self), self._dtype)
        self._full.append(self._room[: self._used])
        self._full.reverse()
        for start in range(0, len(made), _CHUNK):
            chunk = self._full.pop()
            made[start : start + len(chunk)] = chunk
        self._full.clear()
        self._room, self._used = np.empty(0, self._dtype), 0
        return made


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _signatures(sources: list[bytes]) -> NDArray[np.uint8]:
    """uint8 [sources, PERMUTATIONS] of sources given as uint32 hashes of their tokens."""
    from rensa import RMinHash

    padded = [words.ljust(4 * _GRAM, b"\0") for words in sources]
    ends = np.cumsum([len(words) // 4 for words in padded])
    tokens = np.frombuffer(b"".join(padded), "<u4").astype(np.uint64)
    grams = np.zeros(len(tokens), np.uint64)
    with np.errstate(over="ignore"):
        for _ in range(_GRAM):
            grams = grams * np.uint64(0x9E3779B97F4A7C15) + tokens  # wraps on purpose
            tokens = np.append(tokens[1:], np.uint64(0))
        grams ^= grams >> np.uint64(29)
        grams *= np.uint64(0xBF58476D1CE4E5B9)
    whole = np.ones(len(grams), bool)
    for back in range(1, _GRAM):
        whole[ends - back] = False  # would reach into the next source
    offsets = np.append(0, ends - (_GRAM - 1) * np.arange(1, len(ends) + 1)).astype(np.uint64)
    made = RMinHash.digest_matrix_from_flat_token_hashes(grams[whole], offsets, PERMUTATIONS, _SEED)
    return np.array(made.to_rows(), np.uint32).astype(np.uint8)


def _settle(share: Share) -> _Settled:
    """Rows become distinct forms, attempts find theirs, and forms their clusters."""
    attempts, row_of = share.attempts, share.row_of
    distinct, first_row, rows = np.unique(share.exact, return_index=True, return_inverse=True)
    form = rows.astype(np.uint32)
    del rows
    cluster = _clusters(share.signatures, first_row.astype(np.uint32))
    del share, first_row  # the signatures: most of all that is held
    order = np.unique(attempts, return_index=True)[1]
    order.sort()  # each attempt once, as first seen
    attempts, form_of = attempts[order], form[row_of[order]]
    present, seen_at, counts = np.unique(form_of, return_index=True, return_counts=True)
    first = np.zeros(len(distinct), np.uint64)
    count = np.zeros(len(distinct), np.uint32)
    age = np.full(len(distinct), len(attempts), np.int64)
    first[present], count[present], age[present] = attempts[seen_at], counts, seen_at
    near_count = np.bincount(cluster, weights=count, minlength=len(distinct)).astype(np.uint32)[cluster]
    by_id = np.argsort(attempts)
    return _Settled(attempts[by_id], form_of[by_id], distinct, first, count, _leaders(cluster, age), near_count)


def _leaders(cluster: _Rows, age: NDArray[np.int64]) -> _Rows:
    """For each form, that of its cluster which was seen first."""
    eldest = np.full(len(cluster), np.iinfo(np.int64).max)
    np.minimum.at(eldest, cluster, age)
    leads = np.zeros(len(cluster), np.uint32)
    heads = np.flatnonzero(eldest[cluster] == age)
    leads[cluster[heads]] = heads
    return leads[cluster]


def _clusters(signatures: NDArray[np.uint8], rows: _Rows) -> _Rows:
    """For each form the number of its cluster; `rows` are the forms' rows of signatures."""
    parent = np.arange(len(rows), dtype=np.uint32)
    for start in range(0, PERMUTATIONS, _BAND):
        for one, other in _pairs(signatures[rows, start : start + _BAND].view(np.uint64).ravel()):
            apart = parent[one] != parent[other]
            one, other = one[apart], other[apart]
            agree = np.count_nonzero(signatures[rows[one]] == signatures[rows[other]], axis=1)
            alike = agree >= JACCARD * PERMUTATIONS
            parent = _joined(parent, one[alike], other[alike])
    return parent


def _pairs(band: _Ids) -> Iterator[tuple[_Rows, _Rows]]:
    """Forms with equal bands: each with the one before it, and with the first of them."""
    order = np.argsort(band, kind="stable").astype(np.uint32)
    band = band[order]
    same = np.flatnonzero(band[1:] == band[:-1]).astype(np.uint32) + np.uint32(1)
    starts = np.append(0, np.flatnonzero(band[1:] != band[:-1]) + 1).astype(np.uint32)
    del band
    for chunk in (same[i : i + _PAIRS] for i in range(0, len(same), _PAIRS)):
        yield order[chunk - 1], order[chunk]
        yield order[starts[np.searchsorted(starts, chunk, "right") - 1]], order[chunk]


def _joined(parent: _Rows, one: _Rows, other: _Rows) -> _Rows:
    """Clusters after joining pairs; a cluster's number is its smallest member."""
    while len(one):
        low, high = np.minimum(parent[one], parent[other]), np.maximum(parent[one], parent[other])
        apart = low != high
        one, other, low, high = one[apart], other[apart], low[apart], high[apart]
        np.minimum.at(parent, high, low)
        while (parent[parent] != parent).any():
            parent = parent[parent]
    return parent
