"""Settings: where each may come from, which of them counts, and what is said of one that is wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.settings import FIELDS, Settings, chosen_settings, sourced_settings, unknown_variables
from kerneltune.tools.schema.errors import UsageError


def test_a_flag_beats_the_environment_which_beats_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELTUNE_MAX_ATTEMPTS", "3")
    monkeypatch.setenv("KERNELTUNE_WIDTH", "13")
    chosen = chosen_settings({"max_attempts": 4, "width": None})
    assert (chosen.max_attempts, chosen.width, chosen.effort) == (4, 13, "high")


def test_every_setting_tells_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELTUNE_CONFIRM", "false")
    sources = {name: one.source for name, one in sourced_settings().items()}
    assert (sources["confirm"], sources["width"]) == ("KERNELTUNE_CONFIRM", "default")
    assert set(sources) == set(FIELDS.values())


def test_a_compile_target_is_the_same_however_it_was_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELTUNE_ARCH", "H100")
    assert chosen_settings({}).arch == "sm_90"
    assert chosen_settings({"arch": "sm80"}).arch == "sm_80"
    with pytest.raises(UsageError, match=r"--arch: no compile target 'h1000'; known: .*sm_90 \(H200"):
        chosen_settings({"arch": "h1000"})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_attempts", 0, "--max-attempts 0: a run needs at least 1 attempt"),
        ("max_time_s", float("nan"), "--max-time nan: give a number of seconds above 0"),
        ("patience", 0, "--patience 0: give at least 1"),
        ("max_cost_usd", 0.0, "--max-cost 0: give a number above 0"),
        ("target_speedup", -1.0, "--target-speedup -1: give a number above 0"),
        ("target_sol", 2.0, "--target-sol 2: give a share above 0, and 1 at the most"),
        ("retry_time_s", -1, "--retry-time -1: give a number of seconds"),
        ("width", 0, "--width 0: give 1 to 64"),
        ("width", 65, "--width 65: give 1 to 64"),
    ],
)
def test_what_no_run_can_keep_to_is_refused(name: str, value: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        chosen_settings({name: value})


def test_settings_that_do_nothing_on_this_machine_are_named() -> None:
    set_ones = replace(Settings(), tier="judged", target_sol=0.9, max_cost_usd=2.0)
    assert set_ones.idle(gpu=True, model=True) == ()
    assert set_ones.idle(gpu=False, model=False) == (
        "without a GPU nothing is timed, so --tier and --target-sol do nothing",
        "no model is asked, so --max-cost does nothing",
    )
    assert Settings().idle(gpu=False, model=False) == ()


def test_settings_have_the_names_of_flags() -> None:
    assert {"max-time", "max-cost", "runs-dir", "target-sol", "confirm", "allow-unsandboxed"} <= set(FIELDS)


def test_a_folder_may_lie_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELTUNE_RUNS_DIR", "~/record")
    assert chosen_settings({}).runs_dir == Path("~/record").expanduser()


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("KERNELTUNE_WIDTH", "two", "KERNELTUNE_WIDTH='two' is not a whole number"),
        ("KERNELTUNE_MAX_COST", "$2", "KERNELTUNE_MAX_COST='\\$2' is not a number"),
        ("KERNELTUNE_CONFIRM", "perhaps", "is not true or false"),
        ("KERNELTUNE_RUNS_DIR", "", "is not a folder"),
        ("KERNELTUNE_RUNS_DIR", "~nosuchuser/x", "RUNS_DIR='~nosuchuser/x' is not a folder"),
        ("KERNELTUNE_RUNS_DIR", __file__, "test_settings.py is a file; give the folder that it lies in"),
        ("KERNELTUNE_PATIENCE", "0", "KERNELTUNE_PATIENCE 0: give at least 1"),
        ("KERNELTUNE_STRATEGY", "bestof", "did you mean best-of"),
        ("KERNELTUNE_ARCH", "sm_12", "KERNELTUNE_ARCH: no compile target 'sm_12'; known: .*sm_90"),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, words: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=words):
        chosen_settings({})


def test_a_variable_that_sets_nothing_is_told_and_the_server_s_key_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNELTUNE_MAX_ATTEMPT", "3")
    monkeypatch.setenv("KERNELTUNE_API_KEY", "secret")
    assert unknown_variables()["KERNELTUNE_MAX_ATTEMPT"] == "did you mean KERNELTUNE_MAX_ATTEMPTS?"
    assert "KERNELTUNE_API_KEY" not in unknown_variables()
