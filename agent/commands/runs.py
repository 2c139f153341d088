"""`optimize runs`: the stored runs, latest first."""

import json as jsonlib
from typing import Annotated

from cyclopts import App, Parameter

from kerneltune.agent.commands import DATABASE, AsJson, MinSpeedup, RunsDir, Verdict
from kerneltune.agent.settings import chosen_settings
from kerneltune.agent.view.output import columns, run_json, short, standard_page
from kerneltune.agent.view.text import best_in_words, where
from kerneltune.tools.schema.codec import plain

_LIMIT = 20
_SPARE = ("task", "ended", "accepted", "where", "author")  # in a narrow window: an id names its task

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
    model: Annotated[str | None, Parameter(metavar="NAME", help="Only runs whose author's name contains this.")] = None,
    verdict: Verdict = None,
    min_speedup: MinSpeedup = None,
    limit: Annotated[int, Parameter(metavar="N", help="At most this many; 20 by default.")] = _LIMIT,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """List the stored runs, latest first.

    In a terminal, without filters: as `optimize browse`.

    --verdict asks for at least one such attempt, --min-speedup for the best.
    """
    asked = locals()
    settings = chosen_settings(asked)
    if all(value is None for name, value in asked.items() if name not in ("limit", "json", "runs_dir")) and not json:
        from kerneltune.agent.commands.browse import can_browse, look_through

        if limit == _LIMIT and can_browse():
            return look_through(settings)
    from kerneltune.agent.record.query import Filter, at_once, summaries

    wanted = Filter(task, model, verdict, min_speedup, limit)
    database = settings.runs_dir / DATABASE
    found = at_once(database, lambda record: summaries(record, wanted)) if database.exists() else []
    if found is None:
        from kerneltune.agent.record.store import Store  # 0.3 s

        with Store.open(settings.runs_dir, to_look=True) as store:
            found = store.runs(wanted)
    if json:
        print(jsonlib.dumps([{"schema_version": 1} | run_json(r) for r in found], indent=2, allow_nan=False))
        return 0
    if not found:
        is_any = any((task, model, verdict, min_speedup))
        none = f"no runs yet in {plain(str(settings.runs_dir))}; start one with: optimize --task softmax"
        print("no run passes these filters" if is_any else none)
        return 0
    shown = ("run", "task", "author", "where", "attempts", "accepted", "best", "ended")
    table = columns(*shown, right=("attempts", "accepted"), cut=("author", "where"), spare=_SPARE)
    for run in found:
        names = (short(name) for name in (run.task, run.author, where(run)))
        best = best_in_words(run) if run.best_attempt_id else "-"
        table.add_row(run.run_id, *names, str(run.attempts), str(run.accepted), best, run.why or "-")
    standard_page(colour=True).print(table)
    return 0
