"""`optimize runs`, `show` and `merge`: the commands that read the record, or join records. No logic, nothing heavy."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kerneltune.agent import complete
from kerneltune.agent.cli_parameters import AsJson, MinSpeedup, RunsDir, Verdict
from kerneltune.agent.settings import chosen_settings, environment


def register(app: App) -> None:
    """Add the commands."""
    app.command(runs, help_epilogue=_RUNS)
    app.command(show, help_epilogue=_SHOW)
    app.command(merge, help_epilogue=_MERGE)


_RUNS = """
Examples:
    optimize runs --task softmax --limit 5
    optimize runs --model anthropic --min-speedup 1.5
    optimize runs --verdict impossible --json
"""


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
    from kerneltune.agent.commands.runs import list_runs
    from kerneltune.agent.record.query import Filter

    return list_runs(settings.runs_dir, Filter(task, model, verdict, min_speedup, limit), json=json)


_SHOW = """
Examples:
    optimize show 20260101-120000-softmax-ab12       a run and its attempts
    optimize show 20260101-12 --verdict wrong        the start of an id does
    optimize show 20260101-120000-softmax-ab12/7     an attempt
    optimize show 20260101-120000-softmax-ab12/7 --source > mine.py
    optimize show 20260101-120000-softmax-ab12/7 --conversation
    optimize show 20260101-120000-softmax-ab12/7 --sass --against 20260101-120000-softmax-ab12/3
    optimize show 20260101-120000-softmax-ab12 --ptx > best.ptx
"""


def show(
    name: Annotated[
        str,
        Parameter(help="A run, or RUN/NUMBER for an attempt, or the start of either.", completer=complete.attempts),
    ],
    /,
    *,
    source: Annotated[bool, Parameter(help="Only the source, exactly as it is.", negative="")] = False,
    diff: Annotated[bool, Parameter(help="Only the diff to the parent.", negative="")] = False,
    conversation: Annotated[bool, Parameter(help="Only what was said, up to that attempt.", negative="")] = False,
    receipt: Annotated[bool, Parameter(help="Only the receipt.", negative="")] = False,
    sass: Annotated[bool, Parameter(help="Only its instructions, with source lines, counted.", negative="")] = False,
    ptx: Annotated[bool, Parameter(help="Only the PTX that its kernels are assembled from.", negative="")] = False,
    against: Annotated[
        str | None,
        Parameter(
            metavar="ATTEMPT", help="With --sass or --ptx: what differs from this one.", completer=complete.attempts
        ),
    ] = None,
    verdict: Verdict = None,
    min_speedup: MinSpeedup = None,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Show a stored run, or all that is known of one attempt.

    --source, --diff, --receipt, --sass and --ptx of a run are those of its best attempt. For --sass and --ptx the
    kernels are compiled again, on any machine, and it is said whether they are those that were judged.
    """
    settings = chosen_settings({"runs_dir": runs_dir})
    from kerneltune.agent.commands.show import Parts, show_stored
    from kerneltune.agent.record.query import Filter

    parts = Parts(source, diff, conversation, receipt, sass, ptx, against)
    wanted = Filter(verdict=verdict, min_speedup=min_speedup)
    return show_stored(name, parts, wanted, settings, environment(), json=json)


_MERGE = """
Examples:
    optimize merge ../other-machine/runs/runs.db
    optimize merge a/runs.db b/runs.db --dry-run
"""


def merge(
    *others: Annotated[Path, Parameter(help="Databases of other machines, or their runs directories.")],
    dry_run: Annotated[bool, Parameter(help="Say what would come, and change nothing.", negative="")] = False,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Join the records of other machines into this one.

    Nothing is lost, and nothing doubled.

    Exit code 0: all is here; 1: some runs contradict what is here and were left out; 2: bad input.
    """
    settings = chosen_settings({"runs_dir": runs_dir})
    from kerneltune.agent.commands.merge import merge_databases

    return merge_databases(others, settings.runs_dir, dry_run=dry_run, json=json)
