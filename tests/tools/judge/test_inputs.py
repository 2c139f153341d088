"""Seeds cannot be foreseen, inputs follow from them, and batteries change values and nothing else."""

from dataclasses import replace

import pytest
import torch

from kerneltune.tools.judge.correctness.inputs import case_seed, derived, with_leaves
from kerneltune.tools.schema.task import BATTERIES, CORE, EXOTIC, PROBES, CaseSpec, TaskSpec, batteries_of


def test_a_seed_depends_on_secret_plan_case_and_battery() -> None:
    seeds = {
        case_seed(secret, plan, case, battery)
        for secret in (b"a", b"b")
        for plan in ("1" * 64, "2" * 64)
        for case in ("main", "small")
        for battery in ("own", "scaled")
    }
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert case_seed(b"a", "1", "main", "own") == case_seed(b"a", "1", "main", "own")


def test_names_cannot_be_shifted_into_each_other() -> None:
    assert case_seed(b"a", "1", "main", "own") != case_seed(b"a", "1m", "ain", "own")


FREE = {"0": "any", "1": "any", "2": "any", "4": "any"}
FLOATS = ("zero_mean", "scaled", "spikes", "offset", "integers", "structure", "tiny", "huge")


def one(tensor: torch.Tensor, battery: str, kind: str = "any", seed: int = 1) -> torch.Tensor:
    made = derived((tensor,), battery, seed, {"0": kind})
    assert made is not None
    result: torch.Tensor = made[0]
    return result


@pytest.mark.parametrize("battery", [*FLOATS, "indices", "one_index"])
def test_batteries_leave_shapes_dtypes_strides_and_numbers_alone(battery: str) -> None:
    own = (torch.rand(6, 50), torch.arange(6) % 4, torch.rand(50).bfloat16(), 3, torch.rand(50, 6).T)
    made = derived(own, battery, 1, FREE)
    assert made is not None
    assert made[3] == 3
    for before, after in zip(own, made, strict=True):
        if isinstance(before, torch.Tensor):
            assert (before.shape, before.dtype, before.stride()) == (after.shape, after.dtype, after.stride())
            assert torch.equal(before, after) == (before.is_floating_point() == (battery not in FLOATS))


@pytest.mark.parametrize("battery", [*FLOATS, "specials"])
def test_rows_that_lie_apart_stay_apart_and_what_is_broadcast_stays_broadcast(battery: str) -> None:
    whole = torch.rand(6, 56)
    kind = "special" if battery == "specials" else "any"
    padded, repeated = one(whole[:, :50], battery, kind), one(whole[:1].expand(6, 56), battery, kind)
    assert (padded.stride(), repeated.stride()) == ((56, 1), (0, 1))
    assert not torch.equal(padded.nan_to_num(), whole[:, :50])
    assert torch.equal(padded.as_strided((5, 6), (56, 1), 50), whole[:5, 50:])  # not memory of the judge's own
    probed = with_leaves((whole[:, :50],), {"input:0": torch.ones(6, 50)})
    assert probed[0].stride() == (56, 1)


@pytest.mark.parametrize("battery", [*FLOATS, "specials", "indices", "one_index"])
def test_what_has_a_structure_keeps_its_own_values(battery: str) -> None:
    assert derived((torch.rand(6, 50), torch.arange(6)), battery, 1, {"0": "own"}) is None


@pytest.mark.parametrize("battery", FLOATS[1:])
def test_positive_inputs_stay_positive(battery: str) -> None:
    assert bool((one(torch.rand(40, 50) + 0.1, battery, "positive") > 0).all())
    assert derived((torch.rand(40, 50),), "zero_mean", 1, {"0": "positive"}) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("battery", FLOATS)
def test_every_format_and_every_dimension_can_be_filled_with_finite_values(battery: str, dtype: torch.dtype) -> None:
    for shape in [(), (1,), (7,), (1, 1), (3, 5, 2), (16, 33)]:
        values = one(torch.rand(shape).add(1).to(dtype), battery, seed=3)
        assert bool(torch.isfinite(values.double()).all())


def test_empty_tensors_are_left_alone() -> None:
    assert derived((torch.empty(0, 4),), "scaled", 1, {"0": "any"}) is None


def test_zero_mean_inputs_are_not_made_where_the_task_has_them_already() -> None:
    assert derived((torch.randn(100, 100),), "zero_mean", 1, {"0": "any"}) is None
    assert derived((torch.rand(100, 100),), "zero_mean", 1, {"0": "any"}) is not None
    assert derived((torch.arange(5),), "scaled", 1, {"0": "any"}) is None


def test_scaled_rows_span_decades() -> None:
    made = one(torch.ones(1000, 4), "scaled")
    assert made.amax() / made.amin() > 1e3
    assert torch.equal(made[:, 0], made[:, 3])


@pytest.mark.parametrize("rows", [2, 3, 13])
def test_however_few_rows_are_scaled_one_is_large_and_one_small(rows: int) -> None:
    for seed in range(20):
        made = one(torch.ones(rows, 4), "scaled", seed=seed)[:, 0]
        assert [float(made.min()), float(made.max())] == pytest.approx([0.01, 100.0])


def test_a_single_row_is_scaled_by_chance() -> None:
    assert len({float(one(torch.ones(1, 4), "scaled", seed=seed)[0, 0]) for seed in range(20)}) == 20


def test_each_row_has_a_spike_and_heavy_tails() -> None:
    made = one(torch.rand(50, 400), "spikes")
    assert bool((made.abs().amax(1) == 1000).all())
    assert float(made.abs().median()) < 2


def test_an_offset_dwarfs_the_spread_that_remains() -> None:
    for dtype, offset in ((torch.float32, 1e4), (torch.float16, 128.0), (torch.bfloat16, 16.0)):
        made = one(torch.rand(50, 400).to(dtype), "offset").double()
        assert float(made.mean()) == pytest.approx(offset, rel=0.01)
        assert 0.5 < float(made.std()) < 2


def test_integers_are_whole_and_their_sums_pass_2048() -> None:
    made = one(torch.rand(50, 1000), "integers")
    assert torch.equal(made, made.round())
    assert float(made.abs().max()) <= 8
    assert float(made[1::2].sum(1).min()) > 2048
    assert float(made[0::2].min()) < 0


def test_rows_of_different_structure_lie_side_by_side() -> None:
    made = one(torch.rand(64, 64), "structure")
    assert len(set(made[1].tolist())) == 1
    assert bool((made[3].diff() >= 0).all())
    assert int((made[5] != 0).sum()) == 1
    assert bool((made[14, 15:] == 0).all())
    assert int((made[8] == 0).sum()) == 0


def test_tiny_inputs_hold_denormals() -> None:
    made = one(torch.rand(64, 640), "tiny")
    assert float(made.abs().max()) < 1e-10
    assert 0 < int((made.abs() < torch.finfo(torch.float32).tiny).sum()) < made.numel() / 10


def test_nan_and_infinities_only_where_the_task_defines_them() -> None:
    assert derived((torch.rand(64, 640),), "specials", 1, {"0": "any"}) is None
    made = one(torch.rand(64, 640), "specials", "special")
    assert all(int(found.sum()) > 0 for found in (made.isnan(), made == torch.inf, made == -torch.inf))
    assert bool(torch.isfinite(made[1::2]).all())


def test_indices_stay_in_the_range_that_the_task_shows() -> None:
    own = torch.randint(3, 90, (400,))
    made = one(own, "indices")
    assert (int(made.min()), int(made.max())) == (int(own.min()), int(own.max()))
    assert len(set(made[:100].tolist())) == 1
    assert bool((made[100:200].diff() >= 0).all())
    assert set(made[200:300].tolist()) == {int(own.min()), int(own.max())}
    assert set(one(own, "one_index").tolist()) == {int(own.max())}


def test_masks_are_all_true_random_or_nearly_empty() -> None:
    made = one(torch.rand(30, 50) > 0.5, "indices")
    assert bool(made[0::3].all())
    assert 0.3 < float(made[1::3].double().mean()) < 0.7
    assert bool((made[2::3].sum(1) == 1).all())
    assert not bool(one(torch.rand(30, 50) > 0.5, "one_index").any())


def test_the_same_seed_makes_the_same_inputs() -> None:
    for battery in FLOATS:
        first, again, other = (one(torch.rand(6, 50), battery, seed=seed) for seed in (1, 1, 2))
        assert battery == "scaled" or torch.equal(first, again)
        assert not torch.equal(first, other)


def test_an_unknown_battery_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError, match="known: own, zero_mean, scaled"):
        derived((torch.rand(3),), "zero-mean", 1, {})


SPEC = TaskSpec(
    "t", "0" * 64, "float32", "",
    (
        CaseSpec("main", (), (), None, bytes_moved=10**9),
        CaseSpec("small", (), (), None, bytes_moved=10**3),
        CaseSpec("other", (), (), None, bytes_moved=10**5),
        CaseSpec("hidden", (), (), None, bytes_moved=10**2, held_out=True),
    ),
)  # fmt: skip


def test_every_battery_runs_somewhere_before_a_verdict_and_the_probes_also_on_the_timed_case() -> None:
    judged = {c.name: batteries_of(SPEC, c.name) for c in SPEC.cases}
    assert {name for names in judged.values() for name in names} == set(BATTERIES)
    assert set(judged["main"]) == {*CORE, *PROBES}
    assert judged["other"] == CORE
    assert not set(EXOTIC) & set(judged["small"]) & set(judged["hidden"])
    assert set(batteries_of(SPEC, "small", "confirmed")) >= set(EXOTIC)


def test_a_task_with_one_case_is_checked_with_everything() -> None:
    assert batteries_of(replace(SPEC, cases=SPEC.cases[:1]), "main") == BATTERIES
