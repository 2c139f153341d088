"""Task files are read without being run, and every mistake in one is told in one line."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kerneltune.agent.authors.search.model_source import known_constants
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.task import Contract, contracts_in_words
from kerneltune.tools.task.load import (
    builtin_tasks,
    find_task,
    int_constants,
    lineage,
    read_task,
    replaced_by_cases,
    visible_source,
    with_overrides,
)

MINIMAL = """
import torch
ROWS = 4
class Model(torch.nn.Module):
    def forward(self, x): return x * 2
def get_inputs(): return [torch.randn(ROWS, 8)]
"""


def write(folder: Path, source: str) -> Path:
    path = folder / "mine.py"
    path.write_text(source)
    return path


def run(source: str, **overrides: object) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(compile(with_overrides(source, overrides), "task", "exec"), names)
    return names


def test_classes_are_looked_into_as_python_does_in_a_chain_of_any_length_and_in_a_circle() -> None:
    inherited = "class A: pass\nclass B(A): pass\nclass C(A): pass\nclass Model(B, C[int]): pass\n"
    assert [c.name for c in lineage(ast.parse(inherited), "Model")] == ["Model", "B", "C", "A"]
    chain = "class C0: pass\n" + "".join(f"class C{i + 1}(C{i}): pass\n" for i in range(5000))
    assert len(lineage(ast.parse(chain), "C5000")) == 5001
    assert [c.name for c in lineage(ast.parse("class A(B): pass\nclass B(A): pass"), "A")] == ["A", "B"]


def test_a_built_in_task_is_found_by_its_name() -> None:
    softmax = find_task("softmax")
    assert (softmax.name, softmax.cases[0].name, softmax.precision) == ("softmax", "main", "float32")


def test_a_misspelt_task_gets_a_suggestion_and_the_list() -> None:
    with pytest.raises(TaskError, match=r"no task 'sotfmax'; did you mean softmax\? `optimize tasks` lists all \d\d; "):
        find_task("sotfmax")


def test_a_file_without_extras_has_its_main_case_and_no_declared_precision(tmp_path: Path) -> None:
    task = find_task(str(write(tmp_path, MINIMAL)))
    assert ([c.name for c in task.cases], task.precision, task.declared) == (["main"], None, False)


def test_reading_a_task_runs_nothing_of_it(tmp_path: Path) -> None:
    assert read_task(write(tmp_path, MINIMAL + "raise SystemExit('ran')\n")).name == "mine"


def test_reading_tasks_does_not_load_torch() -> None:
    code = "import sys; sys.path.insert(0, '.'); from kerneltune.tools.task.load import builtin_tasks; builtin_tasks();"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-I", "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = = 1", r"mine\.py, line 1: invalid syntax"),
        ("x = 1", r"does not define class Model\(torch\.nn\.Module\) nor get_inputs\(\)"),
        (MINIMAL + "PRECISION = 'fp23'", r"PRECISION = 'fp23' is not one of float64, float32"),
        (MINIMAL + "CASES = [{'name': 'a', 'ROW': 2}]", r"sets 'ROW', which is not a constant.*did you mean ROWS\?"),
        (MINIMAL + "CASES = [{'name': 'main'}]", r"two cases are called 'main'"),
        (MINIMAL + "CASES = [{'ROWS': 2}]", r"a case has no name"),
        (MINIMAL + "CASES = [{'name': 'a', 'ROWS': ROWS}]", r"CASES must be a literal"),
        (MINIMAL + "CASES = 'many'", r"CASES must be a list of dicts"),
    ],
)
def test_a_faulty_file_is_one_clear_line(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(TaskError, match=message) as caught:
        read_task(write(tmp_path, source))
    assert "\n" not in str(caught.value)


def test_a_file_of_many_cases_is_read_at_once(tmp_path: Path) -> None:
    constants = "\n".join(f"c{number} = 1" for number in range(20_000))
    cases = ",".join(f"{{'name': '{number}', 'c{number}': 2}}" for number in range(20_000))
    began_s = time.process_time()
    assert len(read_task(write(tmp_path, f"{constants}{MINIMAL}CASES = [{cases}]")).cases) == 20_001
    assert time.process_time() - began_s < 10  # comparing each with each took minutes


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + ".py", "/" * 5000, "a\0.py", "~nobody/a.py"])
def test_a_name_that_no_file_can_have_is_one_short_line(name: str) -> None:
    with pytest.raises(TaskError, match="no task") as caught:
        find_task(name)
    assert len(str(caught.value)) < 700


def test_a_binary_file_is_not_a_task(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="is not a Python file"):
        find_task(str(tmp_path / "mine.py"))


@pytest.mark.parametrize("name", ["/nowhere/mine.py", "a/b", "/tmp"])
def test_a_path_that_is_not_a_file_is_named(name: str) -> None:
    with pytest.raises(TaskError, match="no task file at"):
        find_task(name)


def test_derived_constants_follow_an_override() -> None:
    assert run("A = 4\nB = A * 2\nM, N = 1, B\n", A=8)["N"] == 16


def test_overrides_reach_annotated_and_tuple_assignments_and_strings() -> None:
    names = run("A: int = 1\nM, N = 2, 3\nD = 'float32'\nS = (4, 4)\n", A=7, N=9, D="bfloat16", S=(1, 2))
    assert [names[k] for k in ("A", "M", "N", "D", "S")] == [7, 2, 9, "bfloat16", (1, 2)]


def test_an_override_of_one_of_several_names_of_a_value_leaves_the_others() -> None:
    names = run("M = N = 1024\n(A, B) = C = 1, 2\nD = N * B\n", M=33, A=7)
    assert [names[k] for k in "MNABCD"] == [33, 1024, 7, 2, (1, 2), 2048]


def test_an_override_counts_whatever_else_the_file_makes_of_that_name() -> None:
    names = run("N = 4\nif N:\n    N = 8192\nM = N\nK = 3\nK *= 2\nfor L in (K, 9): P = L\n", N=37, K=5)
    assert [names[k] for k in "NMKP"] == [37, 37, 5, 9]


def test_an_override_keeps_line_numbers() -> None:
    tree = with_overrides("A = 1\n\nB = 2\n", {"A": (1, 2)})
    assert [node.lineno for node in tree.body] == [1, 1, 3]
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Constant)] == [1, 3, 1, 1]


def test_int_constants_are_those_that_do_not_depend_on_others() -> None:
    source = "A = 4 * 1024\nB = A\nC = (2, 3)\nD = 1.5\nE = True\nF = 2**10\n"
    assert int_constants(source) == {"A": 4096, "C": (2, 3), "F": 1024}


@pytest.mark.parametrize("assigned", ["CASES", "CASES: list[dict[str, int]]"])
def test_what_each_case_replaces_is_read_however_cases_are_assigned(assigned: str) -> None:
    source = f"N = 4\n{assigned} = [{{'name': 'wide', 'N': 8, 'held_out': True, 'weight': 2}}]\n"
    assert replaced_by_cases(ast.parse(source)) == {"main": {}, "wide": {"N": 8}}
    assert replaced_by_cases(ast.parse("N = 4\n")) == {"main": {}}
    assert known_constants(f"{source}M = 2\n", []) == {"M": 2}


def test_the_author_does_not_see_held_out_cases() -> None:
    for task in builtin_tasks():
        seen = visible_source(task)
        assert "held_out" in task.source
        assert "held_out" not in seen
        assert [c.name for c in task.cases if not c.held_out][1:] == [
            item["name"] for item in ast.literal_eval(seen.split("CASES = ")[1].split("\n]")[0] + "\n]")
        ]


@pytest.mark.parametrize(
    "cases", ["(HIDDEN, SHOWN)", "[HIDDEN\n    , SHOWN\n]", "[(HIDDEN), SHOWN]", "[SHOWN, HIDDEN]"]
)
def test_what_the_author_sees_is_a_task_however_its_cases_are_written(tmp_path: Path, cases: str) -> None:
    hidden, shown = '{"name": "h", "ROWS": 5, "held_out": True}', '{"name": "a", "ROWS": 2}'
    source = MINIMAL + "CASES = " + cases.replace("HIDDEN", hidden).replace("SHOWN", shown) + "  # all\n"
    seen = visible_source(read_task(write(tmp_path, source)))
    assert [case.name for case in read_task(write(tmp_path, seen)).cases] == ["main", "a"]


@pytest.mark.parametrize(
    "more",
    [
        'CASES += [{"name": "b", "ROWS": 5, "held_out": True}]',
        'CASES.append({"name": "b", "ROWS": 5})',
        'CASES[0]["ROWS"] = 5',
        "CASES = []",
        "if ROWS:\n    CASES = []",
    ],
)
def test_cases_that_would_not_be_read_are_refused(tmp_path: Path, more: str) -> None:
    source = MINIMAL + 'CASES = [{"name": "a", "ROWS": 2}]\nNAMES = [case["name"] for case in CASES]\n'
    assert len(read_task(write(tmp_path, source)).cases) == 2
    with pytest.raises(TaskError, match=r"mine.py, line 9: CASES is read, not run: give it once, as one literal"):
        read_task(write(tmp_path, source + more + "\n"))


def test_the_author_does_not_see_comments_on_held_out_cases(tmp_path: Path) -> None:
    hidden = '{"name": "h%d", "ROWS": 5, "held_out": True},'
    cases = f"""# all cases
CASES = [  # of the task
    {{"name": "a", "ROWS": 2}},  # shown
    # unseen: 5 rows,
    # which no block divides
    {hidden % 1}  # unseen
    {{"name": "b", "ROWS": 3}}, {hidden % 2}  # unseen
    {hidden.replace(" ", chr(10) + "# unseen" + chr(10), 2) % 3}
    # shown
    {{"name": "c", "ROWS": 3}},
]
"""
    seen = visible_source(read_task(write(tmp_path, MINIMAL + cases)))
    assert ("unseen" in seen, "divides" in seen, seen.count("shown")) == (False, False, 2)
    assert [case.name for case in read_task(write(tmp_path, seen)).cases] == ["main", "a", "b", "c"]
    assert "# all cases\nCASES = [  # of the task\n" in seen


def test_every_built_in_task_has_small_cases_a_held_out_one_and_a_docstring() -> None:
    tasks = builtin_tasks()
    assert len(tasks) >= 10
    for task in tasks:
        assert sum(case.cpu and not case.held_out for case in task.cases) >= 2, task.name
        assert any(case.held_out for case in task.cases), task.name
        assert ast.get_docstring(ast.parse(task.source)), task.name


def test_inputs_are_declared_by_name_or_by_position(tmp_path: Path) -> None:
    source = MINIMAL.replace("forward(self, x)", "forward(self, x, y, *, z=None)")
    task = read_task(write(tmp_path, source + 'INPUTS = {"y": "own", 0: "positive"}\n'))
    assert task.inputs == ((0, "positive"), (1, "own"))
    assert read_task(write(tmp_path, MINIMAL)).inputs == ()
    starred = MINIMAL.replace("forward(self, x)", "forward(self, *xs)") + 'INPUTS = {3: "any"}\n'
    assert read_task(write(tmp_path, starred)).inputs == ((3, "any"),)


def test_a_task_may_promise_something_of_an_argument_s_memory_beside_its_values(tmp_path: Path) -> None:
    source = MINIMAL.replace("forward(self, x)", "forward(self, x, y, z)")
    declared = 'INPUTS = {"y": {"values": "own", "pitch": 64, "slack": 3}, 0: {"alignment": 4}, "z": "any"}\n'
    task = read_task(write(tmp_path, source + declared))
    assert task.inputs == ((1, "own"), (2, "any"))
    assert task.contracts == (Contract(0, "x", alignment=4), Contract(1, "y", slack=3, pitch=64))
    assert contracts_in_words(task.contracts) == (
        "x: its address is a multiple of 4 bytes, of no more for certain; y: rows lie a multiple of 64 elements apart "
        "and may be read to where the next begins, and 3 elements behind its end may be read (undefined values: no "
        "result may depend on them)"
    )


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            '{0: {"slck": 3}}',
            r"INPUTS\['logits'\] has 'slck'; known are values, slack, pitch, alignment; did you mean slack\?",
        ),
        ('{0: {"values": "whatever"}}', r"INPUTS\[0\] = 'whatever' is not one of 'any'"),
        ('{0: {"slack": -1}}', "slack = -1 is not a whole number from 0 to 65536"),
        ('{0: {"slack": True}}', "slack = True is not a whole number"),
        ('{0: {"pitch": 10**9}}', "INPUTS must be a literal"),
        ('{0: {"pitch": 1000000000}}', "pitch = 1000000000 is not a whole number from 1 to 65536"),
        ('{0: {"alignment": 12}}', "an alignment of 12 bytes is not a power of two"),
        ('{0: {"slack": 1}, "logits": "own"}', "INPUTS names argument 0 of forward twice"),
        ('{"logit": "any"}', r"INPUTS names 'logit'; forward takes logits, target; did you mean 'logits'\?"),
        ('{"logits": "whatever"}', r"INPUTS\['logits'\] = 'whatever' is not one of 'any' \(any finite value"),
        ('{0: "any", "logits": "own"}', "INPUTS names argument 0 of forward twice"),
        ('{5: "any"}', "INPUTS names 5; forward takes logits, target"),
        ('{True: "any"}', "INPUTS names True; forward takes"),
        ('["any"]', "INPUTS must be a dict of forward's arguments, not list"),
        ("{name: kind}", "line 7: INPUTS must be a literal"),
    ],
)
def test_a_mistake_in_declared_inputs_is_told_in_one_line(tmp_path: Path, declared: str, message: str) -> None:
    source = MINIMAL.replace("forward(self, x)", "forward(self, logits, target)") + f"INPUTS = {declared}\n"
    with pytest.raises(TaskError, match=message) as caught:
        read_task(write(tmp_path, source))
    assert "\n" not in str(caught.value)
