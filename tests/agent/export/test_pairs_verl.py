"""verl's rows: a prompt for each task, and the reference that answers are judged by."""

from dataclasses import replace

import pytest

from kerneltune.agent.attempt import RunStart
from kerneltune.agent.export.base import format_of
from kerneltune.agent.export.instructions import operators
from kerneltune.agent.export.rl_formats import Verl
from kerneltune.tools.schema.verdict import Status
from kerneltune.tools.task.load import builtin_tasks
from tests.agent.export.made_runs import AT, H200, SOFTMAX, TASK, conversation, rows, run, tried

OTHER = "import torch\nclass Model(torch.nn.Module): ...\ndef get_inputs(): return []\n"
DRKERNEL = {"entry_point", "level", "module_name", "ops", "original_prompt", "repo_name", "type", "uuid"}
VERL = {"index", "split", "need_tools_kwargs", "tools_kwargs"}


def test_a_row_has_the_columns_that_verl_and_drkernel_read() -> None:
    (row,) = rows(Verl(), run(tried(1, Status.WRONG)))
    assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info", "solve_rate", "agent_name"]
    assert [m["role"] for m in row["prompt"]] == ["system", "user"]
    assert row["reward_model"] == {"style": "rule", "ground_truth": TASK}
    extra = row["extra_info"]
    assert set(extra) == DRKERNEL | VERL
    assert extra["index"] == 0
    assert extra["ops"] == ["torch.softmax"]
    assert extra["type"] == "builtin"
    assert extra["original_prompt"] == row["prompt"][-1]["content"]
    assert row["agent_name"] == "single_turn_agent"
    create = extra["tools_kwargs"]["bench"]["create_kwargs"]
    assert (create["task"], create["language"], create["reference_code"]) == ("softmax", "triton", None)


def test_each_task_has_one_row_in_the_order_in_which_tasks_appeared() -> None:
    late = run(tried(1, Status.WRONG), at=AT + 5)
    again = run(run_id="r2", at=AT + 9, gpu=H200)
    other = run(run_id="r3", at=AT, task="other", task_source=OTHER, path="/x/KernelBench/level2/other.py")
    for order in ((late, again, other), (other, again, late)):
        found = sorted(rows(Verl(), *order), key=lambda row: row["extra_info"]["index"])
        assert [r["extra_info"]["module_name"] for r in found] == ["other", "softmax"]
        assert "NVIDIA H200" in found[1]["prompt"][-1]["content"]  # the run with a GPU speaks for its task
        assert (found[0]["extra_info"]["level"], found[0]["extra_info"]["type"]) == (2, "kernelbench")


def test_a_row_tells_how_often_its_task_was_solved() -> None:
    again = run(tried(1, Status.CHECKED, run_id="r2"), tried(2, Status.UNCHECKED, run_id="r2"), run_id="r2")
    (row,) = rows(Verl(), run(tried(1, Status.WRONG), tried(2, Status.WRONG)), again)
    assert row["solve_rate"] == pytest.approx(1 / 3)
    assert rows(Verl(), run())[0]["solve_rate"] is None


@pytest.mark.parametrize("spec", ["verl", "sft-chat:system=short"])
def test_a_run_in_a_language_of_a_later_version_is_left_out_with_a_note(spec: str) -> None:
    its = run(tried(1, Status.CHECKED, turn=1, run_id="r2"), run_id="r2", said=conversation([(1, "a")], "r2"))
    later, form = replace(its, run=replace(its.run, limits={"language": "tile"})), format_of(spec)
    assert len(rows(form, its, later)) == 1
    (note,) = form.notes()
    assert note == f"{form.name}: 1 run left out, in languages that this version does not know: tile"


def test_what_a_run_began_with_or_made_in_another_language_solves_no_task() -> None:
    its = run(*(tried(n, status) for n, status in enumerate((Status.CHECKED, Status.CHECKED, Status.WRONG), 1)))
    start, other, third = its.attempts
    cuda = 'import triton\nfrom kerneltune import CudaKernel\nkernel = CudaKernel("void k() {}")\n'
    its = replace(its, attempts=(replace(start, origin=RunStart("x.py")), replace(other, source=cuda), third))
    assert rows(Verl(), its)[0]["solve_rate"] == 0.0


def test_splits_are_those_of_the_export() -> None:
    its, form = run(), Verl()
    form.set_splits({its.run.task_sha256: "test"})
    assert rows(form, its)[0]["extra_info"]["split"] == "test"


def test_a_task_that_only_lies_in_a_folder_like_ours_brings_its_reference_along() -> None:
    changed = run(run_id="r2", task_source=TASK + "\n# changed\n")
    theirs = run(run_id="r3", task="mine", task_source=OTHER)
    told = [row["extra_info"] for row in rows(Verl(), run(), changed, theirs)]
    assert [extra["type"] for extra in told] == ["builtin", "file", "file"]
    codes = [extra["tools_kwargs"]["bench"]["create_kwargs"]["reference_code"] for extra in told]
    assert codes == [None, TASK + "\n# changed\n", OTHER]


def test_nothing_of_the_machine_or_of_a_held_out_case_is_in_a_row() -> None:
    (row,) = rows(Verl(), run(path="/home/someone/secret/mine.py", task_source=SOFTMAX.source))
    assert "someone" not in str(row)
    assert "prime" not in str(row)
    assert row["extra_info"]["type"] == "file"
    assert row["extra_info"]["level"] is None


@pytest.mark.parametrize("task", builtin_tasks(), ids=lambda task: task.name)
def test_every_shipped_reference_names_its_operators(task: object) -> None:
    names = operators(task.source)  # type: ignore[attr-defined]
    assert all("." in name and "Parameter" not in name for name in names)


MODULE = """
import torch
def f(): torch.abs(1)
class Model:
    def forward(self, x):
        y = F.relu(x) + torch.exp(x)
        return nn.functional.relu(F.relu(y)) + self.a(x) + x.sum()
"""


def test_operators_are_named_once_in_order_and_of_the_model_alone() -> None:
    assert operators(MODULE) == ("F.relu", "torch.exp", "nn.functional.relu")
    assert operators("class Model(") == ()
