"""What was said between a run and its model, cut to what a page can bear. What is cut is said."""

from collections.abc import Iterator
from dataclasses import dataclass

from agent.llm.types import ToolCall
from agent.record.trajectory import Conversation, Message, Trajectory
from agent.report.shown import Shown
from agent.view import text as words

_MOST_ALL = 350_000  # characters of all conversations
_MOST_TEXT, _MOST_ARGUMENT = 6_000, 1_500


@dataclass(frozen=True)
class Part:
    """A piece of a message: what was said, thought, or called."""

    kind: str  # text, thinking, call
    head: str
    body: str
    left_out: int = 0  # characters


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: str
    about: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Talk:
    """One conversation; `left_out` counts its messages that did not fit."""

    key: str
    turns: tuple[Turn, ...]
    left_out: int


def talks(run: Trajectory, shown: Shown) -> list[Talk]:
    """All conversations as far as they fit, each from its beginning."""
    left, made = _MOST_ALL, list[Talk]()
    for conversation in run.conversations:
        talk, used = _talk(conversation, shown, left)
        left -= used
        made.append(talk)
    return made


def _talk(conversation: Conversation, shown: Shown, room: int) -> tuple[Talk, int]:
    turns, used = list[Turn](), 0
    for message in conversation.messages:
        if used > room:
            break
        turn = Turn(message.role, _about(message), tuple(_parts(message, shown)))
        used += sum(len(part.body) + 80 for part in turn.parts) + 60
        turns.append(turn)
    return Talk(conversation.key, tuple(turns), len(conversation.messages) - len(turns)), used


def _about(message: Message) -> str:
    told = [f"turn {message.turn}"] if message.turn is not None else []
    if message.seconds is not None:
        told.append(f"{message.seconds:.1f} s")
    if message.cost_usd is not None:
        told.append(words.dollars(message.cost_usd))
    if message.is_error:
        told.append("an error")
    if message.history:
        told.append("a history that took the place of older exchanges")
    if message.stop not in ("", "end", "tools"):
        told.append(f"ended by {message.stop}")
    return ", ".join(told)


def _parts(message: Message, shown: Shown) -> Iterator[Part]:
    if message.thinking.strip():
        yield _part("thinking", "thinking", message.thinking, shown, _MOST_TEXT)
    if message.text.strip():
        yield _part("text", "", message.text, shown, _MOST_TEXT)
    for call in message.calls:
        yield from _call(call, shown)


def _call(call: ToolCall, shown: Shown) -> Iterator[Part]:
    told = "\n".join(f"{name}: {_value(value)}" for name, value in call.arguments.items())
    yield _part("call", f"calls {call.name}", told, shown, _MOST_ARGUMENT)
    if call.problem:
        yield _part("text", "not understood", call.problem, shown, _MOST_ARGUMENT)


def _value(value: object) -> str:
    lines = str(value)[: 4 * _MOST_ARGUMENT].strip("\n")
    return "\n" + "\n".join(f"  {line}" for line in lines.split("\n")) if "\n" in lines else lines


def _part(kind: str, head: str, text: str, shown: Shown, most: int) -> Part:
    clean = shown.text(text.strip("\n"), most)
    return Part(kind, head, clean, max(len(text) - most, 0))
