"""`optimize runs`. Apart from `optimize tasks`, which needs the workers."""

from pathlib import Path

from kerneltune.agent.record.query import Filter
from kerneltune.agent.record.store import Store
from kerneltune.agent.view.listing import print_runs


def list_runs(runs_dir: Path, wanted: Filter, *, json: bool) -> int:
    """Print the latest stored runs that pass. Raises UsageError."""
    with Store.open(runs_dir) as store:
        print_runs(store.runs(wanted), json=json, any_stored=bool(store.runs(Filter(limit=1))))
    return 0
