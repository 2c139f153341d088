"""The three tool calls of one task, joined: what the loop, the command line and later an MCP server all use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kerneltune.tools.bench import Bench
from kerneltune.tools.languages.ptx.host_code import CannotSay
from kerneltune.tools.schema.messages import SassReply
from kerneltune.tools.schema.verdict import Tier, Verdict
from kerneltune.tools.update import Update, Updater


@dataclass(frozen=True)
class Tools:
    """`update` and `bench` for one task on one machine (`reflect` is pure: see `tools.reflect`)."""

    updater: Updater
    benches: Bench
    bench_stage: Literal["checking", "timing"]

    def update(self, source: str, told: Callable[[str], None] = lambda _: None) -> Update:
        """Trace and compile a source; `told` hears when each of the two begins."""
        return self.updater.update(source, told)

    def sass(self, update: Update, variant: str = "") -> SassReply:
        """Each kernel that an update compiled, of the named variant or the default, disassembled."""
        return self.updater.sass(update, variant)

    def as_ptx(self, source: str, update: Update, variant: str = "default") -> str:
        """A PTX candidate from a Triton candidate and what came of its update. Raises CannotSay."""
        return self.updater.as_ptx(source, update, variant)

    def ptx_of(self, source: str) -> str:
        """A PTX candidate from a Triton candidate. Raises CannotSay, also for one that does not compile."""
        update = self.updater.update(source)
        if update.failure is not None:
            raise CannotSay(f"it is refused: {update.failure.detail}")
        return self.updater.as_ptx(source, update)

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """Judge a compiled candidate."""
        return self.benches.bench(update, tier)
