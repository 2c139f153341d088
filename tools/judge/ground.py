"""What a verdict needs to know of the course that a candidate was timed on. Pure data."""

from dataclasses import dataclass, field

from tools.judge.light import Light


@dataclass(frozen=True)
class Ground:
    """Times in µs per forward; `eager_us` is eager launched from Python, the baselines' are device times.
    `resolution` is the relative difference below which nothing can be told apart."""

    light: Light
    slots: int
    l2_bytes: int
    flush_bytes: int
    resolution: float
    eager_us: float
    null_launch_us: float
    copy_gbps: float
    times_us: dict[str, float] = field(default_factory=dict)
    build_s: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def best_us(self) -> float:
        """The fastest baseline's time."""
        return min(self.times_us.values(), default=self.eager_us)

    @property
    def floor_us(self) -> float:
        """Below this a time is impossible; 0 when the reference itself is faster, so that not every byte must move."""
        floor = self.light.floor_us(self.l2_bytes, self.slots)
        return floor if self.best_us >= floor else 0.0
