"""`optimize selftest`: the corpus of attacks and of honest kernels through this machine's evaluator."""

import difflib
import json as jsonlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerneltune.agent.commands.session import Patience, Workshop, session, workshop
from kerneltune.agent.commands.sources import from_bytes
from kerneltune.agent.events import Event, Note
from kerneltune.agent.settings import Settings
from kerneltune.agent.view.output import LineWriter
from kerneltune.agent.view.verdicts import (
    SpecimenResult,
    is_clean,
    list_specimens,
    print_results,
    result_line,
    results_json,
)
from kerneltune.tools import corpus as corpora
from kerneltune.tools.corpus import Outcome, Specimen, Twin
from kerneltune.tools.evaluator import Evaluator, judge_all
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Tier, Verdict
from kerneltune.tools.task.load import find_task

# What is slow here is slow on purpose, and nothing is quoted from it.
_SHORT = Patience(trace_s=15.0, compile_s=30.0, replay_s=20.0, baselines=("eager",))
Judge = Callable[[Specimen, Verdict, str | None, Twin, bool], Outcome]


@dataclass(frozen=True)
class Corpus:
    """The specimens, and what a verdict on one means (as `tools.corpus.outcome` says it)."""

    specimens: Sequence[Specimen]
    outcome: Judge


def selftest(corpus: Corpus, settings: Settings, *, families: Sequence[str], json: bool, only_list: bool) -> int:
    """Run the corpus; 0 only if every attack is stopped and no honest kernel is rejected. Raises UsageError."""
    chosen = _chosen(corpus.specimens, families)
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
        done = tuple(_all(shop, corpus.outcome, chosen, settings, show))
        gpu = shop.gpu.name if shop.gpu else None
    if json:
        print(jsonlib.dumps(results_json(done, gpu), allow_nan=False))
    else:
        print_results(done, gpu)
    return int(not is_clean(done))


def _chosen(specimens: Sequence[Specimen], families: Sequence[str]) -> list[Specimen]:
    known = sorted({s.family for s in specimens})
    if unknown := [f for f in families if f not in known]:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"the corpus has {', '.join(known) or 'none'}"
        raise UsageError(f"no class {unknown[0]!r}; {hint}")
    return [s for s in specimens if not families or s.family in families]


def _all(
    shop: Workshop, outcome: Judge, chosen: Sequence[Specimen], settings: Settings, show: Callable[[Event], None]
) -> Iterator[SpecimenResult]:
    """One session per task, since opening one takes seconds."""
    runnable = [s for s in chosen if shop.gpu or not s.needs_gpu]
    yield from (_result(s, "skipped", None) for s in chosen if s not in runnable)
    for task in dict.fromkeys(str(s.task) for s in runnable):
        of_task = [s for s in runnable if str(s.task) == task]
        show(Note("", "task", f"{task}: {len(of_task)} files"))
        with session(shop, find_task(task), _SHORT) as opened:
            run = _Run(opened.tools, outcome, settings.tier or "judged", shop.gpu is not None)
            for done, result in enumerate(run.results(of_task, shop.width), 1):
                show(Note("", f"{done}/{len(of_task)}", result_line(result)))
                yield result


@dataclass(frozen=True)
class _Run:
    """The specimens of one task."""

    tools: Evaluator
    outcome: Judge
    tier: Tier
    on_gpu: bool

    def results(self, specimens: Sequence[Specimen], width: int) -> Iterator[SpecimenResult]:
        """Judge them all; twins are traced for their plans, and judged where their times matter."""
        timed = {s.twin for s in specimens if s.twin is not None and s.gain_below is not None}
        twins = {path: self._twin(path, path in timed) for path in {s.twin for s in specimens if s.twin is not None}}
        candidates = (from_bytes(str(s.path), s.path.read_bytes()) for s in specimens)
        for judgement in judge_all(self.tools, candidates, width=width, tier=self.tier):
            specimen = specimens[judgement.index]
            twin = twins[specimen.twin] if specimen.twin else Twin()
            found = self.outcome(specimen, judgement.verdict, judgement.update.sha256, twin, self.on_gpu)
            yield _result(specimen, found, judgement.verdict)

    def _twin(self, path: Path, timed: bool) -> Twin:
        update = self.tools.updater.update(path.read_text())
        judged = timed and self.on_gpu and update.failure is None
        return Twin(update.sha256, self.tools.benches.bench(update, self.tier) if judged else None)


def _result(specimen: Specimen, outcome: Outcome, verdict: Verdict | None) -> SpecimenResult:
    return SpecimenResult(specimen.name, specimen.kind, specimen.family, specimen.says, outcome, verdict)


def shipped_corpus() -> Corpus:
    """The corpus beside this installation. Raises UsageError when it was not installed."""
    root = corpora.corpus_root()
    if root is None:
        raise UsageError("the corpus (kerneltune/corpus) is not installed")
    return Corpus(corpora.load_corpus(root), corpora.outcome)
