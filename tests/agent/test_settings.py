"""Settings: where each may come from, which of them counts, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from kerneltune.agent.settings import FIELDS, NAME, chosen_settings, load_settings, sourced_settings, unknown_variables
from kerneltune.tools.schema.errors import UsageError


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))


def project(tmp_path: Path, text: str) -> Path:
    """A folder inside a git repository at whose root the file lies."""
    folder = tmp_path / "repository" / "deep" / "deeper"
    folder.mkdir(parents=True, exist_ok=True)
    (tmp_path / "repository" / ".git").mkdir(exist_ok=True)
    (tmp_path / "repository" / NAME).write_text(text)
    return folder


def own(tmp_path: Path, text: str) -> None:
    """The user's own file."""
    path = tmp_path / "home" / "kerneltune" / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_flag_beats_the_environment_which_beats_the_project_which_beats_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(tmp_path, "max-attempts = 1\nwidth = 11\nseed = 11\npatience = 11\n")
    folder = project(tmp_path, "max-attempts = 2\nwidth = 12\nseed = 12\n")
    monkeypatch.setenv("KERNELTUNE_MAX_ATTEMPTS", "3")
    monkeypatch.setenv("KERNELTUNE_WIDTH", "13")
    monkeypatch.chdir(folder)
    chosen = chosen_settings({"max_attempts": 4, "width": None})
    assert (chosen.max_attempts, chosen.width, chosen.seed, chosen.patience) == (4, 13, 12, 11)
    assert chosen.effort == "high"


def test_every_setting_tells_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, "seed = 1\n")
    folder = project(tmp_path, "# limits\n\n'max-time' = 60\n")
    monkeypatch.setenv("KERNELTUNE_CONFIRM", "false")
    sources = {name: one.source for name, one in sourced_settings(folder).items()}
    assert sources["seed"] == f"{tmp_path}/home/kerneltune/{NAME}, line 1"
    assert sources["max_time_s"] == f"{tmp_path}/repository/{NAME}, line 3"
    assert sources["confirm"] == "KERNELTUNE_CONFIRM"
    assert sources["width"] == "default"
    assert set(sources) == set(FIELDS.values())


def test_a_compile_target_is_the_same_however_it_was_spelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(project(tmp_path, "arch = 'H100'\n")).arch == "sm_90"
    monkeypatch.chdir(tmp_path)
    assert chosen_settings({"arch": "sm90a"}).arch == "sm_90"
    with pytest.raises(UsageError, match=r"--arch: no compile target 'h1000'; known: .*sm_90 \(H200"):
        chosen_settings({"arch": "h1000"})


def test_settings_have_the_names_of_flags() -> None:
    assert {"max-time", "max-cost", "runs-dir", "target-sol", "confirm", "allow-unsandboxed"} <= set(FIELDS)


def test_the_nearest_file_counts_and_none_above_the_repository(tmp_path: Path) -> None:
    folder = project(tmp_path, "width = 3\n")
    (tmp_path / NAME).write_text("width = 4\n")
    assert load_settings(folder).width == 3
    (folder / NAME).write_text("seed = 9\n")
    assert (load_settings(folder).width, load_settings(folder).seed) == (None, 9)
    (tmp_path / "loose" / "inner").mkdir(parents=True)
    (tmp_path / "loose" / NAME).write_text("width = 5\n")
    assert load_settings(tmp_path / "loose" / "inner").width is None  # somebody else's, for all we know
    assert load_settings(tmp_path / "loose").width == 5


def test_folders_are_seen_from_the_file_that_names_them(tmp_path: Path) -> None:
    settings = load_settings(project(tmp_path, 'runs-dir = "record"\n'))
    assert settings.runs_dir == tmp_path / "repository" / "record"
    settings = load_settings(project(tmp_path, 'runs_dir = "~/record"\n'))
    assert settings.runs_dir == Path("~/record").expanduser()


def test_a_home_that_nobody_has_is_a_mistake_of_the_setting(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="runs-dir = '~nosuchuser/x'"):
        load_settings(project(tmp_path, 'runs-dir = "~nosuchuser/x"\n'))


WRONG = {
    "max-attempts = 'many'": ["line 1", "max-attempts = 'many'", "whole number"],
    "\nmax-attempts = true": ["line 2", "max-attempts = true", "whole number"],
    "seed = 1.5": ["seed = 1.5", "whole number"],
    "max-time = '60'": ["max-time = '60'", "a number"],
    "confirm = 'no'": ["confirm = 'no'", "true or false"],
    "runs-dir = 3": ["runs-dir = 3", "a folder"],
    "model = ['a']": ["model = ['a']", "a text"],
    "tier = 'screned'": ["not one of screened, judged, confirmed", "did you mean screened?"],
    "effort = 3": ["effort = 3", "not one of low"],
    "max-attemps = 3": ["line 1", "unknown setting 'max-attemps'", "did you mean max-attempts?"],
    "colour = 'red'": ["unknown setting 'colour'", "known: allow-unsandboxed, arch"],
    "arch = 'sm_12'": ["line 1", "no compile target 'sm_12'", "sm_90 (H200, H100"],
    "seed = 1\n[export]\nformat = 'kto'": ["line 2", "[export] is a table"],
    "export.format = 'kto'": ["line 1", "is a table"],
    "seed = \nwidth = 2": ["not TOML", "line 1"],
    "seed = 1\nseed = 2": ["not TOML"],
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_in_a_file_is_named_with_its_place_and_the_way_out(tmp_path: Path, text: str) -> None:
    folder = project(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_settings(folder)
    assert all(word in str(caught.value) for word in (NAME, *WRONG[text])), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "anthropic_api_key = 'sk-ant-0123456789abc'",
        "OPENAI_API_KEY = '0123456789abc'",
        "api-key = '0123456789abc'",
        "token = '0123456789abc'",
        "model = 'sk-0123456789abc'",
        "[secrets]\nopenai = '0123456789abc'",
    ],
)
def test_an_api_key_is_refused_and_never_repeated(tmp_path: Path, text: str) -> None:
    folder = project(tmp_path, text)
    with pytest.raises(UsageError, match="export ANTHROPIC_API_KEY") as caught:
        load_settings(folder)
    assert "0123456789abc" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("base-url", "'http://evil/v1'"), ("allow-unsandboxed", "true"), ("cache-dir", "'.'")]
)
def test_a_project_says_neither_where_keys_are_sent_nor_that_its_code_is_free(
    tmp_path: Path, name: str, value: str
) -> None:
    folder = project(tmp_path, f"{name} = {value}")
    with pytest.raises(UsageError, match="counts only as a flag, as KERNELTUNE_"):
        load_settings(folder)
    (tmp_path / "repository" / NAME).unlink()
    own(tmp_path, f"{name} = {value}")
    assert getattr(load_settings(folder), FIELDS[name])


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("KERNELTUNE_WIDTH", "two", "KERNELTUNE_WIDTH='two' is not a whole number"),
        ("KERNELTUNE_MAX_COST", "$2", "KERNELTUNE_MAX_COST='\\$2' is not a number"),
        ("KERNELTUNE_CONFIRM", "perhaps", "is not true or false"),
        ("KERNELTUNE_RUNS_DIR", "", "is not a folder"),
        ("KERNELTUNE_STRATEGY", "bestof", "did you mean best-of"),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str, words: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=words):
        load_settings(tmp_path)


def test_a_variable_that_sets_nothing_is_told_and_the_server_s_key_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNELTUNE_MAX_ATTEMPT", "3")
    monkeypatch.setenv("KERNELTUNE_API_KEY", "secret")
    assert unknown_variables()["KERNELTUNE_MAX_ATTEMPT"] == "did you mean KERNELTUNE_MAX_ATTEMPTS?"
    assert "KERNELTUNE_API_KEY" not in unknown_variables()
