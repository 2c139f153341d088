"""Exported rows in their real consumer: TRL trains tiny models on them, on the right tokens, and the loss falls."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train import parts
from tests.train.parts import IM_END, IM_START, ROLE

pytestmark = [
    pytest.mark.train,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # of other people's packages, about each other
]
Load = Callable[[str], Any]
REPLY = re.compile(re.escape(IM_START + ROLE) + "(.*?" + re.escape(IM_END) + ")", re.DOTALL)
IGNORED = -100


def sft(data: Any, tokens: Any, folder: Path, steps: int, **more: Any) -> Any:
    from trl import SFTConfig, SFTTrainer

    settings = parts.settings(folder, steps, max_length=None, packing=False, **more)
    model = parts.model(len(tokens))
    return SFTTrainer(model, args=SFTConfig(**settings), train_dataset=data, processing_class=tokens)


def seen_and_trained(trainer: Any, tokens: Any) -> list[tuple[str, str]]:
    """Of each row, as the trainer's own collator gives it to the model: all words, and those that the loss is over."""
    found = []
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        ids, labels = batch["input_ids"][0], batch["labels"][0]
        found.append((tokens.decode(ids), tokens.decode(ids[labels != IGNORED])))
    return found


def replies_of(row: dict[str, Any]) -> list[str]:
    """The words of the model in a row, as the template writes them."""
    out = []
    for message in row["messages"]:
        if message["role"] == "assistant":
            calls = [
                {k: call["function"][k] for k in ("name", "arguments")} for call in message.get("tool_calls") or ()
            ]
            shown = "".join(f"\n<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>" for call in calls)
            out.append(message["content"] + shown + IM_END)
    return out


def test_conversations_with_tools_train_on_the_words_of_the_model_and_nothing_else(
    load: Load, tokens: Any, tmp_path: Path
) -> None:
    chat_rows = load("sft-chat")
    trainer = sft(chat_rows, tokens, tmp_path, 12, assistant_only_loss=True)
    rows = seen_and_trained(trainer, tokens)
    assert len(rows) == len(chat_rows)
    for (seen, trained), row in zip(rows, chat_rows, strict=True):
        assert trained == "".join(replies_of(row)) == "".join(REPLY.findall(seen))
        assert row["messages"][0]["content"][:200] in seen
        assert row["messages"][0]["content"][:200] not in trained
        assert '"parameters"' in seen  # the tools are shown, not learned
        assert '"parameters"' not in trained
        results = [m["content"] for m in row["messages"] if m["role"] == "tool"]
        assert all(result in seen and result not in trained for result in results)
    assert sum(m["role"] == "tool" for row in chat_rows for m in row["messages"]) > 10
    trainer.train()
    assert parts.fell(parts.losses(trainer), to=0.8), parts.losses(trainer)


def test_the_arguments_of_a_call_reach_the_template_as_they_were_recorded(
    load: Load, tokens: Any, tmp_path: Path
) -> None:
    chat_rows = load("sft-chat")
    [(seen, _), *_] = seen_and_trained(sft(chat_rows, tokens, tmp_path, 1, assistant_only_loss=True), tokens)
    told = [json.loads(call) for call in re.findall(r"<tool_call>(.*?)</tool_call>", seen, re.DOTALL)]
    recorded = [call["function"] for m in chat_rows[0]["messages"] for call in m.get("tool_calls") or ()]
    assert told == [{"name": call["name"], "arguments": call["arguments"]} for call in recorded]
    assert any("class ModelNew" in str(call["arguments"].get("source")) for call in told)


def test_best_kernels_train_on_the_completion_and_nothing_else(load: Load, tokens: Any, tmp_path: Path) -> None:
    best_rows = load("sft-best")
    trainer = sft(best_rows, tokens, tmp_path, 12)
    for (seen, trained), row in zip(seen_and_trained(trainer, tokens), best_rows, strict=True):
        assert trained.strip() == row["completion"][0]["content"] + IM_END
        assert "class ModelNew" in trained
        assert row["prompt"][-1]["content"] in seen
    trainer.train()
    assert parts.fell(parts.losses(trainer), to=0.8), parts.losses(trainer)


def test_preferences_train_the_better_answer_up_and_the_worse_one_down(load: Load, tokens: Any, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    data = load("dpo")
    all_at_once = {"per_device_train_batch_size": len(data)}
    settings = DPOConfig(**parts.settings(tmp_path, 8, max_length=None, learning_rate=1e-3, **all_at_once))
    trainer = DPOTrainer(
        parts.model(len(tokens)), parts.model(len(tokens)), args=settings, train_dataset=data, processing_class=tokens
    )
    trainer.train()
    curve = parts.losses(trainer)
    assert curve[0] == pytest.approx(0.693, abs=0.01)  # log 2: nothing is preferred yet
    assert parts.fell(curve, to=0.95), curve
    margins = [entry["rewards/margins"] for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert margins[-1] > margins[0]


def test_good_and_bad_answers_train_with_kto(load: Load, tokens: Any, tmp_path: Path) -> None:
    from trl import KTOConfig, KTOTrainer

    data = load("kto")
    assert set(data["label"]) == {True, False}
    all_at_once = {"per_device_train_batch_size": len(data)}  # two rows alike leave nothing to compare
    settings = KTOConfig(**parts.settings(tmp_path, 8, max_length=None, learning_rate=2e-3, **all_at_once))
    trainer = KTOTrainer(
        parts.model(len(tokens)), parts.model(len(tokens)), args=settings, train_dataset=data, processing_class=tokens
    )
    trainer.train()
    assert parts.fell(parts.losses(trainer), to=0.9), parts.losses(trainer)


def test_prompts_train_with_grpo_towards_a_reward(load: Load, tokens: Any, tmp_path: Path) -> None:
    from trl import GRPOConfig, GRPOTrainer

    shown: list[dict[str, Any]] = []

    def short_words(completions: list[Any], **columns: Any) -> list[float]:
        """The share of spaces: easy to learn for a model that knows nothing."""
        shown.append(columns)
        texts = [completion[0]["content"] for completion in completions]
        return [text.count(" ") / (len(text) + 1) for text in texts]

    data = load("sft-best").remove_columns("completion")
    more = {"num_generations": 8, "per_device_train_batch_size": 8, "max_completion_length": 24, "beta": 0.0}
    settings = GRPOConfig(**parts.settings(tmp_path, 24, **more))
    model = parts.model(len(tokens))
    trainer = GRPOTrainer(model, reward_funcs=short_words, args=settings, train_dataset=data, processing_class=tokens)
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert sum(rewards[-4:]) > 1.5 * sum(rewards[:4]), rewards
    assert shown[0]["prompts"][0] in [row["prompt"] for row in data]
    assert {"place", "task", "gpu"} <= set(shown[0])  # the other columns of a row reach the reward
