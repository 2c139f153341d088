"""Runs as the program stores them, with made-up attempts: the same events in the same order, realistic shares.

A run is made from its index and a seed alone, so any part of a large store can be made again. No evaluator is involved:
verdicts are drawn, and their details only look like the evaluator's.
"""

import hashlib
import io
import itertools
import random
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from kerneltune.agent.attempt import LlmTurn, Origin, SearchPoint, StopReason
from kerneltune.agent.authors.search.experts import experts
from kerneltune.agent.events import (
    Event,
    Judged,
    Proposed,
    Reflected,
    Replied,
    RunEnded,
    RunStarted,
    Said,
    Updated,
    Verified,
    Warned,
)
from kerneltune.tools import tasks
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Status, Timing, Verdict
from kerneltune.tools.task.load import find_task

_WORDS = (
    "row rows tile tiles block lane warp span part chunk strip band slab panel wide near far fast slow first last "
    "next left right upper lower inner outer load store read write acc total partial peak top base offs index where "
    "mask valid live used kept held seen done step stage phase pass sweep walk stream queue fence gate hub core edge"
).split()
_FREE = (  # names that a file of the library chooses itself and may be called anything
    "BLOCK COLS NUM_STAGES NUM_WARPS PROGRAMS ROWS SPLITS STAGES TILE block column e end grid height index inside "
    "new_top options part part_top parts row row_top row_total rows_left safe scale stages start top top_ptr tops "
    "total total_ptr totals weight_ptr wide x_ptr y_ptr"
).split()
_SENTENCES = (
    "The kernel is bound by memory, so the least traffic decides: read each element once, write it once.",
    "Registers limit occupancy here: {a} a thread leave room for {b} warps only.",
    "The loads of one iteration can travel while the last one is reduced, if {b} stages fit into shared memory.",
    "With {b} warps each thread holds {a} elements, which no longer spills.",
    "Masks cost little, but an access that is not aligned to 16 bytes halves the width of the loads.",
    "The second read hits the L2 cache, for the same program has just read that row: about {a} KiB a program.",
    "A grid of {a} programs leaves a tail wave of {b} percent.",
    "The reduction across warps goes through shared memory twice; {b} fewer synchronisations are possible.",
    "I keep the accumulator in float32, because {a} terms of bfloat16 lose {b} bits.",
    "Attempt {b} was slower by {a} ns, so the larger block is not worth it.",
)
_IR_LINES = (
    "%{x}_{i} = tt.splat %{y} : !tt.ptr<f32> -> tensor<{n}x!tt.ptr<f32>> loc(#loc{j})",
    "%{x}_{i} = tt.addptr %{y}_{j}, %{z} : tensor<{n}x!tt.ptr<f32>>, tensor<{n}xi32> loc(#loc{j})",
    "%{x}_{i} = tt.load %{y}_{j}, %{z}_{i}, %{x} : tensor<{n}x!tt.ptr<f32>> loc(#loc{i})",
    "%{x}_{i} = arith.subf %{y}_{j}, %{z}_{i} : tensor<{n}xf32> loc(#loc{j})",
    "%{x}_{i} = arith.cmpi slt, %{y}, %{z}_{i} : tensor<{n}xi32> loc(#loc{j})",
    "%{x}_{i} = math.exp %{y}_{j} : tensor<{n}xf32> loc(#loc{i})",
    "%{x}_{i} = arith.extsi %{y} : i32 to i64 loc(#loc{j})",
    "%{x}_{i} = tt.expand_dims %{y}_{j} {{axis = 1 : i32}} : tensor<{n}xf32> -> tensor<{n}x1xf32> loc(#loc{i})",
    "tt.store %{x}_{i}, %{y}_{j}, %{z} : tensor<{n}x!tt.ptr<f32>> loc(#loc{j})",
    "%{x}_{i} = scf.for %{y} = %c0 to %{z} step %c{n} iter_args(%{x} = %cst_{j}) -> (tensor<{n}xf32>) : i32 {{",
)


@dataclass(frozen=True)
class Template:
    """A kernel of the library: `pieces` are texts, and between them, at odd places, names and numbers to be chosen."""

    name: str
    pieces: tuple[str, ...]

    def fill(self, rng: random.Random, tag: str) -> str:
        """The file with other names and constants; `tag` becomes part of the kernels' names."""
        chosen: dict[str, str] = {}
        made = list(self.pieces)
        for at in range(1, len(made), 2):
            old = made[at]
            if old not in chosen:
                chosen[old] = _renamed(old, rng, tag, len(chosen))
            made[at] = chosen[old]
        return "".join(made)


def templates() -> list[Template]:
    """One for each file of the library."""
    tasks = [describe(find_task(name)) for name in ("softmax", "row_sum", "rms_norm")]
    sketches = [sketch for task in tasks for sketch in experts(task)]
    return [Template(sketch.name, _pieces(sketch.source)) for sketch in sketches]


def _pieces(source: str) -> tuple[str, ...]:
    """Cut before and after everything that may be changed."""
    lines = source.splitlines(keepends=True)
    starts = list(itertools.accumulate(map(len, lines), initial=0))
    pieces, at, before = [], 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if _is_free(token, before):
            begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            quotes = token.type == tokenize.STRING
            pieces += [source[at : begin + quotes], source[begin + quotes : end - quotes]]
            at = end - quotes
        before = token.string
    return (*pieces, source[at:])


def _is_free(token: tokenize.TokenInfo, before: str) -> bool:
    if token.type == tokenize.NUMBER:  # the value of a launch parameter
        return before == "=" and token.line[:1].isupper()
    name = token.string.strip('"')
    return token.type in (tokenize.NAME, tokenize.STRING) and before != "." and (name in _FREE or _is_kernel(name))


def _is_kernel(name: str) -> bool:
    return name.isidentifier() and name.endswith("_kernel")


def _renamed(old: str, rng: random.Random, tag: str, unique: int) -> str:
    if old.isdigit():
        return str(1 << rng.randrange(15))
    if _is_kernel(old):
        return f"{old.removesuffix('_kernel')}_{tag}_{unique}_kernel"
    word = f"{rng.choice(_WORDS)}_{rng.choice(_WORDS)}{unique}"
    return word.upper() if old.isupper() else word


def near_duplicate(source: str, rng: random.Random) -> str:
    """The source with one launch parameter changed, as a search does it."""
    value = rng.randrange(2, 1 << 14)
    return re.sub(r"(?m)^([A-Z]\w*) = \d+", lambda m: f"{m[1]} = {value}", source, count=1)


def sentences(rng: random.Random, count: int) -> str:
    """What a model says, or thinks."""
    picked = (rng.choice(_SENTENCES) for _ in range(count))
    return " ".join(
        s.replace("{a}", str(rng.randrange(16, 5000))).replace("{b}", str(rng.randrange(2, 33))) for s in picked
    )


def plan(rng: random.Random, kernels: Sequence[str], arch: str) -> Json:
    """A launch plan of the size of a real one: 5 kB for one kernel, of which zlib leaves a third."""
    storages = [
        {"id": i, "nbytes": 4 << rng.randrange(30), "origin": o, "data": None}
        for i, o in enumerate(("input", "scratch"))
    ]
    made = [{"name": name, "language": "ttir", "text": _ir(rng, name)} for name in kernels]
    grid = {"grid": [rng.randrange(1, 1 << 16), 1, 1], "args": ["$0", "$1", rng.randrange(1, 1 << 14)], "num_warps": 8}
    launches = [{"kernel": name, **grid} for name in kernels]
    return {
        "case": "main",
        "variant": "default",
        "arch": arch,
        "storages": storages,
        "kernels": made,
        "launches": launches,
    }


def _ir(rng: random.Random, name: str) -> str:
    text = "\n".join(rng.choices(_IR_BLOCKS, k=34))
    for slot in ("{x}", "{y}", "{z}"):
        text = text.replace(slot, rng.choice(_WORDS))
    body = text.replace("{n}", str(64 << rng.randrange(9)))
    return (
        f"module {{\n  tt.func public @{name}(%x_ptr: !tt.ptr<f32> {{tt.divisibility = 16 : i32}}) {{\n{body}\n}}}}\n"
    )


def _ir_block(rng: random.Random) -> str:
    lines = (rng.choice(_IR_LINES).replace("{i}", str(rng.randrange(99))) for _ in range(2))
    return "\n".join("    " + line.replace("{j}", str(rng.randrange(99))) for line in lines)


_IR_BLOCKS = tuple(_ir_block(random.Random(i)) for i in range(2000))


ATTEMPTS_A_RUN = 50
AUTHORS = {"offline": 4, "anthropic:claude-opus-5-5": 2, "openai:gpt-6.1-sol": 2, "chat:qwen3-coder-30b": 2}
SHARES = {
    Status.REJECTED: 7,
    Status.COMPILE_FAILED: 20,
    Status.CRASHED: 3,
    Status.TIMED_OUT: 2,
    Status.WRONG: 20,
    Status.IMPOSSIBLE: 1,
    Status.CORRECT: 47,  # without a GPU they are `checked`, or `unchecked`
}
EXACT_DUPLICATES, NEAR_DUPLICATES = 0.05, 0.10
_START = 1_780_000_000.0
_WITHOUT_GPU = 0.15
_BATTERIES = ("own", "scaled", "spikes", "integers", "tiny", "offset", "structure", "huge")
_VARIANTS = ("", "_bfloat16", "_wide", "_ragged")
_VERSIONS = {"kerneltune": "0.1.0", "torch": "2.11.0+cu130", "triton": "3.6.0", "numpy": "2.4.6", "python": "3.12.3"}
_GPUS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")


@cache
def task_sources() -> dict[str, str]:
    """The 40 tasks: the built-in ones, each in four sizes."""
    files = sorted(path for path in Path(tasks.__file__).parent.glob("*.py") if path.stem != "__init__")
    return {
        path.stem + variant: path.read_text() + f"\n# variant {i}\n" * bool(variant)
        for i, variant in enumerate(_VARIANTS)
        for path in files
    }


@dataclass
class RunMaker:
    """Makes one run: `index` names it, `attempts` says how long it is."""

    index: int
    seed: int
    attempts: int = ATTEMPTS_A_RUN
    sources: list[str] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    best_us: float = float("inf")
    best: str | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed}/{self.index}")
        self.task = self.rng.choice(list(task_sources()))
        self.author = self.rng.choices(list(AUTHORS), list(AUTHORS.values()))[0]
        self.gpu = None if self.rng.random() < _WITHOUT_GPU else self.rng.choice(_GPUS)
        clock = f"{self.index // 3600 % 24:02}{self.index // 60 % 60:02}{self.index % 60:02}"
        self.run_id = f"20261121-{clock}-{self.task}-{self.index:06x}"
        self.clock = _START + 400.0 * self.index
        self.is_model = self.author != "offline"

    def at(self) -> float:
        """The next moment."""
        self.clock += self.rng.uniform(0.01, 4.0)
        return self.clock

    def events(self) -> Iterator[Event]:
        """All events of the run, in order."""
        yield self._started()
        if self.gpu is None:
            yield Warned(self.run_id, "no NVIDIA GPU: kernels are compiled and checked, not timed", at=self.at())
        if self.is_model:
            yield Said(self.run_id, "system", _system(self.task, self.gpu), at=self.at())
            yield Said(self.run_id, "user", _opening(), conversation="1", at=self.at())
        complete = self.rng.random() < 0.97
        for number in range(1, self.attempts + 1):
            yield from self._attempt(number, judged=complete or number < self.attempts)
        yield from self._end(complete)

    def _started(self) -> RunStarted:
        source = task_sources()[self.task]
        gpu = (
            {"name": self.gpu, "uuid": f"GPU-{self.rng.getrandbits(64):016x}", "driver": "580.95.05"}
            if self.gpu
            else None
        )
        machine = {"gpu": gpu, "sandbox": {"profile": "tracer", "landlock_abi": 7, "seccomp": True}, "tier": "judged"}
        limits = {"max_attempts": self.attempts, "max_time_s": None, "patience": None, "max_cost_usd": None}
        sha256, why = (
            hashlib.sha256(source.encode()).hexdigest(),
            "--model given" if self.is_model else "no API key is set",
        )
        fixed = (self.run_id, self.task, sha256, source, self.author, why, "sm_90", self.gpu)
        return RunStarted(*fixed, machine, limits, self.index, _VERSIONS, at=self.at())

    def _attempt(self, number: int, *, judged: bool) -> Iterator[Event]:
        rng, attempt_id = self.rng, f"{self.run_id}/{number}"
        parent = rng.choice(self.accepted[-5:]) if self.accepted and rng.random() < 0.8 else number - 1 or None
        source, said = self._source(number, parent), sentences(rng, 1)
        self.sources.append(source)
        origin: Origin = SearchPoint("softmax_row", {"NUM_WARPS": 1 << rng.randrange(6)})
        if self.is_model:
            origin = LlmTurn("1", number)
            yield self._reply(number, parent, source, said)
        parent_id = f"{self.run_id}/{parent}" if parent else None
        yield Proposed(self.run_id, attempt_id, number, parent_id, source, said, origin, at=self.at())
        status = self._status()
        kernels = () if status in (Status.REJECTED, Status.COMPILE_FAILED) else self._kernels(source)
        verdict = self._verdict(status)
        yield self._updated(attempt_id, kernels, verdict)
        if judged:
            yield self._judged(attempt_id, number, verdict)
            yield from self._afterwards(attempt_id, number, verdict)

    def _source(self, number: int, parent: int | None) -> str:
        drawn = self.rng.random()
        if self.sources and drawn < EXACT_DUPLICATES:
            return self.rng.choice(self.sources)
        if parent and drawn < EXACT_DUPLICATES + NEAR_DUPLICATES:
            return near_duplicate(self.sources[parent - 1], self.rng)
        return self.rng.choice(_templates()).fill(self.rng, f"{self.index:x}_{number}")

    def _status(self) -> Status:
        status = self.rng.choices(_STATUSES, _WEIGHTS)[0]
        if self.gpu is None and status is Status.CORRECT:
            return Status.UNCHECKED if self.rng.random() < 0.05 else Status.CHECKED
        return Status.CRASHED if self.gpu is None and status is Status.IMPOSSIBLE else status

    def _kernels(self, source: str) -> tuple[KernelReport, ...]:
        names = re.findall(r"(?m)^@triton\.jit\s+def (\w+)", source)
        return tuple(self._kernel(names) for _ in range(self.rng.choice((1, 1, 1, 2))))

    def _kernel(self, names: Sequence[str]) -> KernelReport:
        rng = self.rng
        name, registers = rng.choice(names or ["kernel"]), rng.randrange(16, 256)
        spilled = (0, 0, 0, 64)
        spills = (rng.choice(spilled), rng.choice(spilled), rng.choice(spilled))
        shape = (1 << rng.randrange(4, 17), 1 << rng.randrange(6), rng.randrange(1, 5))
        occupancy, cubin = rng.randrange(1, 17) / 16, f"{rng.getrandbits(256):064x}"
        return KernelReport(name, registers, *spills, *shape, occupancy, cubin, rng.uniform(0.05, 0.5))

    def _updated(self, attempt_id: str, kernels: Sequence[KernelReport], verdict: Verdict) -> Updated:
        rng = self.rng
        made = plan(rng, [k.name for k in kernels], "sm_90") if kernels else None
        failed = verdict if verdict.status in (Status.REJECTED, Status.COMPILE_FAILED) else None
        ops = ("aten.mm",) if rng.random() < 0.05 else ()
        seconds = (round(rng.uniform(0.1, 0.6), 4), round(rng.uniform(0.1, 0.9), 4))
        sha256 = f"{rng.getrandbits(256):064x}" if made else None
        return Updated(
            self.run_id, attempt_id, made, sha256, tuple(kernels), ops, int(bool(made)), *seconds, failed, at=self.at()
        )

    def _verdict(self, status: Status) -> Verdict:
        rng = self.rng
        ran = status in (Status.WRONG, Status.IMPOSSIBLE, Status.CHECKED, Status.CORRECT)
        cases = self._cases(wrong=status is Status.WRONG) if ran else ()
        receipt = self._receipt(cases) if ran else {}
        detail = _DETAILS[status].format(a=rng.randrange(9, 999), b=rng.uniform(0.01, 0.9), n=len(cases))
        if status is not Status.CORRECT:
            return Verdict(status, detail, cases, coverage=None, receipt=receipt)
        us = rng.lognormvariate(5, 1)
        ratios = (rng.lognormvariate(0.1, 0.5), rng.lognormvariate(-0.2, 0.4))
        comparisons = tuple(
            Comparison(name, us * x, x, x * 0.99, x * 1.01)
            for name, x in zip(("eager", "compile"), ratios, strict=True)
        )
        timing = Timing(us, us * 0.995, us * 1.005, rng.randrange(8, 40), rng.randrange(400, 9000))
        measured = (rng.uniform(0.7, 1.0), rng.uniform(0.05, 0.98))
        return Verdict(status, detail, cases, timing, comparisons, *measured, tier="judged", receipt=receipt)

    def _cases(self, *, wrong: bool) -> tuple[CaseResult, ...]:
        rng, count = self.rng, self.rng.randrange(6, 13)
        return tuple(
            CaseResult(
                ("ragged", "narrow", "prime")[i % 3],
                _BATTERIES[i % len(_BATTERIES)],
                not (failed := wrong and i == count - 1),
                rng.uniform(1.1, 90.0) if failed else rng.random(),
                rng.random() * 1e-6,
                "NaN" if failed and rng.random() < 0.2 else "",
            )
            for i in range(count)
        )

    def _receipt(self, cases: Sequence[CaseResult]) -> dict[str, Json]:
        seeds = {f"{c.case}/{c.inputs}": f"{self.rng.getrandbits(64):016x}" for c in cases}
        return {
            "interpreter": "ttir",
            "plan": f"{self.rng.getrandbits(256):064x}",
            "batteries": list(_BATTERIES),
            "seeds": seeds,
        }

    def _judged(self, attempt_id: str, number: int, verdict: Verdict) -> Judged:
        us = verdict.timing.median_us if verdict.timing else self.rng.uniform(1e6, 2e6)
        best = verdict.accepted and us < self.best_us
        if verdict.accepted:
            self.accepted.append(number)
        if best:
            self.best_us, self.best, self.best_verdict = us, attempt_id, verdict
        bench_s = round(self.rng.uniform(0.3, 6.0), 4)
        return Judged(self.run_id, attempt_id, verdict, bench_s, best, (us,) if verdict.accepted else (), at=self.at())

    def _afterwards(self, attempt_id: str, number: int, verdict: Verdict) -> Iterator[Event]:
        """What the model is told, and what is thought of it."""
        rng = self.rng
        if self.is_model:
            for k, text in enumerate(
                (f"#{number} compiled\n{verdict.detail}", f"#{number} {verdict.status}: {verdict.detail}")
            ):
                raw = {"call_id": f"call_{number}_{k}", "is_error": not verdict.accepted}
                yield Said(self.run_id, "tool", f"{text}\n{sentences(rng, 2)}", raw=raw, conversation="1", at=self.at())
            if number % 20 == 0:
                told = f"{number} attempts so far.\n" + "\n".join(sentences(rng, 1) for _ in range(12))
                yield Said(self.run_id, "user", told, raw={"history": True, "kept": 6}, conversation="1", at=self.at())
        if self.is_model and verdict.accepted and rng.random() < 0.3:
            evidence = {
                "registers": [rng.randrange(255)],
                "spill_bytes": 0,
                "time_ratio_to_parent": rng.uniform(0.5, 1.5),
            }
            words = (sentences(rng, 1), "10 % faster", evidence)
            yield Reflected(self.run_id, attempt_id, *words, rng.choice(("open", "confirmed", "refuted")), at=self.at())

    def _reply(self, number: int, parent: int | None, source: str, said: str) -> Replied:
        rng, edits = self.rng, None
        if parent and rng.random() < 0.5:
            edits = [{"search": source[200:260], "replace": source[200:250] + str(rng.randrange(99))}]
        arguments: dict[str, Json] = {
            "parent": parent,
            "rationale": said,
            "source": None if edits else source,
            "edits": edits,
        }
        bench = {"call_id": f"call_{number}_1", "name": "bench", "arguments": {"attempt": number}, "problem": ""}
        calls = [{"call_id": f"call_{number}_0", "name": "update", "arguments": arguments, "problem": ""}, bench]
        thinking = sentences(rng, rng.randrange(2, 9))
        usage = {
            "input_tokens": rng.randrange(3000, 30000),
            "output_tokens": rng.randrange(200, 4000),
            "cached_tokens": 2800,
        }
        raw = self._raw(said, thinking, calls)
        fixed = (self.run_id, "1", number, said, thinking, calls, "tools", "", usage, 1e-5 * usage["output_tokens"])
        return Replied(*fixed, self.author.partition(":")[2], rng.uniform(2.0, 60.0), raw, at=self.at())

    def _raw(self, said: str, thinking: str, calls: Json) -> Json:
        """The provider's own items: all again, and a signature that nothing compresses."""
        if self.author.startswith("chat"):
            return None
        signed = {"type": "thinking", "thinking": thinking, "signature": f"{self.rng.getrandbits(1600):0400x}"}
        uses = [{"type": "tool_use", "id": c["call_id"], "name": c["name"], "input": c["arguments"]} for c in calls]
        return [signed, {"type": "text", "text": said}, *uses]

    def _end(self, complete: bool) -> Iterator[Event]:
        if not complete:
            return
        if self.best and self.gpu:
            yield self._verified("confirm")
        spent = (self.attempts, len(self.accepted), self.best, f"runs/{self.run_id}/best.py" if self.best else None)
        yield RunEnded(self.run_id, StopReason.ATTEMPTS, *spent, self.attempts * 9.0, at=self.at())
        if self.best and self.rng.random() < 0.1:
            yield self._verified("verify")

    def _verified(self, purpose: Literal["confirm", "verify"]) -> Verified:
        assert self.best
        held = self.rng.random() < 0.95
        why = "within 2 %" if held else "12 % slower"
        found = (self.best_verdict, 3.0, held, why, self.gpu, {"gpu": self.gpu}, _VERSIONS, (self.best_us,))
        return Verified(self.run_id, self.best, purpose, *found, at=self.at())


_STATUSES, _WEIGHTS = list(SHARES), list(SHARES.values())
_DETAILS = {
    Status.REJECTED: "line {a}: `torch.softmax` is a library call; write the computation as a kernel",
    Status.COMPILE_FAILED: "line {a}: at 5:8:\n    e = tl.expo(v)\n        ^\n"
    "AttributeError(\"module 'triton.language' has no attribute 'expo'\")\n"
    "    10     at = tl.program_id(0).to(tl.int64) * cols + i\n>   {a}     e = tl.expo(v)",
    Status.CRASHED: "the kernel read outside of its arguments: {a} bytes after the end of a storage",
    Status.TIMED_OUT: "the kernel did not end within 60 s (case ragged, {a} launches)",
    Status.WRONG: "case ragged (scaled inputs): {a} of 257000 elements wrong ({b:.3g} %); worst at [5, {a}]: "
    "expected {b:.9g}, got nan; {a} of them are NaN",
    Status.IMPOSSIBLE: "faster than the memory allows: {b:.3g} of the least time at the measured bandwidth",
    Status.UNCHECKED: "compiled; the interpreter does not know {a} of its operations",
    Status.CHECKED: "right on 4 small cases, {n} input sets; worst error {b:.2g} of the tolerance; not timed: no GPU",
    Status.CORRECT: "right on {n} comparisons; worst error {b:.2g} of the tolerance; {a} launches timed",
}


@cache
def _templates() -> list[Template]:
    return templates()


@cache
def _system(task: str, gpu: str | None) -> str:
    """As long as the real one: 11 kB, the same in all runs of a task on one kind of GPU."""
    words = random.Random(f"{task} on {gpu}")
    rules = "\n\n".join(sentences(words, 5) for _ in range(22))
    return f"You are an expert GPU kernel engineer ({gpu}).\n\n# Rules\n\n{rules}\n\n# Task\n\n{task_sources()[task]}"


@cache
def _opening() -> str:
    return "Nothing has been tried yet. Say what bounds this task, then send designs in `update` calls, and bench them."
