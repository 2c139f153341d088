"""Formats made of attempts: `sft-best`, `fim`, `convert`, `fix`, `dpo`, `kto`. Pure; see docs/formats.md.

A prompt asks for the language of its answer, and what is compared or repaired stays in one language. Only what is known
counts. Nothing here rests on a rank without a clock: what was not timed is right or not; that it is faster than another
is unknown.
"""

import ast
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from random import Random
from typing import ClassVar, Literal, NamedTuple

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import RunStarted
from kerneltune.agent.export import instructions
from kerneltune.agent.export.base import ExportRow, Feature, Format, Row
from kerneltune.agent.export.instructions import ENTRY_POINT, error_told, repo_name, stable_uuid, visible
from kerneltune.agent.export.rewards import fails, right
from kerneltune.agent.export.similarity import parse
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.tools.languages import FOLDERS
from kerneltune.tools.languages.base import language_of
from kerneltune.tools.languages.ptx.loader import ptx_texts
from kerneltune.tools.schema.codec import plain, unified_diff
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import MOST_OF_A_NAME

Per = Literal["task", "target", "run"]  # `target`: a task on each GPU, or on each architecture where nothing is timed
By = Literal["right", "faster"]
Rank = tuple[int, float, float, bool, float, str]
_TIERS = {"confirmed": 0, "judged": 1}
_SCREENED, _UNTIMED = 2, 3
PYTORCH, TRITON, PTX = "pytorch", "triton", "ptx"
_NAME = re.compile(r"\w+")
_LINE_END = re.compile(r"\r\n|\r|\n")


# sft-best -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Descendant:
    """A right attempt, and how many steps of derivation lie between."""

    attempt: Attempt
    hops: int


class Lineage:
    """The nearest right descendant of each attempt of a run."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._nearest: dict[str, Descendant] = {}
        newest_first = sorted(trajectory.attempts, key=lambda a: a.number, reverse=True)
        for attempt in newest_first:  # on a tie the older one counts
            further = self._nearest.get(attempt.attempt_id)
            found = Descendant(attempt, 1) if right(attempt) else further and replace(further, hops=further.hops + 1)
            parent = trajectory.parent(attempt)
            if parent is not None and found is not None:
                before = self._nearest.get(parent.attempt_id)
                if before is None or found.hops <= before.hops:
                    self._nearest[parent.attempt_id] = found

    def nearest(self, attempt: Attempt) -> Descendant | None:
        """The right descendant in the fewest steps, the earliest among equals."""
        return self._nearest.get(attempt.attempt_id)


def by_language(trajectory: Trajectory) -> list[tuple[str, Trajectory]]:
    """The run once for each language of its attempts, with those alone."""
    found: dict[str, list[Attempt]] = {}
    for attempt in trajectory.attempts:
        found.setdefault(language_of(attempt.source), []).append(attempt)
    return [(language, replace(trajectory, attempts=tuple(its))) for language, its in found.items()]


def failing(attempt: Attempt) -> bool:
    """Known to fail, with a file: of one that was no text, or too long, the record has none."""
    return fails(attempt) and bool(attempt.source.strip())


def _rank(attempt: Attempt, *, leads: bool) -> Rank:
    """Smaller is better."""
    if attempt.timing is None:
        return _UNTIMED, 0.0, 0.0, False, attempt.at, attempt.attempt_id
    tier = _tier(attempt)
    gain = -(attempt.speedup_low or 0.0)
    return tier, gain, attempt.timing.median_us, not leads, attempt.at, attempt.attempt_id


@dataclass
class SftBest(Format):
    """`per`: the best of each task over all runs, of each task on each GPU, or of each run, always of each language on
    its own; `top`: how many.
    Where nothing was timed they are the first that were right, without a place: nobody knows which is fast.

    What is best across machines: a time that was confirmed before one that was judged, before one that was only
    screened, before none; then the lower end of the speed-up over the fastest baseline, in which a machine's own speed
    cancels out. Of what was not timed the first that was right comes first: an order, not a place.
    """

    per: Per = "task"
    top: int = 1

    name: ClassVar[str] = "sft-best"
    about: ClassVar[str] = "prompt and completion: the best kernel of each task (TRL SFT)"
    columns: ClassVar[tuple[Feature, ...]] = (
        instructions.ASKED,
        instructions.ANSWERED,
        Feature("place", "int", "1 for the best of its task (or GPU, or run), 2 for the next, …; null: not timed"),
    )
    surveys: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.top < 1:
            raise UsageError(f"top={self.top}: at least one attempt must be wanted")
        self._best: dict[str, list[Rank]] = {}  # ids and numbers only

    def survey(self, trajectory: Trajectory) -> None:
        """Remember who leads."""
        best_id = trajectory.best.attempt_id if trajectory.best else None
        for language, its in by_language(trajectory):
            ranks = {_rank(a, leads=a.attempt_id == best_id) for a in its.attempts if right(a)}
            key = self._key(trajectory, language)
            if leaders := nsmallest(self.top, {*self._best.get(key, []), *ranks}):
                self._best[key] = leaders

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """A row for each attempt of this run that is among the best."""
        for language, its in by_language(trajectory):
            ranks = enumerate(self._best.get(self._key(trajectory, language), []), 1)
            places = {rank[-1]: None if rank[0] == _UNTIMED else place for place, rank in ranks}
            for attempt in its.attempts:
                if attempt.attempt_id in places:
                    values = {
                        "prompt": instructions.solve(trajectory.run, language),
                        "completion": instructions.answer(attempt.source),
                        "place": places[attempt.attempt_id],
                    }
                    yield ExportRow(values, attempt)

    def _key(self, trajectory: Trajectory, language: str) -> str:
        run = trajectory.run
        if self.per == "run":
            return f"{language} {run.run_id}"
        place = "" if self.per == "task" else run.gpu or run.arch
        return f"{language} {run.task_sha256} {place}"


# fim ------------------------------------------------------------------------------------------------------------------


@dataclass
class Fim(Format):
    """There is no `text` column: trainers would take it for the whole of a row. The body is answered in a block of
    code: an answer that begins with indentation has its first tokens merged with the end of the chat template's prompt,
    or cut off by a template that trims. SmolLM2 trained so knew 99 % of held-out tokens, and answered in prose."""

    name: ClassVar[str] = "fim"
    about: ClassVar[str] = "fill in the middle: the body of each kernel, from its signature and the rest of the file"
    says: ClassVar[tuple[str, ...]] = ("middle",)
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("prefix", "text", "the file up to the body: imports, other kernels, signature, docstring"),
        Feature("middle", "text", "the body; prefix + middle + suffix is the file, to the byte"),
        Feature("suffix", "text", "the rest of the file"),
        Feature("kernel", "text", "the kernel's name"),
        Feature(
            "prompt",
            "structs",
            "the same as a question, without bodies that the kernel does not need",
            instructions.MESSAGE,
        ),
        Feature("completion", "structs", "one assistant message: the body, in a block of code", instructions.MESSAGE),
    )

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """A row for each kernel that a right attempt launches."""
        for attempt in trajectory.attempts:
            if right(attempt):
                bodies = kernel_bodies(attempt.source)
                for body in launched_bodies(attempt):
                    source, shown = attempt.source, around(attempt.source, body, bodies)
                    prefix, middle, suffix = source[: body.start], source[body.start : body.end], source[body.end :]
                    values = {
                        "prefix": prefix,
                        "middle": middle,
                        "suffix": suffix,
                        "kernel": body.kernel,
                        "prompt": instructions.fim(
                            trajectory.run, body.kernel, shown, left_out=shown != (prefix, suffix)
                        ),
                        "completion": instructions.answer(middle),
                    }
                    yield ExportRow(values, attempt)


def around(source: str, hole: "KernelBody", bodies: Sequence["KernelBody"]) -> tuple[str, str]:
    """What stands before and after a body, with "..." for the bodies of kernels that it does not call: the same kernel
    for other shapes stands beside most of TorchInductor's, and a model would learn to copy it."""
    named, needed, unread = {body.kernel: body for body in bodies}, {hole.kernel}, [hole]
    while unread:
        body = unread.pop()
        called = named.keys() & set(_NAME.findall(source[body.start : body.end])) - needed
        needed |= called
        unread += [named[name] for name in called]
    before, after = source[: hole.start], source[hole.end :]
    for body in reversed(bodies):  # a place holds until something before it is left out
        if body.kernel not in needed:
            text, at = source[body.start : body.end], body.start - hole.end
            short = f"{text[: len(text) - len(text.lstrip())]}..."
            if at < 0:
                before = before[: body.start] + short + before[body.end :]
            else:
                after = after[:at] + short + after[body.end - hole.end :]
    return before, after


def launched_bodies(attempt: Attempt) -> "list[KernelBody]":
    """The bodies of the kernels that an attempt launches, without those of what they call, such as TorchInductor's
    one-line helpers; all where the record does not name what was launched. Of two kernels of one name it does not say
    which."""
    launched, bodies = {kernel.name for kernel in attempt.kernels}, kernel_bodies(attempt.source)
    names = Counter(plain(body.kernel, MOST_OF_A_NAME) for body in bodies)
    known = {name for name, n in names.items() if n == 1 and (name in launched or not launched)}
    return [body for body in bodies if plain(body.kernel, MOST_OF_A_NAME) in known]


@dataclass(frozen=True)
class KernelBody:
    """A kernel's body is source[start:end]: from its first statement, a docstring left out if anything follows it, to
    the end of the last one's line. A body on the line of its signature begins there."""

    kernel: str
    start: int
    end: int


def kernel_bodies(source: str) -> list[KernelBody]:
    """The bodies of all functions under @triton.jit, in order. What does not parse has none that can be relied on."""
    tree = parse(source) if "jit" in source else None
    if tree is None:
        return []
    starts = [0, *(m.end() for m in _LINE_END.finditer(source))]
    return [KernelBody(node.name, *_span(source, starts, node)) for node in _kernels(tree.body)]


def _kernels(statements: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """However deep: in classes, functions and branches."""
    for node in statements:
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            yield node
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _kernels(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _kernels(handler.body)


def _is_jit(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(name, ast.Attribute):
        return name.attr == "jit" and isinstance(name.value, ast.Name) and name.value.id == "triton"
    return isinstance(name, ast.Name) and name.id == "jit"


def _span(source: str, starts: list[int], node: ast.FunctionDef) -> tuple[int, int]:
    skipped = int(ast.get_docstring(node) is not None and len(node.body) > 1)
    last = node.body[-1]
    ends = _LINE_END.search(source, starts[(last.end_lineno or last.lineno) - 1])
    return _begin(source, starts, node.body[skipped]), ends.start() if ends else len(source)


def _begin(source: str, starts: list[int], first: ast.stmt) -> int:
    """Of its line, unless something else stands before it there."""
    line = starts[first.lineno - 1]
    before = source[line : line + first.col_offset].encode()[: first.col_offset].decode()  # the offset counts bytes
    return line if before.isspace() else line + len(before)


# convert --------------------------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """A side of a pair. `code`: the file, or of PTX the texts of its kernels."""

    language: str
    code: str
    file: str


class Counterpart(NamedTuple):
    """A right attempt in another language, and its run."""

    side: Side
    attempt: Attempt
    run: Trajectory


@dataclass
class Convert(Format):
    """The other side of a pair is the nearest attempt that this one was derived from, else the best of the task."""

    name: ClassVar[str] = "convert"
    about: ClassVar[str] = "PyTorch to kernels, and kernels of one language to another and back: KernelBook's columns"
    says: ClassVar[tuple[str, ...]] = ("direction", "source_code", "target_code")
    surveys: ClassVar[bool] = True
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("python_code", "text", "the task's file: class Model, get_inputs, get_init_inputs"),
        Feature("triton_code", "text", "the side in Triton: an accepted attempt's file; empty where neither is"),
        Feature("ptx_code", "text", "the side in PTX: texts of an accepted attempt's kernels; empty where neither is"),
        Feature("direction", "text", "what is turned into what: pytorch_to_triton, triton_to_ptx, cuda_to_triton, …"),
        Feature("source_code", "text", "what is turned: a file, or texts in PTX"),
        Feature("target_code", "text", "what it is turned into"),
        Feature("other_attempt", "text", "id of the attempt that is turned; empty for PyTorch"),
        Feature("entry_point", "text", "the module in python_code; in other files it is called <entry_point>New"),
        Feature("module_name", "text", "the task's name"),
        Feature("uuid", "text", "of the pair of texts: the same pair has the same one in every export"),
        Feature("repo_name", "text", "kerneltune for tasks that ship with it; else empty"),
        Feature("prompt", "structs", "system and user: the task, and the file to be converted", instructions.MESSAGE),
        Feature("completion", "structs", "one assistant message: the file in the other language", instructions.MESSAGE),
    )

    def __post_init__(self) -> None:
        self._best: dict[tuple[str, str], tuple[Rank, Counterpart]] = {}  # by task and language

    def survey(self, trajectory: Trajectory) -> None:
        """Remember the best of the task in each language."""
        best_id = trajectory.best.attempt_id if trajectory.best else None
        for attempt in filter(right, trajectory.attempts):
            side = _side(attempt.source)
            place = (trajectory.run.task_sha256, side.language)
            rank = _rank(attempt, leads=attempt.attempt_id == best_id)
            if side.code and (place not in self._best or rank < self._best[place][0]):
                talks = tuple(c for c in trajectory.conversations if c.key == attempt.conversation)
                alone = replace(trajectory, attempts=(attempt,), conversations=talks, best=None)
                self._best[place] = rank, Counterpart(side, attempt, alone)

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """Of each right attempt a row from PyTorch, and two with each language that comes before its own."""
        run, python_code = trajectory.run, visible(trajectory.run.task_source)
        nearest: dict[str, dict[str, Counterpart]] = {}  # by attempt and language: itself, or whom it was derived from
        for attempt in trajectory.attempts if python_code else ():
            parent, made = trajectory.parent(attempt), _side(attempt.source) if right(attempt) else None
            before = nearest.get(parent.attempt_id, {}) if parent else {}
            nearest[attempt.attempt_id] = before
            if made is not None and made.code:
                mine = Counterpart(made, attempt, trajectory)
                nearest[attempt.attempt_id] = {**before, made.language: mine}
                if made.language != PTX:
                    pair = _pair(run, Side(PYTORCH, python_code, python_code), made)
                    yield ExportRow(pair | _talk(instructions.solve(run, made.language), made.file), attempt)
                for other in FOLDERS[: FOLDERS.index(made.language)]:
                    _, best = self._best.get((run.task_sha256, other), (None, None))
                    if (found := before.get(other) or best) is not None:
                        yield from _both_ways(run, found, mine)


def _both_ways(run: RunStarted, found: Counterpart, mine: Counterpart) -> Iterator[ExportRow]:
    elsewhere = None if found.run.run.run_id == run.run_id else found.run
    for before, after in ((found, mine), (mine, found)):
        asked = instructions.convert(run, before.side.file, after.side.language)
        pair = _pair(run, before.side, after.side, before.attempt.attempt_id)
        said = _talk(asked, after.side.file)
        yield ExportRow(pair | said, after.attempt, other=before.attempt, elsewhere=elsewhere)


def _side(file: str) -> Side:
    language = language_of(file)
    return Side(language, "\n".join(ptx_texts(file)) if language == PTX else file, file)


def _talk(prompt: instructions.Messages, source: str) -> Row:
    return {"prompt": prompt, "completion": instructions.answer(source)}


def _pair(run: RunStarted, source: Side, target: Side, other_attempt: str = "") -> Row:
    sides = {side.language: side.code for side in (source, target)}
    direction = f"{source.language}_to_{target.language}"
    in_order = [sides[language] for language in (PYTORCH, *FOLDERS) if language in sides]
    return {
        "python_code": visible(run.task_source),
        "triton_code": sides.get(TRITON, ""),
        "ptx_code": sides.get(PTX, ""),
        "direction": direction,
        "source_code": source.code,
        "target_code": target.code,
        "other_attempt": other_attempt,
        "entry_point": ENTRY_POINT,
        "module_name": run.task,
        "uuid": stable_uuid(*in_order, *([] if source.language == PYTORCH else [direction])),
        "repo_name": repo_name(run),
    }


# fix ------------------------------------------------------------------------------------------------------------------


@dataclass
class Fix(Format):
    name: ClassVar[str] = "fix"
    about: ClassVar[str] = "a failing attempt with its error, and the nearest descendant that is right"
    says: ClassVar[tuple[str, ...]] = ("broken", "fixed")
    cases: ClassVar[bool] = True
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("prompt", "structs", "system and user: the task, the failing file, the error", instructions.MESSAGE),
        Feature(
            "completion", "structs", "one assistant message: the repaired file in a block of code", instructions.MESSAGE
        ),
        Feature("broken", "text", "the failing attempt's file"),
        Feature("error", "text", "what its author was shown, at most 2,000 characters"),
        Feature("fixed", "text", "the descendant's file"),
        Feature("diff", "text", "unified diff from broken to fixed"),
        Feature("hops", "int", "derivations between the two; 1 for a child"),
        Feature("status_before", "text", "verdict on broken"),
        Feature("status_after", "text", "verdict on fixed"),
        Feature("broken_attempt", "text", "id of the failing attempt; provenance is that of fixed"),
    )

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """A row for each failing attempt that something came of."""
        for _, its in by_language(trajectory):
            lineage = Lineage(its)
            for attempt in its.attempts:
                found = lineage.nearest(attempt) if failing(attempt) else None
                if found is not None and found.attempt.source != attempt.source:
                    yield _fix_row(trajectory, attempt, found)


def _fix_row(trajectory: Trajectory, broken: Attempt, found: Descendant) -> ExportRow:
    fixed, error = found.attempt, error_told(trajectory.run, broken)
    before, after = str(broken.status), str(fixed.status)
    values = {
        "prompt": instructions.fix(trajectory.run, broken.source, before, error),
        "completion": instructions.answer(fixed.source),
        "broken": broken.source,
        "error": error,
        "fixed": fixed.source,
        "diff": unified_diff(broken.source, fixed.source),
        "hops": found.hops,
        "status_before": before,
        "status_after": after,
        "broken_attempt": broken.attempt_id,
    }
    return ExportRow(values, fixed, other=broken)


# dpo ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preference:
    """`related`: one was derived from the other. `margin`: of two times, how much faster the better one is at least."""

    by: By
    better: Attempt
    worse: Attempt
    related: bool
    margin: float | None = None


def preferences(trajectory: Trajectory, seed: int, least_margin: float = 1.0) -> list[Preference]:
    """Pairs of attempts of one run of which one is known to be better, the same for the same seed: it is right and the
    other is not, or it is faster. Faster is only what was timed on the same GPU with intervals that do not overlap.

    Each attempt is the worse one of at most one pair of a kind, so the work grows as the attempts do. It is paired with
    its nearest right descendant, its fastest child or its parent where that is the better one (they differ by what was
    changed), else with one drawn at random. A faster one was timed as thoroughly at least. Reads no texts.
    """
    lineage = Lineage(trajectory)
    rng = Random(f"{seed} {trajectory.run.run_id}")
    found = list(_right_over_failing(trajectory, lineage, rng))
    if trajectory.run.gpu is not None:
        found += _faster_over_slower(trajectory, rng, least_margin)
    return found


def _right_over_failing(trajectory: Trajectory, lineage: Lineage, rng: Random) -> Iterator[Preference]:
    good = [a for a in trajectory.attempts if right(a)]
    for attempt in trajectory.attempts if good else ():
        if failing(attempt):
            reached, parent = lineage.nearest(attempt), trajectory.parent(attempt)
            near = reached.attempt if reached else parent if parent and right(parent) else None
            yield Preference("right", near or rng.choice(good), attempt, near is not None)


def _faster_over_slower(trajectory: Trajectory, rng: Random, least_margin: float) -> Iterator[Preference]:
    timed = sorted(
        (a for a in trajectory.attempts if right(a) and a.timing is not None), key=lambda a: (_high_us(a), a.number)
    )
    highs = [_high_us(a) for a in timed]
    places = {a.attempt_id: place for place, a in enumerate(timed)}
    thorough = [[place for place, a in enumerate(timed) if _tier(a) <= tier] for tier in range(_UNTIMED)]
    parents = [trajectory.parent(a) for a in timed]
    fastest_child = {p.attempt_id: i for i, p in reversed(list(enumerate(parents))) if p is not None}
    for attempt, parent in zip(timed, parents, strict=True):
        end, comparable = bisect_left(highs, _low_us(attempt) / least_margin), thorough[_tier(attempt)]
        if n_faster := bisect_left(comparable, end):
            relatives = (fastest_child.get(attempt.attempt_id), places.get(parent.attempt_id) if parent else None)
            near = next((p for p in relatives if p is not None and p < end and _tier(timed[p]) <= _tier(attempt)), None)
            better = timed[comparable[rng.randrange(n_faster)] if near is None else near]
            yield Preference("faster", better, attempt, near is not None, _low_us(attempt) / _high_us(better))


def _tier(attempt: Attempt) -> int:
    """Smaller is more thorough. That heats the GPU: a time does not compare with a smaller one of a shorter look."""
    return _TIERS.get(attempt.tier or "", _SCREENED)


def _low_us(attempt: Attempt) -> float:
    return attempt.timing.low_us if attempt.timing else float("-inf")


def _high_us(attempt: Attempt) -> float:
    return attempt.timing.high_us if attempt.timing else float("inf")


@dataclass
class Dpo(Format):
    """Both answers are of one run: the same task, the same machine. `over`: which pairs; `per_run`: how many at most;
    `least_margin`: how many times faster a faster one must be (below 1.05 most pairs are one constant apart, and teach
    next to nothing); the same `seed` makes the same pairs."""

    over: Literal["both", "right", "faster"] = "both"
    per_run: int = 16
    least_margin: float = 1.05
    seed: int = 0

    name: ClassVar[str] = "dpo"
    about: ClassVar[str] = "preference pairs: right over failing, faster over slower (TRL DPO)"
    says: ClassVar[tuple[str, ...]] = ("chosen", "rejected")
    columns: ClassVar[tuple[Feature, ...]] = (
        instructions.ASKED,
        Feature("chosen", "structs", "one assistant message: the better kernel's file", instructions.MESSAGE),
        Feature("rejected", "structs", "one assistant message: the worse kernel's file", instructions.MESSAGE),
        Feature("better_by", "text", "right: chosen is right and rejected is not; faster: both are right and timed"),
        Feature(
            "margin",
            "float",
            "times faster at least: low end of rejected's time / high end of chosen's; null if untimed",
        ),
        Feature("related", "bool", "whether one was derived from the other, so that they differ by what was changed"),
        Feature("rejected_status", "text", "verdict on rejected"),
        Feature("rejected_attempt", "text", "id of the rejected attempt; provenance is that of chosen"),
    )

    def __post_init__(self) -> None:
        if not self.least_margin >= 1.0:
            raise UsageError(f"least_margin={self.least_margin}: it is at least 1, where intervals just do not overlap")
        if self.per_run < 1:
            raise UsageError(f"per_run={self.per_run}: at least one pair must be wanted")

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """A row for each pair of this run, `per_run` at most."""
        run, pairs = trajectory.run, [p for p in self._pairs(trajectory) if p.better.source != p.worse.source]
        for pair in _drawn(pairs, self.per_run, Random(f"{self.seed} {run.run_id} share")):
            values = {
                "prompt": instructions.solve(run, language_of(pair.better.source)),
                "chosen": instructions.answer(pair.better.source),
                "rejected": instructions.answer(pair.worse.source),
                "better_by": pair.by,
                "margin": pair.margin,
                "related": pair.related,
                "rejected_status": str(pair.worse.status),
                "rejected_attempt": pair.worse.attempt_id,
            }
            yield ExportRow(values, pair.better, other=pair.worse)

    def _pairs(self, trajectory: Trajectory) -> list[Preference]:
        found = [p for _, its in by_language(trajectory) for p in preferences(its, self.seed, self.least_margin)]
        return found if self.over == "both" else [pair for pair in found if pair.by == self.over]


def _drawn(pairs: list[Preference], share: int, rng: Random) -> list[Preference]:
    """Those of related attempts first, the others at random; in the order of the run."""
    if len(pairs) <= share:
        return pairs
    order = sorted(range(len(pairs)), key=lambda i: (not pairs[i].related, rng.random()))
    return [pairs[i] for i in sorted(order[:share])]


# kto ------------------------------------------------------------------------------------------------------------------


@dataclass
class Kto(Format):
    """Good is right; with `least_speedup`, right and that many times as fast as the fastest baseline, by the lower end
    of the interval. What is not known makes no row."""

    least_speedup: float | None = None

    name: ClassVar[str] = "kto"
    about: ClassVar[str] = "single answers labelled good or bad (TRL KTO)"
    columns: ClassVar[tuple[Feature, ...]] = (
        instructions.ASKED,
        instructions.ANSWERED,
        Feature("label", "bool", "true for a good answer"),
    )

    def __post_init__(self) -> None:
        if self.least_speedup is not None and not self.least_speedup > 0.0:
            raise UsageError(f"least_speedup={self.least_speedup}: it is above 0, such as 1.0")

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """A row for each attempt that is known to be good or bad."""
        for attempt in trajectory.attempts:
            label = self._label(attempt)
            if label is not None:
                prompt = instructions.solve(trajectory.run, language_of(attempt.source))
                values = {"prompt": prompt, "completion": instructions.answer(attempt.source), "label": label}
                yield ExportRow(values, attempt)

    def _label(self, attempt: Attempt) -> bool | None:
        if failing(attempt):
            return False
        if not right(attempt):
            return None
        if self.least_speedup is None:
            return True
        return None if attempt.speedup_low is None else attempt.speedup_low >= self.least_speedup
