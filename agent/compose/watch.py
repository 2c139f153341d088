"""`optimize watch`: attaches to a stored run, whoever runs it, follows it, plays it back, makes pictures of it."""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from agent.record.events import Event, RunEnded
from agent.record.folder import folder_of, process_of
from agent.record.store import FILE_NAME, Store
from agent.record.trajectory import JUDGED_FILES
from agent.settings import Environment, Settings
from agent.view.choose import ViewChoice, choose_view
from agent.view.gpu_line import gpu_line
from agent.view.player import SPEEDS, Player
from agent.view.replay import IDLE_LIMIT_S, Timeline
from agent.view.replay_film import film_svg, still_svg
from agent.view.replay_lines import print_json, print_plain
from agent.view.replay_place import target
from agent.view.replay_steps import with_steps
from agent.view.summary import NextCommand, summary
from agent.view.watch import Source, watch_on
from tools.codec import DecodeError, decode
from tools.device import GpuInfo
from tools.errors import UsageError

_WIDTH, _HEIGHT = 120, 36
_SLOWEST = 0.01
_SIZES = {"--width": (20, 400), "--height": (4, 200)}


@dataclass(frozen=True)
class Request:
    """What was asked for; `speed` and `at` as typed."""

    run: str | None = None
    speed: str | None = None
    idle_limit_s: float | None = None
    at: str | None = None
    svg: Path | None = None
    animate: bool = False
    width: int | None = None
    height: int | None = None
    json: bool = False
    plain: bool = False


def watch(request: Request, settings: Settings, environment: Environment) -> int:
    """Show a run. The exit code is that of the run when its end was seen: 0 something accepted (of files: all), 1 not,
    or no end, 130 interrupted; 0 when a person left before, or for a picture. Raises UsageError."""
    speed = _speed(request.speed)
    name, _, number = (request.run or "").partition("/")  # of an attempt's id, its place
    at = request.at or number
    player = Player(Timeline(_idle_limit_s(request.idle_limit_s)), target=target(at) if at else None)
    _require_sense(request)
    if not (settings.runs_dir / FILE_NAME).is_file():  # opening it would make an empty one
        raise UsageError(f"no runs in {settings.runs_dir}; make one with: optimize --task softmax")
    with Store.open(settings.runs_dir) as store:
        run = _Record(store, _named(store, name))
        if request.svg:
            return _write(request.svg, request, player, run, speed)
        choice = choose_view(
            is_terminal=sys.stdout.isatty(), term=environment.term, no_color=environment.no_color, ci=environment.ci,
            json=request.json, plain=request.plain,
        )  # fmt: skip
        if choice.kind == "live":
            return _play(Console(no_color=not choice.colour), player, run, speed)
        if at:
            raise UsageError("--at is for the screen and for pictures: lines begin at the beginning")
        return _print(choice, player, run, speed)


def _speed(text: str | None) -> float | None:
    if text is None or text == "max":
        return None if text is None else math.inf
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not _SLOWEST <= speed <= SPEEDS[-2]:
        raise UsageError(f"--speed {text}: give a number above 0 ({_SLOWEST:g} to {SPEEDS[-2]:g}), or max")
    return speed


def _idle_limit_s(seconds: float | None) -> float:
    if seconds is None:
        return IDLE_LIMIT_S
    if not seconds > 0:
        raise UsageError(f"--idle-limit {seconds:g}: give seconds above 0, or inf for silences as long as they were")
    return seconds


def _require_sense(request: Request) -> None:
    of_pictures = {"--animate": request.animate, "--width": request.width, "--height": request.height}
    if request.svg is None and (given := [name for name, value in of_pictures.items() if value]):
        raise UsageError(f"{given[0]} is for pictures: give --svg FILE too")
    for name, value in (("--width", request.width), ("--height", request.height)):
        least, most = _SIZES[name]
        if value is not None and not least <= value <= most:
            raise UsageError(f"{name} {value}: give {least} to {most}")


def _named(store: Store, text: str) -> str:
    if text:
        return store.find_run(text)
    runs = store.run_ids()
    if not runs:
        raise UsageError(f"no runs in {store.path.parent}; make one with: optimize --task softmax")
    return runs[-1]


class _Record:
    """One run's events as they come. Each look is a transaction of its own, which is over before anything is shown."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.run_id, self.folder = run_id, folder_of(store.path.parent, run_id)
        self._store, self._seq = store, 0

    def more(self) -> Sequence[Event]:
        """What is new, at most a page."""
        self._seq, events = self._store.later_events(self.run_id, self._seq)
        return events

    def rest(self) -> Iterator[Event]:
        """All that there is now."""
        while events := self.more():
            yield from events

    def gpu_here(self) -> GpuInfo | None:
        """The GPU of a run that goes on on this machine: readings of it are not stored, but can be had."""
        told = self._store.load_run(self.run_id).machine.get("gpu")
        if process_of(self.folder).state != "running" or told is None:
            return None
        try:
            return decode(GpuInfo, told, "gpu")
        except DecodeError:  # noted by another version
            return None

    @property
    def source(self) -> Source:
        """The same for a player."""
        return Source(self.more, lambda: process_of(self.folder))


def _write(path: Path, request: Request, player: Player, run: _Record, speed: float | None) -> int:
    """A picture of the place that was asked for, or a film up to it; else of the end."""
    player.timeline.extend(with_steps(list(run.rest())))
    player.target = player.target or target("end")
    player.read_all()
    width, height = request.width or _WIDTH, request.height or _HEIGHT
    text = film_svg(player, width, height, speed) if request.animate else still_svg(player, width, height)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--svg {path}: {error.strerror}") from error
    print(f"{path}: {len(text.encode()) / 1024:.0f} KiB", file=sys.stderr)
    return 0


def _print(choice: ViewChoice, player: Player, run: _Record, speed: float | None) -> int:
    player.speed, player.playing = speed or player.speed, speed is not None
    if choice.kind == "json":
        print_json(sys.stdout, player, run.source)
    else:
        print_plain(sys.stdout, player, run.source, lambda: _next_commands(player, run.run_id), colour=choice.colour)
    return _exit_code(player)


def _play(console: Console, player: Player, run: _Record, speed: float | None) -> int:
    """On a terminal: from the beginning with a speed, paused at a place, else at the end, wherever that moves."""
    if speed is not None:
        player.speed, player.playing = speed, True
    player.following = not player.playing and player.target is None
    player.touched = player.target is not None
    with gpu_line(run.gpu_here(), run.run_id, player.overhear):
        watch_on(console, player, run.source)
    if player.left:
        return 0
    console.print(summary(player.state, _next_commands(player, run.run_id)))
    return _exit_code(player)


def _next_commands(player: Player, run_id: str) -> list[NextCommand]:
    known = [
        NextCommand(f"optimize show {run_id}", "all its attempts"),
        NextCommand(f"optimize watch {run_id} --speed 10", "play it from the beginning"),
    ]
    if _judged_files(player):
        return known
    return [*known, NextCommand(f"optimize --resume {run_id}", "go on with this run")]


def _judged_files(player: Player) -> bool:
    started = player.timeline.state(len(player.timeline)).started
    return started is not None and started.author == JUDGED_FILES


def _exit_code(player: Player) -> int:
    """That of the run; 1 when it stopped without an end."""
    ended = next((e for e in reversed(player.timeline.events) if isinstance(e, RunEnded)), None)
    if ended is None or not player.timeline.ended:
        return 1
    if ended.why == "interrupted":
        return 130
    if _judged_files(player):  # as `optimize bench` has it: all of them
        return int(ended.why == "failed" or ended.accepted != ended.attempts)
    return int(ended.why == "failed" or ended.best_attempt_id is None)
