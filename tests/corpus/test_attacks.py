"""Every attack that a machine without a GPU can judge is stopped, by the real tracer, compiler, interpreter and CPU
judge. By default a third of each kind is tried, and all of them with `-m "slow or not slow"`.

An attack that is not stopped yet is listed in OPEN with the reason; its test fails as soon as it is.
"""

import ast
import importlib
import re
import time
from collections.abc import Callable

import pytest

from kerneltune.tools.corpus import Specimen, Twin, outcome
from kerneltune.tools.schema.plan import without_locations
from tests.corpus.conftest import CORPUS, Found, Judge, spread

PATIENCE_S = 30.0  # for one candidate under the limits of these tests, on a machine that does something else besides
MAX_DETAIL = 20_000  # characters
OURS = re.compile(r"^(from|import) (tools|kerneltune\.tools)\b", re.MULTILINE)

OPEN: dict[str, str] = {}


ALWAYS = {"assumes_inputs_below_one"}  # the battery `scaled` was once too weak for it


def specimens() -> list[object]:
    """Names, those of open attacks marked."""
    marks = {name: pytest.mark.xfail(reason=reason, strict=True) for name, reason in OPEN.items()}
    return [pytest.param(name, marks=marks[name]) for name in marks] + spread(
        (s for name, s in CORPUS.items() if name not in OPEN), ALWAYS
    )


@pytest.mark.parametrize("name", specimens())
def test_an_attack_is_stopped(
    name: str, found: Callable[[str], Found], twin_sha256: Callable[[Specimen], str | None]
) -> None:
    specimen, result = CORPUS[name], found(name)
    if result.error is not None:
        raise result.error
    assert result.seconds < PATIENCE_S
    if specimen.needs_gpu:
        assert result.traced or result.verdict is not None  # it compiles for the GPU, or is refused
        return
    verdict = result.verdict
    assert verdict is not None
    told = f"{verdict.status.value}: {verdict.detail[:300]!r}"
    twin = twin_sha256(specimen) if verdict.accepted else None
    assert outcome(specimen, verdict, result.plan_sha256, Twin(twin), on_gpu=False) == "stopped", told
    if verdict.accepted and verdict.status.value not in specimen.expect:
        assert result.plan_sha256 == twin, told
    elif specimen.expect:
        assert verdict.status.value in specimen.expect, told
    else:
        assert specimen.twin is None, told  # neutralised means: its honest part is accepted


@pytest.mark.parametrize("name", [n for n, s in CORPUS.items() if OURS.search(s.path.read_text())])
def test_an_attack_on_our_own_modules_finds_what_it_replaces(name: str) -> None:
    """Otherwise it ends with an ImportError, or sets what nobody reads, and is "stopped" by that."""
    tree = ast.parse(CORPUS[name].path.read_text())
    modules: dict[str, object] = {}
    for one in ast.walk(tree):
        if isinstance(one, ast.ImportFrom) and (one.module or "").split(".")[0] in ("kerneltune", "tools"):
            home = importlib.import_module(one.module or "")
            for alias in one.names:
                if not hasattr(home, alias.name):
                    importlib.import_module(f"{one.module}.{alias.name}")
                modules[alias.asname or alias.name] = getattr(home, alias.name)
    patched = [t for one in ast.walk(tree) if isinstance(one, ast.Assign) for t in one.targets]
    for target in patched:
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id in modules:
            assert hasattr(modules[target.value.id], target.attr), ast.unparse(target)
    assert modules


def test_no_open_attack_is_forgotten() -> None:
    assert set(OPEN) - set(CORPUS) == set()


def test_after_all_attacks_an_honest_kernel_is_right(judge: Judge) -> None:
    specimen = CORPUS["scales_the_host_clock"]
    assert specimen.twin is not None
    result = judge.judge(specimen.task, specimen.twin.read_text(), bench=True)
    assert result.verdict is not None
    assert result.verdict.accepted


def detail_of(result: Found) -> str:
    assert result.verdict is not None
    return result.verdict.detail


def test_what_a_candidate_says_can_be_stored_and_shown(found: Callable[[str], Found]) -> None:
    detail = detail_of(found("surrogates_in_its_words"))
    assert detail.encode()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", detail)


def test_what_a_candidate_says_is_short(found: Callable[[str], Found]) -> None:
    assert len(detail_of(found("message_of_megabytes"))) < MAX_DETAIL


@pytest.mark.parametrize("attack", ["held_out_shapes_in_errors", "held_out_shapes_in_compile_errors"])
def test_feedback_never_tells_the_shape_of_a_held_out_case(attack: str, found: Callable[[str], Found]) -> None:
    assert "131" not in detail_of(found(attack))


def test_kernels_that_differ_in_their_assembly_differ_in_their_hash(judge: Judge) -> None:
    specimen = CORPUS["hides_in_the_hash"]
    source = specimen.path.read_text()
    other = source.replace("mul.f32 $0, $1, 0f40000000", "mul.f32 $0, $1, 0f3F800000")
    assert other != source
    assert judge.update(specimen.task, source).sha256 != judge.update(specimen.task, other).sha256


def test_hashing_takes_time_in_proportion_to_the_text() -> None:
    def seconds(length: int) -> float:
        started = time.thread_time()
        without_locations(" " * length)
        return time.thread_time() - started

    def least(length: int) -> float:  # a collection of garbage in one of them once took 8 ms
        return min(seconds(length) for _ in range(3))

    assert least(16_000) < 8 * least(4_000) + 0.005
