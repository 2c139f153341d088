"""What a model hears of its PTX: the assembled lines around an error, notes, and nothing of a held-out shape."""

from typing import Any

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.authors.llm.prompts import format_update
from kerneltune.tools.schema.messages import Compiled
from kerneltune.tools.schema.plan import Kernel, Plan
from kerneltune.tools.schema.verdict import KernelReport, Status, Verdict
from kerneltune.tools.update import Artefact, Update
from tests.agent.authors.llm.run_parts import TASK

SOURCE = "import torch\nfirst = 1\nsecond = 2\nthird = 3\n"
REPORT = KernelReport("k", 20, 0, 0, 0, 0, 4, 0, 1.0, "0" * 64)


def kernel(mark: str) -> Kernel:
    return Kernel("k", "ptx", "\n".join(f"    {mark} {n};" for n in range(1, 9)), ("*fp32",), {"block": [128, 1, 1]})


def plan(case: str, mark: str) -> Plan:
    return Plan(case, "default", "sm_90", (), (kernel(mark),), (), (), None)


def words(detail: str, update: Update | None = None, **facts: Any) -> str:
    plans = {"main": (plan("main", "shown"),), "zanzibar": (plan("zanzibar", "hidden"),)}
    made = update or Update(plans, failure=Verdict(Status.COMPILE_FAILED, detail, **facts), main_case="main")
    return format_update(Attempt(SOURCE, "", attempt_id="r/1", number=1, update=made), TASK, None, ())


def test_a_line_of_ptx_is_shown_as_it_was_assembled_and_not_as_a_line_of_the_file() -> None:
    said = words("PTX line 3: ptxas: Unknown symbol '%yy': add %yy; (kernel k)", kernel="k", ptx_lines=(3,))
    assert ">    3     shown 3;" in said
    assert "     1     shown 1;" in said
    assert "second" not in said


def test_lines_near_two_errors_are_shown_once() -> None:
    said = words("PTX line 3: ptxas: bad: shown 3;\nPTX line 5: bad: shown 5; (kernel k)", kernel="k", ptx_lines=(3, 5))
    assert [line[:6] for line in said.split("\n") if line.endswith("     shown 4;")] == ["     4"]
    assert ">    5     shown 5;" in said


def test_a_line_of_the_file_is_shown_where_one_is_named() -> None:
    said = words("line 3: PTX line 5: expected ','; (kernel k)", kernel="k", lines=(3,), ptx_lines=(5,))
    assert ">    3 second = 2" in said
    assert "shown" not in said


def test_text_made_for_a_held_out_shape_never_shows() -> None:
    plans = {"zanzibar": (plan("zanzibar", "hidden"),)}
    failure = Verdict(Status.COMPILE_FAILED, "PTX line 3: bad (kernel k)", kernel="k", ptx_lines=(3,))
    failed = Update(plans, failure=failure, main_case="main")
    assert "hidden" not in words("", failed)


def test_a_kernel_that_the_message_does_not_name_is_not_shown() -> None:
    assert "shown" not in words("PTX line 3: bad (kernel other)", kernel="other", ptx_lines=(3,))
    assert "shown" not in words("PTX line 300: bad (kernel k)", kernel="k", ptx_lines=(300,))


def test_what_stopped_nothing_is_a_note_said_once_and_stages_are_triton_s() -> None:
    note = "PTX line 4: the parameter n is never read"
    its = plan("main", "shown")
    artefacts = {k.sha256: Artefact(Compiled(REPORT, {}, (note, note)), b"") for k in its.kernels}
    made = Update({"main": (its,)}, artefacts, main_case="main")
    assert made.notes == (f"k: {note}",)
    said = words("", made)
    assert said.count(note) == 1
    assert "4 warps\n" in said
    assert "stages" not in said
