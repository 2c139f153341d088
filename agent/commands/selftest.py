"""`optimize selftest`: the corpus of attacks and of honest kernels through this machine's evaluator."""

import json as jsonlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from rich.text import Text

from kerneltune.agent.commands import AsJson, Tier, Unsandboxed, Width
from kerneltune.agent.settings import Settings, chosen_settings
from kerneltune.agent.view.output import StatusLine, columns, say, standard_page, status_line
from kerneltune.tools.schema.codec import Json, did_you_mean, one_line
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Tier as VerdictTier
from kerneltune.tools.schema.verdict import Verdict

if TYPE_CHECKING:
    from kerneltune.agent.commands.session import Session, Workshop
    from kerneltune.tools.corpus import Outcome, Specimen

SCHEMA_VERSION = 1
FAILURES = ("accepted", "false_alarm")

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
    allow_unsandboxed: Unsandboxed = None,
) -> int:
    """Attack the evaluator of this machine with known cheats.

    Honest kernels that look like cheats are judged too, and must not be rejected.

    Exit code 0: every attack was stopped and no honest kernel rejected; 1: not so; 2: bad input.
    """
    settings = chosen_settings(locals())
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

    chosen = _chosen(specimens, families)
    if only_list:
        _list(chosen, json=json)
        return 0
    with status_line() as status, workshop(settings, status) as shop:
        for warning in shop.warnings:
            with status.cleared():
                say(one_line(f"warning: {warning}"))
        done = tuple(_all(shop, chosen, settings, status))
        gpu = shop.gpu.name if shop.gpu else None
    if json:
        print(jsonlib.dumps(_results_json(done, gpu), allow_nan=False))
    else:
        _print_results(done, gpu)
    return int(not is_clean(done))


def _chosen(specimens: "Sequence[Specimen]", families: Sequence[str]) -> "list[Specimen]":
    known = sorted({s.family for s in specimens})
    if unknown := [f for f in families if f not in known]:
        hint = did_you_mean(unknown[0], known, f"the corpus has {', '.join(known) or 'none'}")
        raise UsageError(f"no class {unknown[0]!r}; {hint}")
    return [s for s in specimens if not families or s.family in families]


@dataclass(frozen=True)
class SpecimenResult:
    """What became of one specimen. `verdict` is None when it was skipped."""

    specimen: "Specimen"
    outcome: "Outcome"
    verdict: Verdict | None = None

    @property
    def name(self) -> str:
        """Its class and name."""
        return f"{self.specimen.family}/{self.specimen.name}"

    @property
    def said(self) -> str:
        """Its verdict in words."""
        return f"{self.verdict.status.value}: {self.verdict.detail}" if self.verdict else ""


def _all(
    shop: "Workshop", chosen: "Sequence[Specimen]", settings: Settings, status: StatusLine
) -> Iterator[SpecimenResult]:
    """Judge them in one session per task, since opening one takes seconds. A failure is shown with its verdict: a run
    may not live to print its table."""
    from kerneltune.agent.commands.session import Patience, session
    from kerneltune.tools.task.load import find_task

    # What is slow here is slow on purpose, and nothing is quoted from it.
    patience = Patience(trace_s=15.0, compile_s=30.0, replay_s=20.0, baselines=("eager",))
    runnable = [s for s in chosen if shop.gpu or not s.needs_gpu]
    yield from (SpecimenResult(s, "skipped") for s in chosen if s not in runnable)
    for task in dict.fromkeys(str(s.task) for s in runnable):
        of_task = [s for s in runnable if str(s.task) == task]
        status.show(f"task {task}: {len(of_task)} files")
        with session(shop, find_task(task), patience) as opened:
            for done, result in enumerate(_judged(opened, of_task, settings.tier or "judged"), 1):
                line = f"{done}/{len(of_task)} {result.name}: {result.outcome}"
                if result.outcome in FAILURES:
                    with status.cleared():
                        say(one_line(f"… {line} ({result.said})"))
                else:
                    status.show(line)
                yield result


def _judged(opened: "Session", specimens: "Sequence[Specimen]", tier: VerdictTier) -> Iterator[SpecimenResult]:
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
        yield SpecimenResult(specimen, found, judgement.verdict)


def is_clean(results: Sequence[SpecimenResult]) -> bool:
    """Whether every attack was stopped and no honest kernel rejected. Nothing run at all is not clean."""
    ran = [r for r in results if r.outcome != "skipped"]
    return bool(ran) and not any(r.outcome in FAILURES for r in ran)


def tallies(results: Sequence[SpecimenResult]) -> list[dict[str, Json]]:
    """Count the results of each class, in alphabetical order."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for r in results:
        counts[r.specimen.family].update((r.specimen.kind, r.outcome))
    return [
        {
            "family": family,
            "attacks": found["attack"],
            "stopped": found["stopped"],
            "honest": found["honest"],
            "false_alarms": found["false_alarm"],
            "skipped": found["skipped"],
        }
        for family, found in sorted(counts.items())
    ]


def _print_results(results: Sequence[SpecimenResult], gpu: str | None) -> None:
    """Print the counts by class, a line for each failure, and the conclusion."""
    page = standard_page(colour=True)
    names = ("class", "attacks", "stopped", "honest", "false alarms", "skipped")
    table = columns(*names, right=names[1:])
    for row in tallies(results):
        table.add_row(*map(str, row.values()))
    page.print(table)
    for result in results:
        if result.outcome in FAILURES:
            what = "NOT STOPPED" if result.specimen.kind == "attack" else "FALSE ALARM"
            line = one_line(f"{what} {result.name}: {result.specimen.says}; {result.said}")
            page.print(Text(line, style="red"))
    page.print(Text(_conclusion(results, gpu)))


def _conclusion(results: Sequence[SpecimenResult], gpu: str | None) -> str:
    ran = Counter(r.specimen.kind for r in results if r.outcome != "skipped")
    outcomes = Counter(r.outcome for r in results)
    stopped, alarms, skipped = outcomes["stopped"], outcomes["false_alarm"], outcomes["skipped"]
    missing = f"; {skipped} skipped ({'this machine cannot tell' if gpu else 'no GPU'})" if skipped else ""
    where = f"on {gpu}" if gpu else "without a GPU"
    return (
        f"{stopped} of {ran['attack']} attacks stopped, {alarms} of {ran['honest']} honest kernels rejected{missing}; "
        f"{where}"
    )


def _results_json(results: Sequence[SpecimenResult], gpu: str | None) -> dict[str, Json]:
    """Return the one object of --json."""
    return {
        "type": "selftest",
        "schema_version": SCHEMA_VERSION,
        "ok": is_clean(results),
        "gpu": gpu,
        "classes": tallies(results),
        "specimens": [
            {
                "name": r.specimen.name,
                "kind": r.specimen.kind,
                "class": r.specimen.family,
                "outcome": r.outcome,
                "status": r.verdict.status.value if r.verdict else None,
                "detail": r.verdict.detail if r.verdict else None,
            }
            for r in results
        ],
    }


def _list(specimens: "Sequence[Specimen]", *, json: bool) -> None:
    """Print the corpus without running it."""
    if json:
        names = ("name", "kind", "family", "says", "needs_gpu")
        version = {"schema_version": SCHEMA_VERSION}
        print(jsonlib.dumps([version | {name: getattr(s, name) for name in names} for s in specimens]))
        return
    for s in sorted(specimens, key=lambda s: (s.family, s.kind, s.name)):
        print(one_line(f"{s.family:16} {s.kind:6} {s.name}{' (GPU)' if s.needs_gpu else ''}: {s.says}"))
