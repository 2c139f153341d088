"""Receipts as files: runs/<run>/receipts/<number>.json, one for each attempt, that of the verdict that counts."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from agent.record.aside import write_whole
from tools.codec import Json
from tools.errors import StoreError
from tools.verdict import Tier, Verdict

if TYPE_CHECKING:
    from tools.receipt import ReceiptContext
    from tools.update import Update

FOLDER = "receipts"


class ReceiptBook:
    """Writes receipts into `folder`/receipts; with None it only makes them. `setting` is asked when one is due."""

    def __init__(self, folder: Path | None, setting: Callable[[], "ReceiptContext"]) -> None:
        self._folder, self._setting = folder, setting

    def keep(
        self, attempt_id: str, source: str, update: "Update", verdict: Verdict, asked: Tier | None
    ) -> dict[str, Json]:
        """Make the receipt of the verdict that counts, and write it. Raises StoreError when it cannot be written."""
        made = self._made(attempt_id, source, update, verdict, asked)
        if self._folder is not None:
            _write(receipt_path(self._folder, attempt_id), made)
        return made

    def keep_again(
        self, attempt_id: str, source: str, update: "Update", verdict: Verdict, asked: Tier | None
    ) -> tuple[dict[str, Json], Path]:
        """The same for a later verification, which gets a file of its own: 3.verify-1.json, 3.verify-2.json, …"""
        made = self._made(attempt_id, source, update, verdict, asked)
        first = receipt_path(self._folder or Path(), attempt_id)
        taken = len(list(first.parent.glob(f"{first.stem}.verify-*.json")))
        path = first.with_name(f"{first.stem}.verify-{taken + 1}.json")
        _write(path, made)
        return made, path

    def _made(
        self, attempt_id: str, source: str, update: "Update", verdict: Verdict, asked: Tier | None
    ) -> dict[str, Json]:
        from tools.receipt import receipt  # brings numpy; `optimize show` only asks where a receipt lies

        return receipt(
            self._setting(),
            attempt_id=attempt_id,
            source=source,
            update=update,
            verdict=verdict,
            asked=asked,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def receipt_path(run_folder: Path, attempt_id: str) -> Path:
    """Where the receipt of an attempt lies."""
    return run_folder / FOLDER / f"{attempt_id.rpartition('/')[2]}.json"


def _write(path: Path, made: dict[str, Json]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(made, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise StoreError(f"the receipt {path} cannot be written: {error.strerror}") from error
