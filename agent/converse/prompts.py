"""The words of a run: what all of its conversations are told, made from the task, the machine and the attempts.

Nothing of a held-out case gets into them: cases that are held out are left out, and verdicts pass `author_view`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.authors.base import Attempt
from agent.converse.conversation import Trouble
from agent.converse.feedback import prediction_words
from agent.workbench import Workbench
from prompts import render
from tools.codec import Json, encode
from tools.gpus import Gpu
from tools.receipt import author_view
from tools.roofline import speed_of_light
from tools.spec import CaseSpec, TaskSpec

_BEST, _NEWEST = 5, 12  # attempts in a history
_PREDICTIONS = 6
_TOLD = 160  # characters of a result in a table
_DETAIL = 1_500  # of the latest failure
_HARDWARE = {80: "sm_80", 86: "sm_80", 89: "sm_89", 90: "sm_90", 100: "sm_100", 103: "sm_100"}
_ARITHMETIC = {
    "float32": "float32 throughout; TF32 or 16-bit products are too coarse",
    "tf32_ok": "float32; products may be TF32",
    "float16": "float16 operands, float32 sums",
    "bfloat16": "bfloat16 operands, float32 sums",
    "float64": "float64 throughout",
}


class RunPrompts:
    """See `agent.strategies.studio.Prompts`. `hardware`: the GPU that is written for; `gpu`: the one that times, if
    any; `room`: attempts that are left."""

    def __init__(self, bench: Workbench, hardware: Gpu, gpu: str | None, room: Callable[[], int]) -> None:
        self._bench, self._room = bench, room
        self.system = system_prompt(bench.task, hardware, gpu)

    def opening(self, seeds: tuple[Attempt, ...] = ()) -> str:
        """The first words of a conversation."""
        return render("opening.j2", seeds=[self._shown(s) for s in seeds], room=self._room()).strip()

    def crossover(self, first: Attempt, second: Attempt) -> str:
        """The first words of a conversation that shall join two attempts."""
        return render("crossover.j2", parents=[self._shown(first), self._shown(second)], room=self._room()).strip()

    def nudge(self, trouble: Trouble) -> str:
        """The answer to a reply that called no tool."""
        return render("nudge.j2", trouble=trouble).strip()

    def history(self) -> str:
        """What was tried and what came of it, in bounded length."""
        attempts, leader = list(self._bench.attempts), self._bench.best
        kept = _kept(attempts)
        decided = self._bench.predictions
        wrong = [a for a in attempts if not a.verdict.accepted]
        return render(
            "history.j2",
            hidden=len(attempts) - len(kept),
            rows=[self._row(a) for a in kept],
            predictions=[prediction_words(p) for p in decided[-_PREDICTIONS:]],
            confirmed=sum(p.outcome == "confirmed" for p in decided),
            decided=sum(p.outcome != "open" for p in decided),
            best=self._shown(leader) if leader else None,
            failure=self._failure(wrong[-1]) if wrong else None,
            room=self._room(),
        ).strip()

    def _shown(self, attempt: Attempt) -> dict[str, Any]:
        source = attempt.proposal.source.strip()
        return {"number": attempt.number, "told": told(attempt, self._bench.task), "source": source}

    def _row(self, attempt: Attempt) -> dict[str, Any]:
        parent = attempt.parent_id.rpartition("/")[2] if attempt.parent_id else "-"
        words = _cell(attempt.proposal.rationale)
        return {
            "number": attempt.number,
            "parent": parent,
            "told": _cell(told(attempt, self._bench.task)),
            "rationale": words,
        }

    def _failure(self, attempt: Attempt) -> dict[str, Any]:
        verdict = author_view(attempt.verdict, self._bench.task)
        return {"number": attempt.number, "detail": f"{verdict.status.value}: {verdict.detail[:_DETAIL]}"}


def system_prompt(task: TaskSpec, hardware: Gpu, gpu: str | None) -> str:
    """What every request of a run begins with."""
    arch = f"sm_{hardware.arch}"
    return render(
        "system.j2",
        gpu=gpu,
        arch=arch,
        language=render("language/triton.j2").strip(),
        hardware=_hardware(hardware).strip(),
        task=_task(task, hardware).strip(),
    ).strip()


def told(attempt: Attempt, task: TaskSpec) -> str:
    """A verdict in one line."""
    verdict = author_view(attempt.verdict, task)
    if verdict.timing is None:
        return verdict.status.value if verdict.accepted else f"{verdict.status.value}: {verdict.detail}"
    ratios = ", ".join(f"{c.speedup:.2f}x {c.baseline}" for c in verdict.comparisons)
    sol = f", {verdict.sol_fraction:.0%} of the speed of light" if verdict.sol_fraction is not None else ""
    return f"{verdict.timing.median_us:.2f} us{f' ({ratios})' if ratios else ''}{sol}"


def _kept(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The best few and the newest, in the order of their numbers."""
    ranked = sorted((a for a in attempts if a.verdict.accepted), key=lambda a: (a.rank_key, a.number))[:_BEST]
    newest = sorted(attempts, key=lambda a: a.number)[-_NEWEST:]
    return sorted({a.attempt_id: a for a in [*ranked, *newest]}.values(), key=lambda a: a.number)


def _cell(text: str) -> str:
    """Text as a cell of a table."""
    flat = " ".join(text.split()).replace("|", "/")
    return flat if len(flat) <= _TOLD else f"{flat[: _TOLD - 1]}…"


def _task(task: TaskSpec, hardware: Gpu) -> str:
    sol = speed_of_light(task.main, hardware, task.precision)
    return render(
        "task.j2",
        name=task.name,
        precision=_ARITHMETIC.get(task.precision, task.precision),
        notes=task.notes,
        bytes_moved=task.main.bytes_moved,
        flops=task.main.flops,
        sol_us=sol.target_us,
        bound=sol.bound,
        gpu_name=hardware.name,
        cases=[_case(case) for case in task.cases if not case.held_out],
        source=task.source.strip(),
    )


def _hardware(gpu: Gpu) -> str:
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in gpu.tflops.items())
    return render(
        f"gpu/{_HARDWARE.get(gpu.arch, 'generic')}.j2",
        name=gpu.name,
        multiprocessors=gpu.multiprocessors,
        bandwidth_gbps=gpu.bandwidth_gbps,
        measured_copy_gbps=gpu.measured_copy_gbps,
        l2_mib=gpu.l2_bytes >> 20,
        shared_kib=gpu.shared_per_block_bytes >> 10,
        warps_per_sm=gpu.warps_per_sm,
        rates=rates,
    )


def _case(case: CaseSpec) -> str:
    """Its name, and what forward and the constructor are called with."""
    init = f"; constructor({', '.join(map(_value, encode(case.init_args)))})" if case.init_args else ""
    returned = _value(encode(case.outputs))
    return f"{case.name}: forward({', '.join(map(_value, encode(case.inputs)))}) -> {returned}{init}"


def _value(tree: Json) -> str:
    if isinstance(tree, Mapping) and "$tensor" in tree:
        spec = tree["$tensor"]
        assert isinstance(spec, Mapping)
        return f"{spec['dtype']}{list(spec['shape'])}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key}: {_value(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, list):
        return f"({', '.join(map(_value, tree))})"
    return str(tree)
