"""The screen, as stored text.

After a wanted change: `python -m tests.agent.view.test_view_render`, then read the diff of `renderings/`.
"""

import re
import textwrap
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, reduce
from io import StringIO
from itertools import groupby
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.text import Text

from kerneltune.agent.attempt import Attempt, Controls, StopReason
from kerneltune.agent.events import Event, Judged, Proposed, RunStopping, Said
from kerneltune.agent.record.query import RunSummary
from kerneltune.agent.view.live import RunSteering
from kerneltune.agent.view.plain import NextCommand, summary, summary_text
from kerneltune.agent.view.render import (
    HiddenRows,
    Library,
    Listing,
    MadePage,
    Pane,
    ScreenFrame,
    Ui,
    best_facts,
    braille,
    curve_of,
    first_line,
    line,
    log_lines,
    page_lines,
    render,
    window,
    wrapped,
)
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.agent.view.text import verdict_label, verdict_style
from kerneltune.tools.schema.codec import plain
from kerneltune.tools.schema.verdict import Status
from tests.agent.view.scripts import CPU_RUN, ENDED, GPU_RUN, NOW, STEERED, many_attempts, started

FOLDER = Path(__file__).parent / "renderings"
SIZES = ((60, 16), (80, 24), (120, 40), (200, 60), (320, 80))
RUNS = {"cpu": CPU_RUN, "gpu": GPU_RUN}
KEYS = tuple(RunSteering(Controls()).keys(ViewState()))
PAGES = {
    "help": Ui(page="help", keys=KEYS),
    "attempt": Ui(selected=4, page="attempt", keys=KEYS),
    "diff": Ui(selected=7, page="diff", keys=KEYS),
    "filtered": Ui(attempts=Listing("row", 1), keys=KEYS),
    "chosen": Ui(selected=2, diff=True, keys=KEYS, note="limits raised by a quarter of what was given"),
}
SECOND = "20260102-120000-rms_norm-1a2b3c4d"
STORED_RUNS = tuple(
    RunSummary(
        run_id, task, author, "sm_90", gpu, datetime(2026, 1, 2, 12, tzinfo=UTC), 24, 20, f"{run_id}/7", us, over, why,
        by_status={"wrong": 4, "correct": 20},
    )
    for run_id, task, author, gpu, us, over, why in (
        ("20260103-120000-softmax-00aa11bb", "softmax", "offline", None, None, None, None),
        (SECOND, "rms_norm", "anthropic:claude-x", "NVIDIA H200", 66.4, 1.21, StopReason.ATTEMPTS),
    )
)  # fmt: skip
NEXT = (
    NextCommand("optimize --resume r-7f3a", "go on with this run"),
    NextCommand("optimize --task softmax", "on a machine with an NVIDIA GPU: get times"),
    NextCommand("optimize runs", "list the stored runs"),
)


def state_of(events: list[Event]) -> ViewState:
    return reduce(fold, events, ViewState())


def drawn(page: RenderableType, width: int, height: int, *, colour: bool = False) -> str:
    console = Console(
        file=StringIO(), width=width, height=height, force_terminal=colour, color_system="256" if colour else None
    )
    console.print(page)
    assert isinstance(console.file, StringIO)
    return "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())


def lines_of(frame: ScreenFrame) -> list[list[Segment]]:
    console = Console(file=StringIO(), width=frame.width, height=frame.height, force_terminal=True)
    return console.render_lines(frame, console.options.update_dimensions(frame.width, frame.height))


@cache
def stored_renderings() -> dict[str, str]:
    """File name -> what it should hold."""
    pages = {}
    for name, events in RUNS.items():
        for width, height in SIZES:
            page = render(state_of(events), (width, height), NOW)
            pages[f"{name}_{width}x{height}.txt"] = drawn(page, width, height)
        for which, ui in PAGES.items():
            pages[f"{name}_{which}.txt"] = drawn(render(state_of(events), (100, 36), NOW, ui), 100, 36)
        pages[f"{name}_summary.txt"] = summary_text(state_of([*events, ENDED]), NEXT, width=100)
    pages["many_120x40.txt"] = drawn(render(state_of(many_attempts(1000)), (120, 40), NOW), 120, 40)
    for width, height in SIZES[:3]:
        frame = render(ViewState(), (width, height), NOW, Ui(page="runs", run=SECOND), Library(STORED_RUNS))
        pages[f"runs_{width}x{height}.txt"] = drawn(frame, width, height)
    paused = state_of([*GPU_RUN, *STEERED])
    paused_ui = Ui(keys=tuple(RunSteering(Controls()).keys(paused)))
    pages["paused_80x24.txt"] = drawn(render(paused, (80, 24), NOW, paused_ui), 80, 24)
    return pages


STORED = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.txt"))}


@pytest.mark.parametrize("name", STORED)
def test_the_screen_is_as_stored(name: str) -> None:
    assert stored_renderings()[name] == STORED[name]


def test_every_screen_is_stored() -> None:
    assert set(stored_renderings()) == set(STORED)


def test_no_rendering_of_a_run_without_a_gpu_contains_a_time() -> None:
    states = [state_of(CPU_RUN[:n]) for n in range(len(CPU_RUN) + 1)]
    for width, height in ((20, 5), (80, 24), (120, 40), (200, 60), (300, 90)):
        pages = "".join(drawn(render(s, (width, height), NOW), width, height) for s in states)
        pages += drawn(summary(states[-1], NEXT), width, height)
        for word in ("µs", "speed-up", "speed of light", "baseline"):
            assert word not in pages


def test_a_run_without_a_gpu_says_so_and_how_to_get_times() -> None:
    page = drawn(render(state_of(CPU_RUN), (120, 40), NOW), 120, 40)
    assert "no GPU: results are `checked`, not timed — run on a machine with an NVIDIA GPU to get times" in page


@cache
def states_of_any_length() -> tuple[ViewState, ...]:
    return tuple(map(state_of, ([], GPU_RUN[:1], CPU_RUN, [*GPU_RUN, ENDED], many_attempts(60))))


@pytest.mark.parametrize("width", [1, 20, 40, 79, 80, 100, 150, 400])
@pytest.mark.parametrize("height", [1, 5, 11, 12, 24, 33, 100])
def test_a_frame_fills_exactly_the_terminal_at_every_size(width: int, height: int) -> None:
    for state in states_of_any_length():
        lines = drawn(render(state, (width, height), NOW), max(width, 20), height).split("\n")[:-1]
        assert len(lines) == max(height, 4)
        assert max(map(len, lines)) <= max(width, 20)


def test_the_newest_attempt_is_visible_however_many_there_are() -> None:
    page = drawn(render(state_of(many_attempts(100)), (80, 24), NOW), 80, 24)
    assert "⋮ " in page
    assert " earlier" in page
    assert re.search(r"^ +100 ", page, re.MULTILINE)


def test_the_screen_fits_before_anything_is_known() -> None:
    assert "starting" in drawn(render(ViewState(), (80, 24), NOW), 80, 24)


def test_what_a_model_writes_cannot_drive_the_terminal() -> None:
    evil = "\x1b[2J\x1b]0;owned\x07[bold]x[/bold]\x9b31m\rrow\u202e \ud800"
    proposed = Proposed("r-7f3a", "r-7f3a/8", 8, None, evil, evil, at=NOW)
    state = state_of([*GPU_RUN, proposed])
    page = drawn(render(state, (200, 60), NOW), 200, 60)
    assert not set("\x1b\x07\x9b\r\u202e\ud800") & set(page)
    assert "[bold]x[/bold]" in page
    page.encode()


def test_every_status_has_a_symbol_and_a_word_of_its_own() -> None:
    assert len({verdict_style(s).symbol for s in Status}) == len(Status)
    assert {len(verdict_label(s)) for s in Status} == {len(verdict_label(Status.CORRECT))}
    assert all(s.value in verdict_label(s).plain for s in Status)


def test_no_information_is_in_colour_alone() -> None:
    page = render(state_of(GPU_RUN), (120, 40), NOW)
    coloured = drawn(page, 120, 40, colour=True)
    assert "\x1b[" in coloured
    uncoloured = re.sub("\x1b\\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in uncoloured.splitlines()] == drawn(page, 120, 40).splitlines()


def test_a_long_source_is_shown_from_its_first_kernel() -> None:
    lines = [*["import x"] * 30, "@triton.jit", *["    body"] * 30]
    assert first_line(lines, 20) == 30
    assert first_line(lines, 61) == 0
    assert first_line([*["x"] * 50, "@triton.jit", "y"], 20) == 32


def test_the_summary_names_what_was_proved_where_and_what_to_type() -> None:
    told = summary_text(state_of([*CPU_RUN, ENDED]), NEXT)
    assert "right in the CPU interpreter, not timed" in told
    assert "runs/r-7f3a/best.py" in told
    assert all(entry.command in told for entry in NEXT)
    assert "right and timed on NVIDIA H200" in summary_text(state_of([*GPU_RUN, ENDED]))
    wrong_only = [e for e in CPU_RUN if not (isinstance(e, Judged) and e.verdict.accepted)]
    assert "nothing: none of" in summary_text(state_of(wrong_only))


def test_best_and_newest_are_in_view_among_a_thousand() -> None:
    state = state_of(many_attempts(1000))
    for _, height in SIZES:
        shown = window(state, height - 14)
        assert [r.number for r in shown if isinstance(r, Attempt)][-1] == 1000
        if height > 20:
            assert state.best_id in [r.attempt_id for r in shown if isinstance(r, Attempt)]
        hidden = sum(r.count for r in shown if isinstance(r, HiddenRows))
        assert height < 20 or hidden + sum(isinstance(r, Attempt) for r in shown) == 1000


@pytest.mark.parametrize("selected", [None, 1, 2, 5, 50, 57, 58, 60])
@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 9, 30, 59, 60, 61])
def test_the_window_holds_the_chosen_row_and_counts_what_it_hides(selected: int | None, room: int) -> None:
    shown = window(state_of(many_attempts(60)), room, at=selected and selected - 1)
    assert len(shown) <= room
    numbers = [r.number for r in shown if isinstance(r, Attempt)]
    assert (selected or 60) in numbers
    assert numbers == sorted(set(numbers))
    if room >= 6:
        assert len(shown) == room or not any(isinstance(r, HiddenRows) for r in shown) or len(shown) == room - 1
        assert sum(r.count for r in shown if isinstance(r, HiddenRows)) + len(numbers) == 60


def test_the_curve_follows_the_best_and_shows_what_it_was_chosen_by_without_a_gpu() -> None:
    timed, checked = curve_of(state_of(GPU_RUN)), curve_of(state_of(CPU_RUN))
    assert timed.kind == "speed-up"
    assert [round(v or 0, 2) for v in timed.values] == [0.82, 1.0, 1.27, 1.27, 1.27, 1.27]
    third = 1e9 / 3
    assert (checked.kind, checked.values) == ("bytes", (1e9, 5e8, third, third, third, third))
    assert curve_of(ViewState()).values == ()


def test_the_curve_is_over_one_baseline_also_where_the_first_attempts_met_a_slower_one_alone() -> None:
    state = state_of(GPU_RUN)
    first, *others = state.attempts
    assert first.verdict is not None
    eager = tuple(c for c in first.comparisons if c.baseline == "eager")
    early = replace(first, verdict=replace(first.verdict, comparisons=eager))
    curve = curve_of(replace(state, attempts=(early, *others)))
    assert [round(v or 0, 2) for v in curve.values] == [0.82, 1.0, 1.27, 1.27, 1.27, 1.27]


def test_no_bar_ends_at_a_speed_of_light_that_the_best_is_beyond() -> None:
    state = state_of(GPU_RUN)
    row = next(a for a in state.attempts if a.number == 3)
    assert row.verdict is not None
    beyond = replace(row, verdict=replace(row.verdict, sol_fraction=1.87))
    attempts = tuple(beyond if a is row else a for a in state.attempts)
    facts = [text.plain for text in best_facts(replace(state, attempts=attempts, best_id=row.attempt_id), 100)]
    assert any("187% of speed of light (skips work of the reference)" in text for text in facts)
    assert next(text for text in facts if "┃" in text).endswith("1.27x")


def test_a_bar_says_how_far_the_best_is_from_the_number_to_beat_and_from_the_speed_of_light() -> None:
    for number, told, marks in (
        (3, "1.27x of 1.51x at the speed of light", ("━", "┃", "━", "─")),  # beyond the mark
        (1, "0.82x of 1.51x at the speed of light", ("━", "─", "┃", "─")),  # short of it
    ):
        state = state_of(GPU_RUN)
        row = next(a for a in state.attempts if a.number == number)
        [bar] = [text.plain for text in best_facts(replace(state, best_id=row.attempt_id), 100) if "┃" in text.plain]
        assert told in bar
        assert tuple(run for run, _ in groupby(bar.split()[0])) == marks


def test_the_end_is_estimated_by_the_limit_that_comes_first() -> None:
    state = state_of(GPU_RUN)  # 6 of 24 attempts after 72 s of 600 s
    assert state.left_s(NOW) == pytest.approx(18 * 72 / 6)
    assert "about 3m 36s left" in drawn(render(state, (120, 40), NOW), 120, 1)
    assert state.left_s(NOW + 500) == pytest.approx(600 - 572)
    assert state_of(GPU_RUN[:12]).left_s(NOW) is None  # too early to tell
    assert state_of([*GPU_RUN, ENDED]).left_s(NOW) is None


def test_a_page_that_is_made_is_waited_for_and_then_shown_whole() -> None:
    state, ui = state_of([*GPU_RUN, ENDED]), Ui(selected=3, page="sass")
    asked = ("r-7f3a/3", "sass")
    waiting = Library(offers=("sass",), made={asked: MadePage(None, NOW)})
    assert "being made" in page_lines(state, ui, 80, NOW, waiting)[0].plain
    text = Text("\n".join(f"{i:04} \x1b[2J LDG.E.128" for i in range(500)))
    made = Library(offers=("sass",), made={asked: MadePage((text,))})
    lines = page_lines(state, ui, 80, NOW, made)
    assert (len(lines), lines[499].plain.split()[0], "\x1b" in lines[0].plain) == (500, "0499", False)
    assert "1-21 of 500" in drawn(render(state, (80, 24), NOW, ui, made), 80, 24)


def test_dots_stay_inside_their_grid_whatever_the_values() -> None:
    for values in ((1.0,), (1.0, 1.0), (None, None, 2.0), tuple(float(i) for i in range(5000))):
        known = [v for v in values if v is not None]
        for width, height in ((1, 1), (2, 1), (40, 4)):
            grid = braille(values, width, height, min(known), max(known))
            assert [len(row) for row in grid] == [width] * height
            assert any(map(any, grid))


@pytest.mark.parametrize("width", [20, 33, 80, 111, 151, 260])
@pytest.mark.parametrize("height", [4, 8, 13, 24, 50])
@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_page_fills_exactly_the_terminal(page: str, width: int, height: int) -> None:
    for events in ([], GPU_RUN, CPU_RUN):
        frame = render(state_of(events), (width, height), NOW, PAGES[page])
        assert len(lines_of(frame)) == height
        assert {sum(s.cell_length for s in made) for made in lines_of(frame)} == {width}


def test_wide_characters_and_escapes_keep_every_line_as_wide_as_the_screen() -> None:
    odd = "日本語のカーネル ✔ e\u0301 👩\u200d🔬 \x1b[31mred\t\u202e"
    state = state_of([*GPU_RUN, Proposed("r-7f3a", "r-7f3a/8", 8, "r-7f3a/7", odd * 50, odd * 9, at=NOW)])
    for ui in (Ui(), *PAGES.values(), Ui(diff=True)):
        frame = render(state, (150, 50), NOW, ui)
        assert {sum(s.cell_length for s in made) for made in lines_of(frame)} == {150}
        assert all(s.text.isprintable() for made in lines_of(frame) for s in made)


def text_of(made: list[Segment]) -> str:
    return "".join(segment.text for segment in made)


def cut(made: Text, width: int) -> str:
    return drawn(Pane([made]), width, 1).rstrip("\n")


def test_a_line_that_is_cut_says_so_wherever_its_parts_end() -> None:
    for parts in (["abcdef"], ["abc", "def"], ["ab", ("cd", "bold"), "e", "f"], ["日本語"]):
        made = cut(line(*parts), 5)
        assert cell_len(made) <= 5
        assert made.endswith("…")
    assert cut(line("abc", "def", ""), 6) == "abcdef"


def test_marks_without_a_width_of_their_own_are_not_shown() -> None:
    for mark in ("\ufe0f", "\u00ad", "\u061c", "\u180e", "\U000e0041", "\U000e0100"):
        assert line(f"  \u2764{mark} naïve").plain == "  \u2764 naïve"
        assert plain(f"a{mark}b") == "ab"
    assert line("    é = 1").plain == "    é = 1"  # indented code stays indented


def test_what_is_said_in_wide_characters_is_wrapped_and_not_cut() -> None:
    text = "日本語のカーネルは行ごとに一つのプログラムを使う " * 12 + "the end"
    for width in (20, 41, 80):
        lines = wrapped(text, width)
        assert max(map(cell_len, lines)) <= width
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert wrapped("é " * 100, width) == textwrap.wrap("é " * 100, width)
    assert (wrapped("", 9), wrapped("\u3000", 9)) == ([], [])
    state = fold(state_of(GPU_RUN), Said("r-7f3a", "assistant", text, at=NOW))
    frame = render(state, (100, 60), NOW)
    assert "the end" in "\n".join(map(text_of, lines_of(frame)))
    assert "…" not in "".join(made.plain for made in log_lines(state, 40, 30)[-20:])


def test_of_several_answers_at_once_the_one_that_began_last_is_shown_whole() -> None:
    def piece(text: str, conversation: str) -> Said:
        return Said("r-7f3a", "assistant", text, final=False, conversation=conversation, at=NOW)

    begun = state_of([piece("one ", "1"), piece("uno ", "2"), piece("two", "1"), piece("due", "2")])
    assert begun.streaming == "uno due"
    assert fold(begun, Said("r-7f3a", "assistant", "uno due", conversation="2", at=NOW)).streaming == "one two"
    assert state_of([piece("uno", "2"), piece("one", "1"), STEERED[0]]).streaming == "one"


def test_a_paused_run_that_shall_stop_is_stopping() -> None:
    state = state_of([*GPU_RUN, *STEERED, RunStopping("r-7f3a", at=NOW)])
    assert "stopping" in text_of(lines_of(render(state, (120, 40), NOW))[0])
    assert state.is_ending


def test_a_best_that_was_not_timed_on_a_gpu_is_not_blamed_on_its_absence() -> None:
    for events, told in ((CPU_RUN, True), ([started("NVIDIA H200"), *CPU_RUN[1:]], False)):
        block = "\n".join(made.plain for made in best_facts(state_of(events), 100))
        assert ("no GPU" in block) is told


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), float("-inf"), 0.0, 1e300])
def test_numbers_that_cannot_be_are_shown_and_not_drawn(strange: float) -> None:
    events: list[Event] = []
    for event in GPU_RUN:
        if isinstance(event, Judged) and event.verdict.timing:
            timing = replace(event.verdict.timing, median_us=strange)
            compared = tuple(replace(c, speedup=strange, baseline_us=strange) for c in event.verdict.comparisons)
            verdict = replace(event.verdict, timing=timing, comparisons=compared, sol_fraction=strange)
            event = replace(event, verdict=verdict, bench_s=strange, rank_key=(strange,))
        events.append(event)
    state = reduce(fold, [*events, replace(ENDED, elapsed_s=strange)], ViewState())
    assert all(value is None or value < 1e18 for value in curve_of(state).values)
    assert drawn(render(state, (120, 40), NOW), 120, 40)
    assert summary_text(state)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, text in stored_renderings().items():
        (FOLDER / file_name).write_text(text, encoding="utf-8")
