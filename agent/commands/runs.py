"""`optimize runs`: the stored runs, latest first."""

from typing import Annotated

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.commands import AsJson, MinSpeedup, RunsDir, Verdict
from kerneltune.agent.settings import chosen_settings

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
    task: Annotated[
        str | None, Parameter(metavar="TASK", help="Only runs of this task.", completer=complete.stored_tasks)
    ] = None,
    model: Annotated[
        str | None,
        Parameter(metavar="NAME", help="Only runs whose author's name contains this.", completer=complete.authors),
    ] = None,
    verdict: Verdict = None,
    min_speedup: MinSpeedup = None,
    limit: Annotated[int, Parameter(metavar="N", help="At most this many; 20 unless told.")] = 20,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """List the stored runs, latest first.

    --verdict asks for at least one such attempt, --min-speedup for the best.
    """
    settings = chosen_settings({"runs_dir": runs_dir})
    from kerneltune.agent.record.query import Filter
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.listing import print_runs

    with Store.open(settings.runs_dir) as store:
        found = store.runs(Filter(task, model, verdict, min_speedup, limit))
        print_runs(found, json=json, any_stored=bool(store.runs(Filter(limit=1))))
    return 0
