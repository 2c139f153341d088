import random
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from agent.export.splits import Fractions, Member, Task, assign, counts, families, model_form, split_of
from tools.errors import UsageError

TASKS = Path(__file__).resolve().parents[3] / "tools/tasks"
SOFTMAX = (TASKS / "softmax.py").read_text()


def task(name: str, source: str) -> Task:
    return Task(name, sha256(source.encode("utf-8", "surrogatepass")).hexdigest(), source)


def model(body: str, size: int = 16) -> str:
    return (
        f"import torch\nN = {size}\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        {body}\n\n\n"
        f"def get_inputs():\n    return [torch.randn({size})]\n"
    )


def test_another_shape_constant_or_comment_is_the_same_family() -> None:
    tasks = [
        task("softmax", SOFTMAX),
        task("softmax_small", SOFTMAX.replace("8192", "64").replace('"float32"', '"bfloat16"')),
        task("softmax_first", "# other\n" + SOFTMAX.replace("dim=-1", "dim=0")),
        task("gelu", model("return torch.nn.functional.gelu(x)")),
    ]
    found = families(tasks)
    assert [found[t.sha256] for t in tasks] == ["softmax", "softmax", "softmax", "gelu"]


def test_a_name_joins_families_and_joining_goes_on() -> None:
    """a and b share a name, b and c a model: all three are one."""
    tasks = [
        task("same", model("return x.sum()")),
        task("same", model("return x.exp()")),
        task("another", model("return x.exp()", 32)),
        task("alone", model("return x.log()")),
    ]
    assert list(families(tasks).values()) == ["same", "same", "same", "alone"]


def test_a_later_task_renames_no_family() -> None:
    early = [task("softmax", model("return x.exp()"))]
    late = task("an_earlier_name", model("return x.exp()", 64))
    assert set(families([*early, late]).values()) == set(families(early).values()) == {"softmax"}


def test_the_built_in_tasks_are_families_of_their_own() -> None:
    tasks = [task(p.stem, p.read_text()) for p in sorted(TASKS.glob("*.py")) if p.stem != "__init__"]
    alike = {"row_sum": "column_sum"}  # the same words but for the dimension: whoever saw one has seen the other
    assert families(tasks) == {t.sha256: alike.get(t.name, t.name) for t in tasks}
    assert len(tasks) >= 39


def test_every_task_of_a_family_lands_in_one_split() -> None:
    dice = random.Random(3)
    tasks = [task(f"t{i}_{j}", model(f"return x.f{i}()", 2**j)) for i in range(200) for j in range(4)]
    found = assign(tasks, Fractions(0.2, 0.2), seed=5)
    later = tasks[4:]
    dice.shuffle(later)  # families are named by their oldest task; of the others the order does not matter
    assert {m.family for m in assign([*tasks[:4], *later], Fractions(0.2, 0.2), seed=5).values()} >= {"t0_0"}
    by_family: dict[str, set[str | None]] = {}
    for member in found.values():
        by_family.setdefault(member.family, set()).add(member.split)
    assert len(by_family) == 200
    assert {len(splits) for splits in by_family.values()} == {1}
    share = counts(found)
    assert 20 < share["test"] < 60
    assert 20 < share["validation"] < 60


def test_a_family_stays_where_it_was_when_tasks_are_added() -> None:
    few = [task(f"t{i}", model(f"return x.f{i}()")) for i in range(50)]
    more = [*few, *(task(f"u{i}", model(f"return x.g{i}()")) for i in range(50))]
    before, after = assign(few), assign(more)
    assert {t.sha256: before[t.sha256] for t in few} == {t.sha256: after[t.sha256] for t in few}


def test_the_seed_decides_and_another_process_agrees() -> None:
    names = [f"family {i}" for i in range(300)]
    here = [split_of(n, seed=1) for n in names]
    code = "from agent.export.splits import split_of; print(*[split_of(f'family {i}', seed=1) for i in range(300)])"
    root = TASKS.parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == here
    assert here != [split_of(n, seed=2) for n in names]
    assert Counter(here)["train"] > 200


def test_leaked_families_are_tested_on_or_left_out_whole() -> None:
    tasks = [task(f"t{i}_{j}", model(f"return x.f{i}()", 2**j)) for i in range(30) for j in range(2)]
    leaked = [tasks[0].sha256, tasks[7].sha256, "not one of ours"]
    families_hit = {families(tasks)[sha] for sha in leaked[:2]}
    kept = assign(tasks, leaked=leaked)
    assert kept == assign(tasks)
    tested, excluded = (assign(tasks, leaked=leaked, leaked_to=where) for where in ("test", "exclude"))
    for sha, member in kept.items():
        hit = member.family in families_hit
        assert tested[sha] == (Member(member.family, "test") if hit else member)
        assert excluded[sha] == (Member(member.family, None) if hit else member)
    assert counts(excluded)["excluded"] == 2


@pytest.mark.parametrize("shares", [(-0.1, 0.1), (0.6, 0.6), (float("nan"), 0), (0, float("inf")), (2, 0)])
def test_impossible_shares_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="so does their sum"):
        Fractions(*shares)


def test_extreme_shares_are_kept_to() -> None:
    names = [f"f{i}" for i in range(50)]
    assert {split_of(n, Fractions(0, 0)) for n in names} == {"train"}
    assert {split_of(n, Fractions(0, 1)) for n in names} == {"test"}
    assert {split_of(n, Fractions(1, 0)) for n in names} == {"validation"}


@pytest.mark.parametrize("odd", ["", "(" * 100_000, "\0", "\ud800", "x = 1", "def get_inputs(): return []"])
def test_odd_task_sources_have_a_family(odd: str) -> None:
    tasks = [task("odd", odd), task("softmax", SOFTMAX)]
    assert assign(tasks)[tasks[0].sha256].family == "odd"
    assert model_form(odd) == model_form(odd)


def test_no_tasks_are_no_families() -> None:
    assert assign([]) == {}
    assert counts({}) == {"train": 0, "validation": 0, "test": 0, "excluded": 0}
