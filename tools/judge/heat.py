"""What one race in one runner process has seen. Data, and the facts of it that a receipt quotes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.codec import Json
from tools.device import GpuSample
from tools.judge.clock import Agreement, Reading
from tools.judge.memo import Finding
from tools.judge.timing import Rules, Series
from tools.runner.protocol import Shares
from tools.verdict import CaseResult, Verdict

_MOST_ROUNDS_TOLD = 200


class Refuted(Exception):
    """The race ends with this verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


@dataclass
class Heat:
    """One race. Times in µs per launch (one forward)."""

    series: Series
    sha256: str
    variant: str = ""
    passes: int = 1  # that fill a block
    nodes: int = 1  # kernel launches of a forward
    overlapping: bool = False  # launches may begin before the one before has ended
    readings: list[Reading] = field(default_factory=list)
    clocks: Agreement = field(default_factory=lambda: Agreement(True, 1.0))
    results: list[CaseResult] = field(default_factory=list)
    launches: int = 0
    warm_us: float = 0.0
    shares: Shares | None = None  # None: all steps are the candidate's own kernels
    memory: Finding | None = None
    seeds: dict[str, str] = field(default_factory=dict)
    sm_clocks_mhz: list[float] = field(default_factory=list)
    samples: list[GpuSample] = field(default_factory=list)
    throttle_reasons: int | None = None
    strangers: int = 0
    idle_s: float = 0.0
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def rules(self) -> Rules:
        """When enough was measured."""
        return self.series.rules

    @property
    def coverage(self) -> float:
        """Share of device time in the candidate's own kernels."""
        if self.shares is None:
            return 1.0
        whole = self.shares.own_us + self.shares.library_us + self.shares.glue_us
        return self.shares.own_us / whole if whole else 0.0

    def facts(self) -> dict[str, Json]:
        """For the receipt."""
        series, clocks = self.series, self.sm_clocks_mhz
        slow = statistics.quantiles(clocks, n=20)[0] if len(clocks) > 1 else None
        return {
            "rounds": [_round_facts(r.blocks, r.sm_clock_mhz) for r in series.rounds[:_MOST_ROUNDS_TOLD]],
            "n_rounds": len(series.rounds),
            "discarded_rounds": series.discarded,
            "measured_s": round(series.measured_s, 4),
            "passes_per_block": self.passes,
            "launches": self.launches,
            "launch_nodes": self.nodes,
            "host_slope": _finite(self.clocks.slope),
            "host_readings": len(self.readings),
            "warm_us": self.warm_us,
            "memory_probe": self.memory.facts() if self.memory else None,
            "verified_groups": len(self.results),
            "own_us": self.shares.own_us if self.shares else None,
            "library_us": self.shares.library_us if self.shares else 0.0,
            "glue_us": self.shares.glue_us if self.shares else 0.0,
            "sm_clock_mhz": {"median": statistics.median(clocks), "p5": slow, "n": len(clocks)} if clocks else None,
            "throttle_reasons": self.throttle_reasons,
            "power_w": _range([s.power_w for s in self.samples]),
            "temperature_c": _range([s.temperature_c for s in self.samples]),
            "foreign_processes": self.strangers,
            "idle_before_s": round(self.idle_s, 3),
            "phases_s": {name: round(seconds, 4) for name, seconds in self.phases_s.items()},
        }


def _round_facts(blocks: Json, sm_clock_mhz: float | None) -> dict[str, Json]:
    told: dict[str, Json] = {arm: [round(us, 4) for us in times] for arm, times in blocks.items()}
    return told | {"sm_mhz": sm_clock_mhz}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _range(values: Sequence[float | None]) -> list[float] | None:
    told = [v for v in values if v is not None]
    return [min(told), max(told)] if told else None
