"""`optimize --model …` as a person types it, against providers on loopback: one story, three wire formats, faults."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.events import Judged, Proposed, Reflected, Replied, RunEnded, Said, Updated, Warned
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import trajectory
from tests.agent import warm
from tests.agent.models.server import Faults, Format, LlmServer
from tests.agent.models.story import Fault
from tests.agent.shell import SOFTMAX, env, optimize

STORY = Path(__file__).parent / "stories" / "softmax.jsonl"
LINES = [json.loads(line) for line in STORY.read_text().splitlines()]
RIGHT = (
    LINES[0]["calls"][0]["arguments"]["source"]
    .replace("tl.expo(v)", "tl.exp(v - tl.max(v, 0))")
    .replace("num_warps=2", "num_warps={}")
)
NAMES: dict[Format, str] = {
    "anthropic": "anthropic:claude-opus-5-5",
    "openai": "openai:gpt-6.1-sol",
    "chat": "chat:local",
}
ALL = ("--task", SOFTMAX, "--json", "--runs-dir", "runs", "--max-attempts", "5")


# How many programs of the timed shape the half second of processor time allowed: a busy machine runs fewer.
_SAMPLED = re.compile(r"(?<=at the timed shape )[\d,]+(?= of )|(?<=were run, and )[\d,]+(?= elements compared)")
_DRAWN = re.compile(
    r": case .* inputs\).*|[\d.e-]+ of the tolerance[^;\n]*", re.DOTALL
)  # inputs differ from run to run


def keys(server: LlmServer) -> dict[str, str]:
    return dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "KERNELTUNE_API_KEY"), server.key)


def told_by(
    format: Format,
    tmp_path: Path,
    *more: str,
    faults: Faults | None = None,
    story: list[dict[str, Any]] = LINES,
    quirks: frozenset[str] = frozenset(),
) -> tuple["subprocess.CompletedProcess[str]", LlmServer]:
    with LlmServer(story, format, faults=faults, quirks=quirks) as server:
        done = optimize(
            *ALL, "--model", NAMES[format], "--base-url", server.url, *more, cwd=tmp_path, more_env=keys(server)
        )
    return done, server


def result(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert "Traceback" not in done.stderr, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["type"] == "result"
    return dict(last)


def attempts(folder: Path) -> list[Any]:
    """What is stored of the only run there, without times, ids and what differs between wire formats."""
    with Store.open(folder) as store:
        (run,) = store.run_ids()
        found: list[Any] = []
        for e in store.load_events(run):
            match e:
                case Proposed():
                    parent = e.parent_id.rpartition("/")[2] if e.parent_id else None
                    found.append(("proposed", e.number, parent, e.source, e.rationale, e.origin))
                case Updated():
                    found.append(("updated", e.plan_sha256, e.failure and e.failure.status))
                case Judged():
                    found.append(("judged", e.attempt_id.rpartition("/")[2], e.verdict.status, e.best, e.rank_key))
                case Reflected():
                    found.append(("reflected", e.attempt_id.rpartition("/")[2], e.hypothesis, e.prediction, e.outcome))
                case Replied():
                    calls = e.calls if isinstance(e.calls, list) else []
                    found.append(("replied", e.turn, e.text, [(c["name"], c["arguments"]) for c in calls]))
                case Said(role="tool"):
                    found.append(("told", _SAMPLED.sub("…", _DRAWN.sub(": …", e.text))))
        return sorted(found, key=lambda row: (row[0] in ("updated", "proposed"), str(row[:3])))


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Any]]:
    folder = tmp_path_factory.mktemp("scripted")
    done = optimize(*ALL, "--model", f"scripted:{STORY}", cwd=folder)
    return result(done), attempts(folder / "runs")


def test_a_scripted_story_ends_with_what_it_tells(scripted: tuple[dict[str, Any], list[Any]]) -> None:
    last, rows = scripted
    assert (last["subtype"], last["attempts"], last["accepted"]) == ("success", 5, 3)
    statuses = [row[2].value for row in rows if row[0] == "judged"]
    assert statuses == ["compile_failed", "wrong", "checked", "checked", "checked"]
    outcomes = [(row[1], row[4]) for row in rows if row[0] == "reflected"]
    assert outcomes == [("3", "open"), ("4", "open")]  # nothing is timed without a GPU
    looks = [row[1] for row in rows if row[0] == "told" and ("machine code" in row[1] or "cache_modifier" in row[1])]
    assert ["line 13: " in text for text in looks] == [True, False]  # the exponentials, by source line


def test_a_story_through_a_wire_format_leaves_the_record_of_a_scripted_one(
    tmp_path: Path, scripted: tuple[dict[str, Any], list[Any]]
) -> None:
    """That the formats do not differ is the subject of tests/agent/models/test_formats.py."""
    done, server = told_by("chat", tmp_path)
    last = result(done)
    assert server.refused == []
    assert attempts(tmp_path / "runs") == scripted[1]
    assert (last["spending"]["replies"], last["spending"]["unpriced"], last["spending"]["cost_usd"]) == (7, 7, 0)


def test_replies_are_stored_and_exported_with_their_tokens_and_a_server_that_tells_none_is_named(
    tmp_path: Path,
) -> None:
    done, _ = told_by("chat", tmp_path, "--logprobs", quirks=frozenset(["token_ids"]))
    assert result(done)["attempts"] == 5
    with Store.open(tmp_path / "runs") as store:
        (run_id,) = store.run_ids()
        events = store.load_events(run_id)
    replies = {event.turn: event for event in events if isinstance(event, Replied)}
    assert not [event for event in events if isinstance(event, Warned)]
    assert events[0].limits["logprobs"] is True  # type: ignore[union-attr, index]
    for reply in replies.values():
        n = (reply.usage or {})["output_tokens"]
        assert (len(reply.token_ids or ()), len(reply.logprobs or ())) == (n, n)
    wanted = ("--format", "rl-turns:reward=fast_0,state=messages", "--as", "jsonl", "-o", "x", "--runs-dir", "runs")
    assert optimize("export", *wanted, cwd=tmp_path).returncode == 0
    rows = [json.loads(line) for file in (tmp_path / "x").rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(rows) == 4  # one reply made two attempts
    for row in rows:
        reply = replies[row["reply"]]
        assert (row["token_ids"], row["logprobs"]) == (list(reply.token_ids or ()), list(reply.logprobs or ()))
        assert row["prompt_tokens"] == (reply.usage or {})["input_tokens"]

    (tmp_path / "other").mkdir()
    done, _ = told_by("chat", tmp_path / "other", "--logprobs", quirks=frozenset(["no_logprobs"]))
    with Store.open(tmp_path / "other" / "runs") as store:
        (run_id,) = store.run_ids()
        (warned,) = (event for event in store.load_events(run_id) if isinstance(event, Warned))
    assert "chat:local gave no token ids and no log-probabilities with its first reply" in warned.text


@pytest.mark.parametrize(("language", "format", "refused"), [
    ("cuda", "anthropic", 'line 8: NVRTC: identifier "__shfl_xor" is undefined'),
    ("gluon", "openai", "Layout has 16 threads per warp, but the module specifies 32"),
])  # fmt: skip
def test_a_story_in_another_language_is_told_by_the_same_events(
    language: str, format: Format, refused: str, tmp_path: Path
) -> None:
    story = STORY.with_name(f"{language}_softmax.jsonl")
    lines = [json.loads(line) for line in story.read_text().splitlines()]
    done, server = told_by(format, tmp_path, "--language", language, story=lines)
    assert (result(done)["accepted"], server.refused) == (3, [])
    rows = attempts(tmp_path / "runs")
    statuses = [row[2].value for row in rows if row[0] == "judged"]
    assert statuses == ["compile_failed", "wrong", "checked", "checked", "checked"]
    assert sum(refused in row[1] for row in rows if row[0] == "told") == 1


def broken_off(folder: Path, input_tokens: int = 500) -> list[Replied]:
    """The replies of the only run there that broke off, each counted as an estimate."""
    with Store.open(folder) as store:
        events = store.load_events(store.run_ids()[0])
    replies = [e for e in events if isinstance(e, Replied)]
    found = [e for e in replies if e.stop == "interrupted"]
    for e in found:
        assert e.usage is not None
        assert e.usage["estimated"] is True
        assert e.usage["input_tokens"] > input_tokens
        assert e.usage["output_tokens"] > 0
        assert e.cost_usd
    assert all(e.usage is None or "estimated" not in e.usage for e in replies if e not in found)
    return found


TROUBLES = {
    1: Fault("status", 429, retry_after="0"),
    2: Fault("reset"),
    4: Fault("empty"),
    5: Fault("status", 529),
    7: Fault("truncated"),
    8: Fault("unknown_tool"),
    10: Fault("max_tokens"),
    11: Fault("status", 500),
    13: Fault("refusal"),
    14: Fault("ended"),
    16: Fault("bad_json"),
}


def test_a_run_goes_on_through_one_trouble_after_the_other(tmp_path: Path) -> None:
    """Each of them in each format is the subject of tests/agent/models/test_faults.py."""
    done, server = told_by("openai", tmp_path, faults=TROUBLES)
    last = result(done)
    assert server.refused == []
    assert len(server.asked) > max(TROUBLES)
    assert (done.returncode, last["accepted"]) == (0, 3)
    broken = broken_off(tmp_path / "runs")
    assert len(broken) == 3  # reset, truncated, ended
    with Store.open(tmp_path / "runs") as store:
        replies = [e for e in store.load_events(last["run_id"]) if isinstance(e, Replied)]
    assert last["spending"]["cost_usd"] == pytest.approx(sum(e.cost_usd or 0 for e in replies))
    assert [e.turn for e in replies] == list(range(1, len(replies) + 1))


def test_what_no_retry_mends_ends_the_run_in_order_and_it_can_be_resumed(tmp_path: Path) -> None:
    done, _ = told_by("anthropic", tmp_path, faults={4: Fault("status", 402)})
    last = result(done)
    assert (last["attempts"], last["accepted"]) == (3, 1)
    warned = [json.loads(line)["text"] for line in done.stdout.splitlines() if json.loads(line)["type"] == "warned"]
    assert any("credit" in text for text in warned), warned
    rest = LINES[4:]
    with LlmServer(rest, "anthropic") as server:  # at another address: what is given now counts
        arguments = ("--resume", last["run_id"], "--json", "--runs-dir", "runs", "--max-attempts", "5")
        again = optimize(*arguments, "--base-url", server.url, cwd=tmp_path, more_env=keys(server))
    assert result(again)["attempts"] == 5
    assert server.refused == []
    assert "what the run has found so far" in str(server.asked[0].body)


def test_a_conversation_that_was_opened_and_never_answered_keeps_its_key_when_the_run_goes_on(tmp_path: Path) -> None:
    done, _ = told_by("anthropic", tmp_path, faults={0: Fault("status", 402)})
    run_id = result(done)["run_id"]
    with LlmServer(LINES, "anthropic") as server:
        arguments = ("--resume", run_id, "--json", "--runs-dir", "runs", "--max-attempts", "1")
        again = optimize(*arguments, "--base-url", server.url, cwd=tmp_path, more_env=keys(server))
    assert result(again)["attempts"] == 1
    with Store.open(tmp_path / "runs") as store:
        conversations = trajectory(store.load_events(run_id)).conversations
    roles = [(told.key, [message.role for message in told.messages[:3]]) for told in conversations]
    assert roles == [("1", ["system", "user"]), ("2", ["system", "user", "assistant"])]


def test_a_key_or_a_model_that_is_wrong_is_said_before_anything_starts(tmp_path: Path) -> None:
    with LlmServer(LINES, "anthropic") as server:
        bad_key = {"ANTHROPIC_API_KEY": "sk-wrong-key"}
        done = optimize(
            *ALL, "--model", "anthropic:claude-opus-5-5", "--base-url", server.url, cwd=tmp_path, more_env=bad_key
        )
    assert done.returncode != 0
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert "sk-wrong-key" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs" / "runs.db").exists()
    unknown = optimize(*ALL, "--model", "gpt", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "anthropic[:ID]" in unknown.stderr


def test_a_limit_on_cost_is_spent_nearly_whole_and_not_exceeded(tmp_path: Path) -> None:
    words = {
        "text": "It is as fast as the memory, is it not? " * 40,
        "calls": [{"name": "bench", "arguments": {"attempt": 1}}],
    }
    done, _ = told_by("anthropic", tmp_path, "--max-cost", "0.12", story=[LINES[0], *[words] * 40])
    assert 0.108 < result(done)["spending"]["cost_usd"] <= 0.12
    with Store.open(tmp_path / "runs") as store:
        ended = [e for e in store.load_events(store.run_ids()[0]) if isinstance(e, RunEnded)]
    assert ended[-1].why == "cost"


def test_a_limit_on_cost_that_not_even_the_first_request_fits_is_said(tmp_path: Path) -> None:
    done, server = told_by("anthropic", tmp_path, "--max-cost", "0.01")
    assert result(done)["attempts"] == 0
    assert "the first request is likely to cost $0.0" in done.stdout
    assert server.asked == []


def test_a_limit_on_cost_without_a_price_is_refused(tmp_path: Path) -> None:
    done, _ = told_by("chat", tmp_path, "--max-cost", "1")
    assert done.returncode == 2
    assert "the price of chat:local is unknown" in done.stderr


def test_ctrl_c_in_the_middle_of_a_reply_ends_the_run_at_once_and_keeps_what_is_finished(tmp_path: Path) -> None:
    with LlmServer(LINES, "anthropic", faults={3: Fault("stall", pause_s=60)}) as server:
        arguments = (*ALL, "--model", NAMES["anthropic"], "--base-url", server.url)
        run = subprocess.Popen(
            warm.command(*arguments), cwd=tmp_path, env=env() | keys(server), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while len(server.asked) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        started = time.monotonic()
        os.kill(run.pid, signal.SIGINT)
        out, err = run.communicate(timeout=30)
        assert time.monotonic() - started < 15  # of the 60 s that the server is silent; its workers end first
    assert run.returncode == 130
    assert "Traceback" not in err
    last = json.loads(out.splitlines()[-1])
    assert (last["subtype"], last["attempts"]) == ("interrupted", 2)
    assert len(broken_off(tmp_path / "runs")) == 1


def test_conversations_side_by_side_share_a_provider(tmp_path: Path) -> None:
    update = LINES[0]["calls"][0]
    story = [
        {
            "calls": [
                {"name": "update", "arguments": update["arguments"] | {"source": RIGHT.format(1 << i % 5) + f"# {i}\n"}}
            ]
        }
        for i in range(12)
    ]
    done, server = told_by("openai", tmp_path, "--strategy", "evolve", "--width", "2", story=story)
    last = result(done)
    assert server.refused == []
    assert (last["attempts"], last["accepted"]) == (5, 5)


def test_a_scripted_run_that_is_resumed_goes_on_with_the_next_line(
    tmp_path: Path, scripted: tuple[dict[str, Any], list[Any]]
) -> None:
    first = optimize(*ALL[:-1], "3", "--model", f"scripted:{STORY}", cwd=tmp_path)
    assert result(first)["attempts"] == 3
    again = optimize("--resume", result(first)["run_id"], *ALL[2:], cwd=tmp_path)
    assert (result(again)["attempts"], result(again)["accepted"]) == (5, 3)
    sources = [row[3] for row in attempts(tmp_path / "runs") if row[0] == "proposed"]
    assert sources == [row[3] for row in scripted[1] if row[0] == "proposed"]


def test_a_run_survives_a_busy_provider_and_shows_each_wait(tmp_path: Path) -> None:
    faults = {2: Fault("status", 529), 3: Fault("status", 529)}
    with LlmServer(LINES, "anthropic", faults=faults) as server:
        arguments = ("--task", SOFTMAX, "--plain", "--runs-dir", "runs", "--max-attempts", "2")
        done = optimize(
            *arguments, "--model", NAMES["anthropic"], "--base-url", server.url, cwd=tmp_path, more_env=keys(server)
        )
    waits = re.findall(
        r"… the model is asked again in \d\.\d s: anthropic: told to say 529 \(HTTP 529.*\)", done.stderr
    )
    assert len(waits) == 2, done.stderr
    assert server.refused == []


@pytest.mark.parametrize(
    ("fault", "code", "why", "words"),
    [
        (Fault("status", 529), 6, "model_error", "anthropic is not available"),
        (Fault("status", 401), 3, "no_access", "Check ANTHROPIC_API_KEY"),
    ],
)
def test_what_ends_a_run_at_its_provider_has_an_exit_code_although_something_was_accepted(
    fault: Fault, code: int, why: str, words: str, tmp_path: Path
) -> None:
    faults = lambda number: fault if number >= 1 else None  # noqa: E731
    update = {"name": "update", "arguments": LINES[0]["calls"][0]["arguments"] | {"source": RIGHT.format(4)}}
    right = [{"calls": [update, {"name": "bench", "arguments": {"attempt": 1}}]}]
    done, _ = told_by("anthropic", tmp_path, "--retry-time", "0", faults=faults, story=right)
    last = result(done)
    assert last["accepted"] > 0
    assert (done.returncode, last["subtype"], last["is_error"]) == (code, "error", True)
    assert words in last["error"]
    assert optimize("watch", last["run_id"], "--json", "--runs-dir", "runs", cwd=tmp_path).returncode == code
    with Store.open(tmp_path / "runs") as store:
        assert [e.why for e in store.load_events(last["run_id"]) if isinstance(e, RunEnded)] == [why]


def test_a_limit_on_time_ends_a_run_in_the_middle_of_a_reply(tmp_path: Path) -> None:
    with LlmServer(LINES, "anthropic", faults=lambda _: Fault("comments", pause_s=0.2)) as server:
        began = time.monotonic()
        done = optimize(
            *ALL, "--max-time", "2", "--model", NAMES["anthropic"], "--base-url", server.url, cwd=tmp_path,
            more_env=keys(server),
        )  # fmt: skip
        assert time.monotonic() - began < 60  # of an endless reply
    assert (result(done)["attempts"], done.returncode) == (0, 1)
    assert len(broken_off(tmp_path / "runs")) == 1
    with Store.open(tmp_path / "runs") as store:
        assert [e.why for e in store.load_events(store.run_ids()[0]) if isinstance(e, RunEnded)] == ["time"]
