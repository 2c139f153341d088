"""Events for the tests of the record: arbitrary values made from the types, and a plain run of a chosen length."""

import contextlib
import dataclasses
import enum
import json
import random
import sqlite3
import types
import typing
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kerneltune.agent.attempt import SearchPoint
from kerneltune.agent.events import (
    Event,
    Judged,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunResumed,
    RunStarted,
    Said,
    Updated,
    Verified,
    Warned,
)
from kerneltune.tools.schema.verdict import (
    CaseResult,
    CaseTime,
    Cause,
    Comparison,
    KernelReport,
    NotTimed,
    Status,
    Timing,
    Verdict,
)

RUN = "20261121-093000-softmax-1a2b"
WORDS = (
    "",
    "softmax",
    "two\nlines",
    "naïve ünïcode 核",
    "nul\0inside",
    "lone \ud800 surrogate",
    "'; DROP TABLE runs;--",
    "é" * 400,
)
FLOATS = (0.0, -1.5, 1e-300, 1 / 3, 6.02e23, float("inf"), float("-inf"), 1_800_000_000.123456789)
JSON: tuple[Any, ...] = (
    {},
    {"a": [1, 2.5, None, True, "x\ud800"], "b": {"deep": [[], {}]}},
    {"big": 10**30, "inf": float("inf"), "long": "word " * 500, "": ""},
)


def arbitrary(hint: Any, rng: random.Random, **fixed: Any) -> Any:
    """A value of a type: any field of any event, without a list of them."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Verdict:
        return verdict(rng)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return rng.choice(list(hint))
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        fixed = (
            {"at": float(rng.randrange(2_000_000_000)), **fixed} if "at" in hints else fixed
        )  # a time, not any number
        made = {f.name: arbitrary(hints[f.name], rng) for f in dataclasses.fields(hint) if f.name not in fixed}
        return typing.cast(Any, hint)(**made | fixed)
    if origin in (typing.Union, types.UnionType):
        return arbitrary(rng.choice(args), rng)
    if origin is typing.Literal:
        return rng.choice(args)
    if origin is tuple:
        return tuple(arbitrary(args[0], rng) for _ in range(rng.randrange(4)))
    if origin in (dict, Mapping):
        return {str: {"k": "v", "other": "naïve"}, int: {"NUM_WARPS": 8, "BLOCK": -1}}.get(args[1]) or rng.choice(JSON)
    plain = {str: WORDS, float: FLOATS, int: (0, 7, -1, 2**40), bool: (True, False), type(None): (None,), Any: JSON}
    return rng.choice(plain[hint])


def verdict(rng: random.Random, status: Status | None = None) -> Verdict:
    """A verdict of the given or any status, timed when it is `correct` and only then."""
    status = status or rng.choice(list(Status))
    correct = status is Status.CORRECT
    return Verdict(
        status,
        detail=rng.choice(WORDS),
        cases=arbitrary(tuple[CaseResult, ...], rng),
        timing=arbitrary(Timing, rng) if correct else None,
        comparisons=arbitrary(tuple[Comparison, ...], rng) if correct else (),
        coverage=rng.choice((None, 0.5)),
        sol_fraction=rng.choice((None, 0.9)) if correct else None,
        variant=rng.choice(WORDS),
        tier=rng.choice((None, "screened", "judged", "confirmed")),
        receipt=rng.choice(JSON),
        case=rng.choice(WORDS),
        kernel=rng.choice(WORDS),
        lines=rng.choice(((), (3, 40))),
        ptx_lines=rng.choice(((), (7,))),
        needed_shared_bytes=rng.choice((None, 262144)),
        left_out=rng.choice(((), ("main/huge",))),
        not_timed=rng.choice((None, *NotTimed)) if status is Status.CHECKED else None,
        pending=rng.choice(((), ("compile", "compile-max"))),
        case_times=arbitrary(tuple[CaseTime, ...], rng) if correct else (),
        cause=Cause.VALUES if status is Status.WRONG else None,
    )


def arbitrary_run(seed: int, run_id: str = RUN) -> list[Event]:
    """A run in which every stored kind of event happens, with arbitrary fields."""
    rng = random.Random(seed)
    events: list[Event] = [arbitrary(RunStarted, rng, run_id=run_id)]
    for number in range(1, 4):
        ids = {"run_id": run_id, "attempt_id": f"{run_id}/{number}"}
        events += [
            arbitrary(Said, rng, run_id=run_id, final=True, attempt_id=rng.choice((None, ids["attempt_id"]))),
            arbitrary(Replied, rng, run_id=run_id),
            arbitrary(Proposed, rng, **ids, number=number),
            arbitrary(Updated, rng, **ids),
            arbitrary(Warned, rng, run_id=run_id),
            arbitrary(Judged, rng, **ids),
            arbitrary(Reflected, rng, **ids, outcome="open"),
            arbitrary(Reflected, rng, **ids, outcome="refuted"),
            arbitrary(Verified, rng, **ids, purpose="confirm"),
            arbitrary(Verified, rng, **ids, purpose="verify"),
            arbitrary(Verified, rng, **ids, purpose="verify"),
        ]
    events += [arbitrary(RunEnded, rng, run_id=run_id), arbitrary(RunResumed, rng, run_id=run_id)]
    return [replace(event, at=1_800_000_000.123456789 + i / 3) for i, event in enumerate(events)]  # no two are the same


def started(run_id: str = RUN, task: str = "softmax") -> RunStarted:
    """The first event of a plain run."""
    return RunStarted(
        run_id,
        task,
        task_sha256="0" * 64,
        task_source="class Model: ...",
        author="offline",
        author_why="no API key is set",
        arch="sm_90",
        gpu=None,
        machine={"host": "h"},
        limits={"max_attempts": 4},
        seed=0,
        versions={"torch": "2.13.0"},
    )


def attempt(number: int, run_id: str = RUN, status: Status = Status.CHECKED, *, best: bool = False) -> list[Event]:
    """Proposed, Updated, Judged, Reflected: the size of a real attempt."""
    ids = (run_id, f"{run_id}/{number}")
    source = "\n".join(f"    x{i} = tl.load(x_ptr + {i * number})" for i in range(60))
    plan = {"steps": [{"kernel": "softmax", "ttir": f"%{i} = tt.load %arg{i} {number}"} for i in range(200)]}
    kernel = KernelReport("softmax", 40, 0, 0, 0, 1024, 8, 3, 0.75, "ab" * 32, 0.2)
    case = CaseResult("rows", "own", status in (Status.CHECKED, Status.CORRECT), 0.1, 1e-7)
    timing = Timing(134.5, 134.1, 134.9, 12, 4800) if status is Status.CORRECT else None
    comparisons = (Comparison("eager", 280.0, 2.08, 2.07, 2.09), Comparison("compile", 150.0, 1.12, 1.11, 1.13))
    judged = Verdict(status, "", (case,), timing, comparisons if timing else (), receipt={"plan": f"{number}"})
    return [
        Proposed(
            *ids,
            number,
            f"{run_id}/{number - 1}" if number > 1 else None,
            source,
            "wider rows",
            SearchPoint("softmax_row", {"BLOCK": 1024}),
            "memory-bound",
            "10% faster",
        ),
        Updated(*ids, plan, "cd" * 32, (kernel,), ("aten.empty",), 1, 0.1, 0.2),
        Judged(*ids, judged, 1.5, best, (float(number),)),
        Reflected(*ids, "memory-bound", "10% faster", {"registers": [40]}, "confirmed"),
    ]


def params_of(origin: dict[str, Any]) -> dict[str, Any]:
    """What stood in an attempt's params before it had an origin."""
    match origin:
        case {"kind": "llm_turn", **turn}:
            return turn
        case {"kind": "search_point", "sketch": sketch, "params": params}:
            return {"sketch": sketch, **params}
        case {"kind": "run_start", "given": given, "as_ptx": as_ptx, "point": point}:
            return {"from": given} | ({"as": "ptx"} if as_ptx else {}) | (params_of(point) if point else {})
        case {"kind": "given_file", "name": name, "problem": problem}:
            return {"file": name} | ({"problem": problem} if problem else {})
    raise AssertionError(origin)


def made_old(path: Path) -> None:
    """Make a database one of the last schema before the first release: events had other digests, runs a table of
    where they stand, messages no conversation, and attempts params instead of an origin."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        connection.execute("INSERT INTO alembic_version VALUES ('0004')")
        connection.execute(
            "CREATE TABLE standings (seq INTEGER PRIMARY KEY REFERENCES runs (seq), run_id VARCHAR UNIQUE)"
        )
        connection.execute("INSERT INTO standings SELECT seq, run_id FROM runs")
        connection.execute("CREATE INDEX ix_theirs ON standings (run_id)")
        connection.execute("ALTER TABLE messages DROP COLUMN conversation")
        connection.execute("ALTER TABLE attempts ADD COLUMN params TEXT NOT NULL DEFAULT '{}'")
        for origin, seq in connection.execute("SELECT origin, seq FROM attempts WHERE origin IS NOT NULL").fetchall():
            params = params_of(json.loads(origin))
            connection.execute("UPDATE attempts SET params = ? WHERE seq = ?", (json.dumps(params), seq))
        connection.execute("ALTER TABLE attempts DROP COLUMN origin")
        connection.execute("UPDATE events SET digest = 'of then ' || seq")
        connection.execute("PRAGMA user_version = 0")
