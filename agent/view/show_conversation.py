"""What was said between a run and its model, for a person."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from agent.llm.types import ToolCall
from agent.record.trajectory import Conversation, Message
from agent.view import text as words
from agent.view.page import Page
from tools.codec import Json

_STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


def print_conversations(conversations: Sequence[Conversation], page: Page) -> None:
    """Every message in order, under a line that says who speaks."""
    for conversation in conversations:
        page.print(Text(words.one_line(f"conversation {conversation.key}"), style="bold"))
        for message in conversation.messages:
            page.print(_head(message), *_body(message))


def _head(message: Message) -> Text:
    parts = [message.role if message.turn is None else f"{message.role}, turn {message.turn}"]
    if message.role == "assistant":
        parts += _reply(message)
    if message.is_error:
        parts.append("an error")
    if message.history:
        parts.append("a history that took the place of what was said before")
    return Text(f"\n[{words.one_line('; '.join(parts))}]", style=f"bold {_STYLES[message.role]}")


def _reply(message: Message) -> Iterator[str]:
    yield message.model
    if message.seconds is not None:
        yield f"{message.seconds:.1f} s"
    usage = message.usage or {}
    counted = [(usage.get(name), word) for name, word in (("input_tokens", "in"), ("output_tokens", "out"))]
    if told := [f"{words.tokens(n)} {word}" for n, word in counted if isinstance(n, int)]:
        yield "tokens " + ", ".join(told)
    if message.cost_usd is not None:
        yield words.dollars(message.cost_usd)
    if message.stop not in ("", "end", "tools"):
        yield message.stop


def _body(message: Message) -> Iterator[Text]:
    if message.thinking.strip():
        yield Text(words.clean(message.thinking).strip("\n"), style="dim italic")
    if message.text.strip():
        yield Text(words.clean(message.text).strip("\n"))
    for call in message.calls:
        yield _call(call)


def _call(call: ToolCall) -> Text:
    text = Text(f"-> {words.one_line(call.name)}", style="bold")
    for name, value in call.arguments.items():
        text.append(f"\n   {words.one_line(name)}: ", style="bold").append(_value(value), style="default")
    if call.problem:
        text.append(f"\n   {words.one_line(call.problem)}", style="red")
    return text


def _value(value: Json) -> str:
    shown = words.clean(str(value)).strip("\n")
    return "\n" + "\n".join(f"   | {line}" for line in shown.splitlines()) if "\n" in shown else shown
