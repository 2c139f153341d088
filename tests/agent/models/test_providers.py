"""What --model and --base-url may say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kerneltune.agent.commands.doctor import of_this_program
from kerneltune.agent.export import provenance
from kerneltune.agent.models.providers import CLIENTS, PROVIDERS, open_model, parse
from kerneltune.agent.models.scripted import ScriptedModel
from kerneltune.agent.models.types import KeyRejected
from kerneltune.agent.settings import Environment
from kerneltune.tools.schema.errors import UsageError
from tests.agent.models.talk import write_lines


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("anthropic", ("anthropic", "")),
        ("anthropic:claude-opus-5-5", ("anthropic", "claude-opus-5-5")),
        ("openai:ft:gpt-6:me", ("openai", "ft:gpt-6:me")),
        ("chat:", ("chat", "")),
        ("chat:Qwen/Qwen3-Coder:30b", ("chat", "Qwen/Qwen3-Coder:30b")),
        ("scripted:a/b.jsonl", ("scripted", "a/b.jsonl")),
    ],
)
def test_a_name_is_a_provider_and_a_model(name: str, choice: tuple[str, str]) -> None:
    assert parse(name) == choice


@pytest.mark.parametrize(
    "name", ["", "claude-opus-5-5", "Anthropic:x", "openai:", "scripted:", "openai: x", "gemini:x"]
)
def test_a_name_that_means_nothing_is_refused_by_name_and_no_flag_is_blamed(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(name))) as caught:
        parse(name)
    assert "--model" not in str(caught.value)  # --authors has names as well


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "http://", "http://[::1", "http://a:99999999"])
def test_a_base_url_that_cannot_be_asked_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--base-url"):
        open_model("chat:x", base_url=url)


def test_chat_needs_to_know_where() -> None:
    with pytest.raises(UsageError, match="--base-url http://localhost:8000/v1"):
        open_model("chat:x")


@pytest.mark.parametrize(("name", "variable"), [("anthropic:x", "ANTHROPIC_API_KEY"), ("openai:x", "OPENAI_API_KEY")])
def test_a_key_that_is_missing_or_garbled_is_named(name: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(KeyRejected, match=variable):
        open_model(name)
    with pytest.raises(UsageError, match=variable) as caught:
        open_model(name, keys={name.partition(":")[0]: "sk-schlüssel 0123"})
    assert "sk-" not in str(caught.value)


def test_a_base_url_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://elsewhere.invalid")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere.invalid")
    for name in ("anthropic:x", "openai:x", "chat:x"):
        model = open_model(name, keys={"anthropic": "k" * 20, "openai": "k" * 20}, base_url="http://here.invalid/v1")
        assert "here.invalid/v1" in repr(vars(model)["_server"])
        model.close()


def test_a_script_needs_no_sdk_and_neither_does_choosing(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "story.jsonl", ['{"text": "Hello."}'])
    assert isinstance(open_model(f"scripted:{path}"), ScriptedModel)
    code = (
        f"import sys; from kerneltune.agent.models.providers import open_model; open_model('scripted:{path}'); "
        "print({'anthropic', 'openai', 'httpx2', 'genai_prices'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_keys_are_named_by_doctor_and_never_shown() -> None:
    said = {}
    for keys in ((), ("openai",)):
        there = Environment(keys, server_key="", term="", no_color=False, ci=True)
        (said[keys],) = (found for found in of_this_program(there) if found.name == "API keys")
    assert said[("openai",)].value == "set: openai"
    assert (said[()].ok, "offline" in said[()].value) == (None, True)
    assert said[()].remedy == "export ANTHROPIC_API_KEY=… or OPENAI_API_KEY=…"


def test_every_provider_is_where_people_look_for_it() -> None:
    assert {*PROVIDERS, *CLIENTS, "offline", "other"} == set(provenance.PROVIDERS)
    page = (Path(__file__).parents[3] / "docs" / "authors.md").read_text()
    for name, provider in PROVIDERS.items():
        assert f"| `{name}:<" in page
        assert provider.key_variable in page
        assert provenance.provider_of(f"{name}:x") == name
        assert all(provenance.provider_of(f"chat:{start}-9") == name for start in provider.models)
