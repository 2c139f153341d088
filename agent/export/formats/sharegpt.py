"""`sharegpt`: conversations in the tags of ShareGPT, by the rules of LLaMA-Factory.

Odd places belong to `human` and `observation`, even ones to `gpt` and `function_call`, the last one is even; else the
whole example is skipped there. So the calls of a reply are one `function_call` (an object, or a list for several), and
their results one `observation`; words after results are at its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from agent.export.base import Column, Format, Made, Row
from agent.export.formats.jsons import json_text
from agent.export.formats.sft_chat import tool_schemas
from agent.export.formats.summary import COLUMNS, judged_talks, summary
from agent.export.formats.talk import Talk, Turn
from agent.record.trajectory import Trajectory

BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"  # as LLaMA-Factory joins those of its OpenAI format


@cache
def tools_text() -> str:
    """The tools as LLaMA-Factory wants them: function definitions without their envelope."""
    return json_text([tool["function"] for tool in tool_schemas()])


@dataclass
class ShareGpt(Format):
    """`thoughts`: reasoning stands in <think> tags before a reply, and so do the words that come with calls, for which
    there is no other place; only templates of reasoning models read that. Otherwise both are left out, but for the
    words of replies without calls. `seen`: a row for each window of the model's context."""

    thoughts: bool = False
    seen: bool = False

    name: ClassVar[str] = "sharegpt"
    about: ClassVar[str] = "conversations in ShareGPT's tags (LLaMA-Factory)"
    conversations: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column("conversations", "json", "[{from, value}], human first and gpt or function_call last"),
        Column("system", "text", "the system prompt"),
        Column("tools", "text", "JSON list of function definitions"),
        Column("unsaid_chars", "int", "characters of reasoning and of words with calls that have no place"),
        *COLUMNS,
    )

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """One row a conversation, or one a window."""
        for talk, its, best in judged_talks(trajectory, seen=self.seen):
            values: Row = {
                "conversations": self._conversations(talk),
                "system": talk.system,
                "tools": tools_text(),
                "unsaid_chars": 0 if self.thoughts else sum(map(_unsaid, talk.turns)),
                **summary(trajectory, talk, its, best),
            }
            yield Made(values, best)

    def _conversations(self, talk: Talk) -> list[Row]:
        said: list[Row] = []
        for part in talk.parts:
            if isinstance(part, Turn):
                said.append(self._reply(part))
                if part.results:
                    text = BETWEEN_RESULTS.join(r.text for r in part.results)
                    said.append({"from": "observation", "value": text})
            elif said and said[-1]["from"] == "observation":
                said[-1]["value"] += f"\n\n{part.text}"
            else:
                said.append({"from": "human", "value": part.text})
        if said[-1]["from"] == "observation":
            said.pop()
        return said

    def _reply(self, turn: Turn) -> Row:
        reply = turn.reply
        thought = "\n\n".join(filter(None, (reply.thinking, reply.text if turn.calls else "")))
        before = f"<think>\n{thought}\n</think>\n\n" if self.thoughts and thought else ""
        if not turn.calls:
            return {"from": "gpt", "value": before + reply.text}
        calls = [{"name": c.name, "arguments": c.arguments} for c in turn.calls]
        return {"from": "function_call", "value": before + json_text(calls[0] if len(calls) == 1 else calls)}


def _unsaid(turn: Turn) -> int:
    return len(turn.reply.thinking) + (len(turn.reply.text) if turn.calls else 0)
