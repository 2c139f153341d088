"""Seeds cannot be foreseen, inputs follow from them, and batteries change values and nothing else."""

import pytest
import torch

from tools.judge.inputs import case_seed, derived


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


def test_batteries_leave_integers_shapes_and_dtypes_alone() -> None:
    own = (torch.rand(6, 50), torch.arange(6), torch.rand(50).bfloat16(), 3, torch.rand(50, 6).T)
    for battery in ("zero_mean", "scaled"):
        made = derived(own, battery, 1)
        assert made is not None
        assert torch.equal(made[1], own[1])
        assert made[3] == 3
        for before, after in zip(own, made, strict=True):
            if isinstance(before, torch.Tensor):
                assert (before.shape, before.dtype, before.stride()) == (after.shape, after.dtype, after.stride())


def test_zero_mean_inputs_are_not_made_where_the_task_has_them_already() -> None:
    assert derived((torch.randn(100, 100),), "zero_mean", 1) is None
    assert derived((torch.rand(100, 100),), "zero_mean", 1) is not None
    assert derived((torch.arange(5),), "scaled", 1) is None


def test_scaled_rows_span_decades() -> None:
    made = derived((torch.ones(1000, 4),), "scaled", 1)
    assert made is not None
    assert made[0].amax() / made[0].amin() > 1e3
    assert torch.equal(made[0][:, 0], made[0][:, 3])


def test_the_same_seed_makes_the_same_inputs() -> None:
    own = (torch.rand(6, 50),)
    first, again, other = (derived(own, "zero_mean", seed) or [None] for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


def test_an_unknown_battery_is_an_error_of_ours() -> None:
    with pytest.raises(KeyError, match="known: own, zero_mean, scaled"):
        derived((torch.rand(3),), "zero-mean", 1)
