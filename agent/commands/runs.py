"""`optimize runs`: the stored runs, latest first."""

import json as jsonlib
from typing import Annotated

from cyclopts import App, Parameter

from kerneltune.agent.commands import AsJson, MinSpeedup, RunsDir, Verdict
from kerneltune.agent.settings import chosen_settings
from kerneltune.agent.view.output import columns, run_json, short, standard_page
from kerneltune.agent.view.text import best_in_words, where
from kerneltune.tools.schema.codec import one_line

command = App(
    name="runs",
    help_epilogue="""
Examples:
    optimize runs --task softmax --limit 5
    optimize runs --model anthropic --min-speedup 1.5
    optimize runs --verdict impossible --json
""",
)


@command.default
def runs(
    *,
    task: Annotated[str | None, Parameter(metavar="TASK", help="Only runs of this task.")] = None,
    model: Annotated[
        str | None,
        Parameter(metavar="NAME", help="Only runs whose author's name contains this."),
    ] = None,
    verdict: Verdict = None,
    min_speedup: MinSpeedup = None,
    limit: Annotated[int, Parameter(metavar="N", help="At most this many; 20 by default.")] = 20,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """List the stored runs, latest first.

    --verdict asks for at least one such attempt, --min-speedup for the best.
    """
    settings = chosen_settings(locals())
    from kerneltune.agent.record.query import Filter
    from kerneltune.agent.record.store import Store

    with Store.open(settings.runs_dir, to_look=True) as store:
        found = store.runs(Filter(task, model, verdict, min_speedup, limit))
        any_stored = bool(found or store.runs(Filter(limit=1)))
    if json:
        print(jsonlib.dumps([{"schema_version": 1} | run_json(r) for r in found], indent=2, allow_nan=False))
        return 0
    if not found:
        print("no run passes these filters" if any_stored else "no runs yet; start one with: optimize --task softmax")
        return 0
    shown = ("run", "task", "author", "where", "attempts", "accepted", "best", "ended")
    table = columns(*shown, right=("attempts", "accepted"), cut=("task", "author", "where"))
    for run in found:
        names = (short(name) for name in (run.task, run.author, where(run)))
        best = best_in_words(run) if run.best_attempt_id else "-"
        table.add_row(one_line(run.run_id), *names, str(run.attempts), str(run.accepted), best, run.why or "-")
    standard_page(colour=True).print(table)
    return 0
