from dataclasses import replace

import pytest

from kerneltune.agent.attempt import LlmTurn, Origin, RunStart, SearchPoint
from kerneltune.agent.events import RunResumed
from kerneltune.agent.export.provenance import PROVIDERS, Authors, provider_of, terms_of
from kerneltune.agent.record.trajectory import Trajectory, trajectory
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.made_runs import run, tried
from tests.agent.record.samples import RUN, attempt, started


def made_by(author: str, run_id: str, *attempts: tuple[Origin, str | None]) -> Trajectory:
    """A run of attempts with these origins and parents."""
    its = run(*(tried(n, Status.CHECKED, p, run_id=run_id) for n, (_, p) in enumerate(attempts, 1)), run_id=run_id)
    kept = tuple(replace(a, origin=origin) for a, (origin, _) in zip(its.attempts, attempts, strict=True))
    return replace(its, run=replace(its.run, author=author), attempts=kept)


def test_what_a_run_began_with_is_its_first_author_s_in_other_words_and_runs_too() -> None:
    mine, library = SearchPoint("mine", {"N": 4}), SearchPoint("softmax_row")
    talked = made_by("anthropic:claude", "talked", (LlmTurn("1", 1), None))
    as_ptx = made_by(
        "offline",
        "ptx",
        (RunStart("talked/1"), "talked/1"),
        (RunStart("talked/1", as_ptx=True), "ptx/1"),
        (library, None),
    )
    again = made_by("offline", "again", (RunStart("best"), "ptx/2"), (RunStart("best"), "gone/1"))
    own = made_by("offline", "own", (RunStart("mine.py", point=mine), None), (mine, None), (library, None))
    begun = made_by("openai:gpt", "begun", (RunStart("offline", point=library), None), (RunStart("b", True), "begun/1"))
    circle = made_by("offline", "circle", (RunStart("best"), "circle/1"))
    resumed = made_by("offline", "resumed", (library, None), (LlmTurn("1", 1), "resumed/1"))
    stored = {its.run.run_id: its for its in (talked, as_ptx, again, own, begun, circle, resumed)}
    authors = Authors(stored.get)
    assert {name: [authors.of(its, a) for a in its.attempts] for name, its in stored.items()} == {
        "talked": ["anthropic:claude"],
        "ptx": ["anthropic:claude", "anthropic:claude", "offline"],
        "again": ["anthropic:claude", None],
        "own": ["files", "files", "offline"],
        "begun": ["offline", "offline"],
        "circle": [None],
        "resumed": ["offline", None],
    }


def test_who_goes_on_with_a_run_is_the_author_of_what_is_proposed_from_then_on() -> None:
    its = trajectory(
        [
            replace(started(), author="anthropic:claude"),
            *attempt(1),
            RunResumed(RUN, 1, "mcp:claude-code"),
            *attempt(2),
            RunResumed(RUN, 2),
            *attempt(3),
        ]
    )
    told = [Authors(lambda _: None).of(its, one) for one in its.attempts]
    assert told == ["anthropic:claude", "mcp:claude-code", "anthropic:claude"]


@pytest.mark.parametrize(
    ("author", "provider"),
    [
        ("anthropic:claude-x", "anthropic"),
        ("anthropic", "anthropic"),
        ("openai:gpt-x", "openai"),
        ("offline", "offline"),
        ("chat:qwen3-coder", "chat"),
        ("chat:qwen/qwen3", "chat"),
        ("chat:openai/gpt-5-mini", "openai"),
        ("chat:", "chat"),
        ("chat:anthropic/claude-x", "anthropic"),
        ("chat:openai/gpt-oss-120b", "chat"),
        ("chat:gpt2", "chat"),
        ("scripted:claude-story.jsonl", "scripted"),
        ("Anthropic:claude", "anthropic"),
        ("somebody", "other"),
        ("", "other"),
        (":", "other"),
    ],
)
def test_the_provider_is_whose_terms_hold(author: str, provider: str) -> None:
    assert provider_of(author) == provider
    assert provider in PROVIDERS


def test_every_provider_has_terms_of_its_own_and_an_unknown_one_says_so() -> None:
    tags = [terms_of(provider).tag for provider in PROVIDERS]
    assert len(set(tags)) == len(PROVIDERS)
    assert terms_of("nobody").tag == terms_of("other").tag == "unknown"


def test_notices_tell_to_check_and_name_what_restricts() -> None:
    for provider, name in (("anthropic", "Anthropic"), ("openai", "OpenAI")):
        notice = terms_of(provider).notice
        assert name in notice
        assert "compet" in notice
        assert "Check the terms" in notice
    assert "own licence" in terms_of("chat").notice
    assert "not recorded" in terms_of("scripted").notice
    assert "Apache-2.0" in terms_of("offline").notice
    assert "BSD-3-Clause" in terms_of("offline").notice
    assert all(len(terms_of(p).notice) < 400 for p in PROVIDERS)
