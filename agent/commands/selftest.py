"""`optimize selftest`: the corpus of attacks and of honest kernels through this machine's evaluator."""

import difflib
import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kerneltune.agent.commands import AsJson, Tier, Unsandboxed, Width
from kerneltune.agent.events import Event, Note
from kerneltune.agent.settings import Settings, chosen_settings
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Tier as VerdictTier
from kerneltune.tools.schema.verdict import Verdict

if TYPE_CHECKING:
    from kerneltune.agent.commands.session import Session, Workshop
    from kerneltune.agent.view.verdicts import SpecimenResult
    from kerneltune.tools.corpus import Outcome, Specimen

command = App(
    name="selftest",
    help_epilogue="""
Examples:
    optimize selftest
    optimize selftest --list
    optimize selftest --class timing --class caching --json
""",
)


@command.default
def selftest(
    *,
    family: Annotated[
        tuple[str, ...],
        Parameter(metavar="CLASS", name="--class", help="Only this class of attacks; may be given again.", negative=""),
    ] = (),
    tier: Tier = None,
    width: Width = None,
    list_only: Annotated[bool, Parameter(name="--list", help="List the corpus, run nothing.", negative="")] = False,
    json: AsJson = False,
    allow_unsandboxed: Unsandboxed = False,
) -> int:
    """Attack the evaluator of this machine with known cheats.

    Honest kernels that look like cheats are judged too, and must not be rejected.

    Exit code 0: every attack was stopped and no honest kernel rejected; 1: not so; 2: bad input.
    """
    settings = chosen_settings({"tier": tier, "width": width, "allow_unsandboxed": allow_unsandboxed or None})
    from kerneltune.tools import corpus

    root = corpus.corpus_root()
    if root is None:
        raise UsageError("the corpus (kerneltune/corpus) is not installed")
    return run_corpus(corpus.load_corpus(root), settings, families=family, json=json, only_list=list_only)


def run_corpus(
    specimens: "Sequence[Specimen]", settings: Settings, *, families: Sequence[str], json: bool, only_list: bool
) -> int:
    """Run the corpus; 0 only if every attack is stopped and no honest kernel is rejected. Raises UsageError."""
    from kerneltune.agent.commands.session import workshop
    from kerneltune.agent.view.output import LineWriter
    from kerneltune.agent.view.verdicts import is_clean, list_specimens, print_results, results_json

    chosen = _chosen(specimens, families)
    if only_list:
        list_specimens(chosen, json=json)
        return 0
    errors = LineWriter(sys.stderr)

    def show(event: Event) -> None:
        if isinstance(event, Note):
            errors.write(f"… {event.topic} {event.text}")

    with workshop(settings, show) as shop:
        for warning in shop.warnings:
            errors.write(f"warning: {warning}")
        done = tuple(_all(shop, chosen, settings, show))
        gpu = shop.gpu.name if shop.gpu else None
    if json:
        print(jsonlib.dumps(results_json(done, gpu), allow_nan=False))
    else:
        print_results(done, gpu)
    return int(not is_clean(done))


def _chosen(specimens: "Sequence[Specimen]", families: Sequence[str]) -> "list[Specimen]":
    known = sorted({s.family for s in specimens})
    if unknown := [f for f in families if f not in known]:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the corpus has {', '.join(known) or 'none'}"
        raise UsageError(f"no class {unknown[0]!r}; {hint}")
    return [s for s in specimens if not families or s.family in families]


def _all(
    shop: "Workshop", chosen: "Sequence[Specimen]", settings: Settings, show: Callable[[Event], None]
) -> "Iterator[SpecimenResult]":
    """Judge them in one session per task, since opening one takes seconds."""
    from kerneltune.agent.commands.session import Patience, session
    from kerneltune.agent.view.verdicts import result_line
    from kerneltune.tools.task.load import find_task

    # What is slow here is slow on purpose, and nothing is quoted from it.
    patience = Patience(trace_s=15.0, compile_s=30.0, replay_s=20.0, baselines=("eager",))
    runnable = [s for s in chosen if shop.gpu or not s.needs_gpu]
    yield from (_result(s, "skipped", None) for s in chosen if s not in runnable)
    for task in dict.fromkeys(str(s.task) for s in runnable):
        of_task = [s for s in runnable if str(s.task) == task]
        show(Note("", "task", f"{task}: {len(of_task)} files"))
        with session(shop, find_task(task), patience) as opened:
            results = _judged(opened, of_task, settings.tier or "judged")
            for done, result in enumerate(results, 1):
                show(Note("", f"{done}/{len(of_task)}", result_line(result)))
                yield result


def _judged(opened: "Session", specimens: "Sequence[Specimen]", tier: VerdictTier) -> "Iterator[SpecimenResult]":
    """Judge the specimens of one task; twins are traced for their plans, and judged where their times matter."""
    from kerneltune.agent.commands.bench import from_bytes
    from kerneltune.tools.corpus import Twin, outcome
    from kerneltune.tools.evaluator import judge_all

    def twin(path: Path) -> Twin:
        update = opened.tools.updater.update(path.read_text())
        judged = path in timed and on_gpu and update.failure is None
        return Twin(update.sha256, opened.tools.benches.bench(update, tier) if judged else None)

    on_gpu, timed = opened.gpu is not None, {s.twin for s in specimens if s.gain_below is not None}
    twins = {path: twin(path) for path in {s.twin for s in specimens} if path is not None}
    candidates = (from_bytes(str(s.path), s.path.read_bytes()) for s in specimens)
    for judgement in judge_all(opened.tools, candidates, width=opened.workshop.width, tier=tier):
        specimen = specimens[judgement.index]
        its_twin = twins[specimen.twin] if specimen.twin else Twin()
        found = outcome(specimen, judgement.verdict, judgement.update.sha256, its_twin, on_gpu)
        yield _result(specimen, found, judgement.verdict)


def _result(specimen: "Specimen", outcome: "Outcome", verdict: Verdict | None) -> "SpecimenResult":
    from kerneltune.agent.view.verdicts import SpecimenResult

    return SpecimenResult(specimen.name, specimen.kind, specimen.family, specimen.says, outcome, verdict)
