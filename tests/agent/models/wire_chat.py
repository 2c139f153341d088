"""Chat Completions, as servers of one's own speak it, with the quirks that they have."""

import json
import math
from collections.abc import Iterator

from kerneltune.tools.schema.codec import Json
from tests.agent.models.story import Cache, Counted, Refused, Said, pieces, require, require_strict, sse

QUIRKS = frozenset(
    [
        "no_ids",  # calls without ids
        "index0",  # all calls have index 0
        "no_usage",
        "no_seed",
        "token_ids",  # tells tokens as vLLM does
        "ids_within",  # tells them as llama.cpp does
        "no_logprobs",  # refuses to, with llama.cpp's words
        "no_token_ids",  # does not know what vLLM calls them
        "odd_tokens",  # tells what are none
        "reasoning",  # thinking in `reasoning`, not in `reasoning_content`
        "think_tags",  # thinking in the text
        "fenced",  # calls as ```json in the text
        "tagged",  # calls as <tool_call> in the text
        "no_tools",  # refuses requests with tools
        "no_models",  # has no /v1/models
        "no_stream_options",
        "mute",  # says what is wrong only without a stream
        "small",  # a context of 4000 tokens, of which only errors tell
    ]
)


REFUSED = {  # fields of a request, by quirk, and the words
    "no_tools": ("tools", "smollm does not support tools"),
    "no_seed": ("seed", 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'),
    "no_logprobs": ("logprobs", "logprobs is not supported with tools + stream"),
    "no_token_ids": ("return_token_ids", "Unrecognized request argument supplied: return_token_ids"),
    "no_stream_options": ("stream_options", "extra fields not permitted: stream_options"),
}


class Chat:
    """One server."""

    path = "/v1/chat/completions"

    def __init__(self, quirks: frozenset[str] = frozenset()) -> None:
        assert quirks <= QUIRKS
        self.cache = Cache()
        self.quirks = quirks

    def error(self, status: int, kind: str, message: str, code: str = "", param: str = "") -> Json:
        """The body of an error."""
        return {"error": {"type": kind, "message": message, "code": code or status, "param": None}}

    def check(self, body: dict[str, Json], headers: dict[str, str]) -> None:
        """Refuse what servers do."""
        require(body.get("stream") or "mute" in self.quirks, "streaming is required")
        for quirk, (name, words) in REFUSED.items():
            require(quirk not in self.quirks or name not in body, words)
        for tool in body.get("tools", []):
            if tool["function"].get("strict"):
                require_strict(tool["function"]["parameters"], tool["function"]["name"])
        given = self.count(body).total
        if "small" in self.quirks and given + body["max_tokens"] > 4000:
            raise Refused(
                f"'max_tokens' is too large: {body['max_tokens']}. This model's maximum context length is 4000 "
                f"tokens and your request has {given} input tokens"
            )
        waiting: list[str] = []
        for message in body["messages"]:
            if message["role"] == "tool":
                require(message["tool_call_id"] in waiting, "a tool message without its call")
                waiting.remove(message["tool_call_id"])
                continue
            require(not waiting, f"tool_calls must be followed by tool messages, missing {waiting}")
            waiting = [call["id"] for call in message.get("tool_calls", [])]
            require(message.get("content") or waiting, "a message without content")
        require(not waiting, f"tool_calls must be followed by tool messages, missing {waiting}")

    def count(self, body: dict[str, Json]) -> Counted:
        """The tokens of a prompt."""
        return self.cache.count([json.dumps(body.get("tools")), *map(json.dumps, body["messages"])])

    def tell(self, said: Said, counted: Counted, body: dict[str, Json]) -> Iterator[bytes]:
        """The chunks of a reply."""
        left = said.output_tokens  # tokens that no chunk has told of; one comes with each, and all others with the last
        for delta in self._deltas(said, bool(body.get("tools"))):
            choice = {"index": 0, "delta": delta, "finish_reason": None} | self._tokens(body, min(left, 1), left)
            left -= min(left, 1)
            yield self._chunk(said, body, [choice])
        finish = {"max_tokens": "length", "refusal": "content_filter"}.get(said.stop)
        as_text = self.quirks & {"fenced", "tagged", "no_tools"}
        finish = finish or ("tool_calls" if said.calls and not as_text else "stop")
        last = {"index": 0, "delta": {}, "finish_reason": finish} | self._tokens(body, left, left)
        yield self._chunk(said, body, [last])
        if body.get("stream_options") and "no_usage" not in self.quirks:
            used: dict[str, Json] = {"prompt_tokens": counted.total, "completion_tokens": said.output_tokens}
            used |= {"total_tokens": counted.total + said.output_tokens}
            used["prompt_tokens_details"] = {"cached_tokens": counted.cached}
            yield self._chunk(said, body, [], used)
        yield b"data: [DONE]\n\n"

    def _tokens(self, body: dict[str, Json], n: int, left: int) -> dict[str, Json]:
        """What a choice says of its `n` tokens, of which `left` are to come: ids count down, probabilities too."""
        if not body.get("logprobs") or not self.quirks & {"token_ids", "ids_within", "no_token_ids", "odd_tokens"}:
            return {}
        ids = list(range(left, left - n, -1))
        told: list[Json] = [{"token": "x", "bytes": [120], "logprob": -i / 8, "top_logprobs": []} for i in ids]
        if "odd_tokens" in self.quirks:
            odd = [{"token_ids": [True], "logprobs": {"content": [{"logprob": math.nan}]}}]
            odd += [{"token_ids": {"0": 1}, "logprobs": []}, {"token_ids": [-1, "1", 2**70], "logprobs": "none"}]
            odd += [{"token_ids": list(range(1 << 14)), "logprobs": {"content": 7}}, {"logprobs": {"content": [3, {}]}}]
            return odd[left % len(odd)]
        if "ids_within" in self.quirks:
            return {"logprobs": {"content": [one | {"id": i} for one, i in zip(told, ids, strict=True)]}}
        return {"logprobs": {"content": told}} | ({"token_ids": ids} if body.get("return_token_ids") else {})

    def _chunk(self, said: Said, body: dict[str, Json], choices: list[Json], usage: Json = None) -> bytes:
        head = {"id": f"chatcmpl-{said.number}", "object": "chat.completion.chunk", "created": 1, "usage": usage}
        return sse(head | {"model": body["model"], "choices": choices})

    def _deltas(self, said: Said, tools: bool) -> Iterator[dict[str, Json]]:
        yield {"role": "assistant", "content": ""}
        text = said.text
        if said.thinking and "think_tags" in self.quirks:
            text = f"<think>\n{said.thinking}\n</think>\n\n{text}"
        elif said.thinking:
            key = "reasoning" if "reasoning" in self.quirks else "reasoning_content"
            yield from ({key: piece} for piece in pieces(said.thinking))
        for name, arguments in said.calls:
            if "fenced" in self.quirks:
                text += f'\n```json\n{{"name": "{name}", "arguments": {arguments}}}\n```'
            elif self.quirks & {"tagged", "no_tools"}:
                text += f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        yield from ({"content": piece} for piece in pieces(text))
        if tools and not self.quirks & {"fenced", "tagged"}:
            for i in range(len(said.calls)):
                yield from self._call(said, i)

    def _call(self, said: Said, i: int) -> Iterator[dict[str, Json]]:
        name, text = said.calls[i]
        index = {"index": 0 if "index0" in self.quirks else i}
        own_id = {} if "no_ids" in self.quirks else {"id": f"chatcmpl-tool-{said.call_id(i)}"}
        begin = index | own_id | {"type": "function", "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [begin]}
        for piece in pieces(text):
            yield {"tool_calls": [index | {"function": {"arguments": piece}}]}

    def error_event(self, kind: str, message: str) -> bytes:
        """An error within a stream."""
        return sse({"error": {"message": message, "type": "InternalServerError", "code": 500}})

    def models(self) -> Json:
        """The list of models."""
        if "no_models" in self.quirks:
            raise Refused("Not Found", 404)
        entry: Json = {"id": "local-7b", "object": "model", "created": 1, "owned_by": "me", "max_model_len": 100_000}
        if "small" in self.quirks:
            del entry["max_model_len"]
        return {"object": "list", "data": [entry]}

    def model(self, name: str) -> Json:
        """One model."""
        raise Refused("Not Found", 404)
