"""The views for pipes: plain lines, NDJSON, and the choice between views."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import GivenFile, LlmTurn, Origin, SearchPoint, StopReason
from kerneltune.agent.events import (
    Event,
    GpuReading,
    GpuSampled,
    Judged,
    Note,
    Proposed,
    RunEnded,
    RunStarted,
    proposed_attempt,
)
from kerneltune.agent.settings import Environment
from kerneltune.agent.view.output import JsonView, ViewChoice, choose_view
from kerneltune.agent.view.plain import PlainView, summary_text
from kerneltune.agent.view.text import short_name
from kerneltune.tools.schema.codec import Json, decode
from kerneltune.tools.schema.verdict import CaseTime, Comparison, Timing
from tests.agent.view.scripts import CPU_RUN, ENDED, GPU_RUN

ROOT = Path(__file__).parents[3]


def plain(events: list[Event], *, colour: bool = False) -> list[str]:
    stream = StringIO()
    view = PlainView(stream, colour=colour)
    for event in events:
        view(event)
    return stream.getvalue().splitlines()


def as_json(events: list[Event], error: BaseException | None = None) -> list[dict[str, Json]]:
    stream = StringIO()
    view = JsonView(stream)
    for event in events:
        view(event)
    view.finish(error)
    view.finish(None)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_weighted_case_that_loses_is_said_in_the_attempt_s_line_and_in_the_summary() -> None:
    lost = CaseTime("decode", 3.0, Timing(9.0, 8.0, 10.0, 40, 4), (Comparison("compile", 8.1, 0.9, 0.8, 0.95),))
    events = [
        replace(e, verdict=replace(e.verdict, case_times=(lost,))) if isinstance(e, Judged) and e.verdict.timing else e
        for e in GPU_RUN
    ]
    stream = StringIO()
    view = PlainView(stream)
    for event in [*events, ENDED]:
        view(event)
    said = "slower than compile in case decode (0.90x)"
    assert any(line.startswith("#") and said in line for line in stream.getvalue().splitlines())
    assert said in summary_text(view.state)


def test_a_judged_attempt_is_one_plain_line_with_what_is_known() -> None:
    lines = plain([*CPU_RUN, ENDED])
    assert (
        "#3 checked  single-pass rows, 8 warps  (parent #1)  "
        "error 0.12 of tolerance, regs 56 spills 8 occ 0.75  first choice, not timed" in lines
    )
    assert any(line.startswith("#4 wrong  single-pass") and line.endswith("beyond the tolerance") for line in lines)
    assert (
        lines[-1]
        == "run r-7f3a ended (attempts): 6 attempts, 3 accepted, first choice, not timed #3 in runs/r-7f3a/best.py"
    )


def test_plain_lines_carry_no_escape_codes_and_no_times_without_a_gpu() -> None:
    text = "\n".join(plain([*CPU_RUN, ENDED]))
    assert not {"\x1b", "\x07", "µ"} & set(text)


def test_plain_lines_give_times_on_a_gpu() -> None:
    line = next(line for line in plain(list(GPU_RUN)) if line.startswith("#3 correct"))
    assert "110.0 µs (109.8-110.3), 1.274x (1.271-1.276) vs torch.compile max-autotune" in line


def test_plain_lines_are_coloured_only_when_asked() -> None:
    assert any("\x1b[36mchecked\x1b[0m" in line for line in plain(list(CPU_RUN), colour=True))


def test_a_stream_without_unicode_gets_question_marks_not_an_error(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="ascii") as stream:
        PlainView(stream)(CPU_RUN[0])
    assert "not timed ? run on a machine" in (tmp_path / "log").read_text()


def test_ndjson_holds_each_stored_event_and_ends_in_one_result() -> None:
    objects = as_json([*CPU_RUN, ENDED])
    assert [o["type"] for o in objects].count("result") == 1
    assert objects[-1]["type"] == "result"
    kinds = {o["type"] for o in objects}
    assert "progress" not in kinds
    assert {"run_started", "proposed", "judged", "run_ended"} <= kinds
    first = {k: v for k, v in objects[0].items() if k not in ("type", "schema_version")}
    assert decode(RunStarted, first) == CPU_RUN[0]


def test_the_result_says_what_was_found() -> None:
    result = as_json([*CPU_RUN, ENDED])[-1]
    assert (result["subtype"], result["is_error"], result["error"]) == ("success", False, None)
    assert (result["run_id"], result["task"], result["attempts"], result["accepted"]) == ("r-7f3a", "softmax", 6, 3)
    assert result["best"]["path"] == "runs/r-7f3a/best.py"
    assert (result["best"]["verdict"], result["best"]["timing"]) == ("checked", None)
    assert result["by_status"] == {"checked": 3, "wrong": 1, "rejected": 1, "compile_failed": 1}
    assert as_json([*GPU_RUN, ENDED])[-1]["best"]["timing"]["median_us"] == pytest.approx(110.0)


@pytest.mark.parametrize(
    ("error", "subtype", "is_error"),
    [(RuntimeError("GPU lost"), "error", True), (KeyboardInterrupt(), "interrupted", False), (None, "error", True)],
)
def test_a_run_that_dies_still_ends_in_one_result(error: BaseException | None, subtype: str, is_error: bool) -> None:
    result = as_json(list(CPU_RUN), error)[-1]
    assert (result["type"], result["subtype"], result["is_error"]) == ("result", subtype, is_error)
    assert (result["error"] is not None) is is_error


def test_an_exception_inside_the_context_becomes_the_result() -> None:
    stream = StringIO()
    with pytest.raises(RuntimeError), JsonView(stream):
        raise RuntimeError("GPU lost")
    assert json.loads(stream.getvalue().splitlines()[-1])["error"] == "RuntimeError: GPU lost"


def test_an_interrupted_run_is_not_an_error() -> None:
    ended = RunEnded("r-7f3a", StopReason.INTERRUPTED, 6, 3, "r-7f3a/3", None, 72.0)
    assert as_json([*CPU_RUN, ended])[-1]["subtype"] == "interrupted"


def test_a_reader_that_leaves_silences_the_view() -> None:
    read_end, write_end = os.pipe()
    stream = TextIOWrapper(os.fdopen(write_end, "wb"), encoding="utf-8")
    os.close(read_end)
    view = JsonView(stream)
    view(CPU_RUN[0])
    view(CPU_RUN[2])
    assert view.broken
    stream.close()


def test_a_program_whose_reader_leaves_ends_without_a_traceback() -> None:
    code = (
        "import sys; from kerneltune.agent.view.output import JsonView; from tests.agent.view.scripts import CPU_RUN\n"
        "view = JsonView(sys.stdout)\n"
        "for event in CPU_RUN * 200: view(event)\n"
        "view.finish()"
    )
    pipeline = f"{sys.executable} -c '{code}' | head -1 | wc -l"
    done = subprocess.run(["bash", "-c", pipeline], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("1", "")


@pytest.mark.parametrize(
    ("facts", "flags", "choice"),
    [
        ({}, {}, ViewChoice("live", colour=True)),
        ({"no_color": True}, {}, ViewChoice("live", colour=False)),
        ({}, {"plain": True}, ViewChoice("plain", colour=True)),
        ({"ci": True}, {}, ViewChoice("plain", colour=True)),
        ({}, {"is_terminal": False}, ViewChoice("plain", colour=False)),
        ({"term": "dumb"}, {}, ViewChoice("plain", colour=False)),
        ({"term": ""}, {}, ViewChoice("plain", colour=False)),
        ({}, {"json": True, "plain": True}, ViewChoice("json", colour=False)),
    ],
)
def test_the_view_follows_from_the_facts(facts: dict[str, Any], flags: dict[str, bool], choice: ViewChoice) -> None:
    here = replace(Environment((), "", "xterm-256color", no_color=False, ci=False), **facts)
    assert choose_view(here, **{"is_terminal": True, **flags}) == choice


def test_a_sample_of_the_gpu_is_not_a_line() -> None:
    assert plain([GpuSampled("r", GpuReading(41))]) == []
    assert plain([Note("r", "starting", "workers")]) == ["… starting workers"]


@pytest.mark.parametrize(
    ("origin", "rationale", "name"),
    [
        (SearchPoint("softmax_row", {"TILE": 8192, "NUM_WARPS": 16}), "", "softmax_row tile=8192 w16"),
        (SearchPoint("x", {"NUM_WARPS": 16, "NUM_STAGES": 2}), "", "x w16 s2"),
        (
            SearchPoint("inductor", {"A_B_XBLOCK": 1, "A_B_R0_BLOCK": 4096, "A_B_NUM_WARPS": 4}),
            "TorchInductor's own kernels",
            "inductor x=1 r0=4096 w4",
        ),
        (SearchPoint("mm", {"BLOCK_M": 128, "BLOCK": 64}), "", "mm m=128 block=64"),
        (GivenFile("kernels/mine.py"), "kernels/mine.py", "mine.py"),
        (LlmTurn("1", 1), "vector loads; two rows a program. And more", "vector loads"),
        (None, "w" * 60, "w" * 47 + "…"),
    ],
)
def test_an_attempt_has_a_name_of_few_words(origin: Origin | None, rationale: str, name: str) -> None:
    proposed = Proposed("r", "r/1", 1, None, "", rationale, origin)
    assert short_name(proposed_attempt(proposed)) == name
