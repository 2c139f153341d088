"""Do trainers' own loops run against the service? Each by the Python of a trainer, with scripted replies, on a CPU.

    KERNELTUNE_SERVICE=unix:… PYTHONPATH=kerneltune/rl VENV/bin/python benchmarks/trainers.py trl ROWS
    … trl-turns, verl, verifiers, openenv, inspect

ROWS is a file of `optimize export --format verl --as jsonl` with softmax in it. A policy that is scripted sends a file
that does not compile, the right one, has it benched and ends; another one says that it cannot. Prints what each earned
and asserts it: 1 and 0 by fast_0. Where the loop trains, a gradient step is made of it. `down` as the last word: the
service is not there, and no reward may come of that; `faulty`: it is there, and begins and ends rollouts alone.
"""

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

os.environ |= dict.fromkeys(("HF_HUB_OFFLINE", "TRL_EXPERIMENTAL_SILENCE", "HF_DATASETS_OFFLINE"), "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
RIGHT = """
import torch, triton, triton.language as tl

@triton.jit
def row(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        row[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
"""
BROKEN = RIGHT.replace("tl.exp(", "tl.expo(")
Call = tuple[str, dict[str, Any]]
CALLS: list[Call] = [
    ("update", {"source": BROKEN, "rationale": "one program a row"}),
    ("update", {"source": RIGHT, "rationale": "exp"}),
    ("bench", {"attempt": 2}),
]
DOWN = "unix:/nowhere/optimize.sock"


def rows_of(file: str) -> list[dict[str, Any]]:
    """The row of softmax, twice."""
    rows = [json.loads(line) for line in Path(file).read_text().splitlines()]
    return [row for row in rows if row["extra_info"]["module_name"] == "softmax"][:1] * 2


def hermes(call: Call) -> str:
    """As models of the Qwen family write a call."""
    return f"<tool_call>\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n</tool_call>"


# TRL ------------------------------------------------------------------------------------------------------------------


def trl(rows: list[dict[str, Any]], *, is_down: bool) -> None:
    """GRPO with the reward function; answers are whole files."""
    from kernel_trl import kernel_reward
    from trl import GRPOTrainer

    answers = [f"```python\n{RIGHT}\n```", "I cannot do that.", f"```python\n{BROKEN}\n```", f"```python\n{RIGHT}\n```"]
    trainer = _grpo(GRPOTrainer, rows, [[a] for a in answers], reward_funcs=kernel_reward)
    rewards = _trained(trainer)
    print("rewards by step", rewards)
    assert rewards == ([None] if is_down else [0.5]), rewards


def trl_turns(rows: list[dict[str, Any]], *, is_down: bool) -> None:
    """GRPO with the environment, and advantages of turns."""
    import torch
    from kernel_trl import KernelEnv
    from kernel_trl_turns import TurnGRPO, turn_advantages

    mask = torch.tensor([[1, 1, 0, 1, 0, 1], [1, 1, 1, 1, 0, 0]])
    found = turn_advantages([[1.0, 4.0], [3.0]], [[0, 1], [0]], mask, 2)
    assert found.tolist() == [[-2, -2, 0, 0, 0, 0], [2, 2, 2, 2, 0, 0]]  # nobody else had a second turn
    refused = hermes(("update", {"source": RIGHT}))  # by TRL: it lacks an argument
    good, poor = [hermes(CALLS[0]), refused, *map(hermes, CALLS[1:]), "Done."], [hermes(CALLS[0]), "I cannot do that."]
    trainer = _grpo(TurnGRPO, rows, [good, poor, poor, good], environment_factory=KernelEnv)
    seen: list[Any] = []
    scored = trainer._generate_and_score_completions

    def kept(inputs: Any) -> Any:
        seen.append(scored(inputs))
        return seen[-1]

    trainer._generate_and_score_completions = kept
    rewards = _trained(trainer)
    print("rewards by step", rewards, "advantages", [sorted(set(a.tolist())) for a in seen[0]["advantages"]])
    assert rewards == ([None] if is_down else [0.5]), rewards
    assert seen[0]["advantages"].dim() == 2
    assert is_down or [environment.ends for environment in trainer.environments] == [[0, 2], [0], [0], [0, 2]]
    assert bool(seen[0]["advantages"].any()) is not is_down


def _grpo(kind: Any, rows: list[dict[str, Any]], scripts: list[list[str]], **more: Any) -> Any:
    """A trainer whose policy says what its script says; its gradient is real."""
    import trl
    from consumers import tiny, tokenizer
    from datasets import Dataset

    said = [text for script in scripts for text in script]
    tokens = tokenizer(iter([*said, json.dumps(rows)]))
    tokens.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    settings = trl.GRPOConfig(
        **{"output_dir": tempfile.mkdtemp(), "max_steps": 1, "per_device_train_batch_size": len(scripts)},
        **{"num_generations": len(scripts), "max_completion_length": 8192, "logging_steps": 1, "report_to": "none"},
        **{"use_cpu": True, "bf16": False, "save_strategy": "no", "beta": 0.0, "gradient_checkpointing": False},
    )
    trainer = kind(
        tiny(len(tokens)), args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokens, **more
    )
    left = [list(script) for script in scripts]

    def speak(_trainer: Any, prompt_ids: list[Any], *_: Any, **__: Any) -> tuple[Any, Any]:
        waiting = [script for script in left if script]
        texts = [waiting[i].pop(0) for i in range(len(prompt_ids))]
        return [tokens(text + tokens.eos_token)["input_ids"] for text in texts], None

    trl.GRPOTrainer._generate_single_turn = speak  # what is built on that still counts speeches
    return trainer


def _trained(trainer: Any) -> list[float | None]:
    """The mean reward of each step; None where no reward was known."""
    trainer.train()
    logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    return [None if reward != reward else reward for reward in logged]


# verl -----------------------------------------------------------------------------------------------------------------


def verl(rows: list[dict[str, Any]], *, is_down: bool) -> None:
    """Its tool agent's loop with our tool, and its reward manager with our function; no training, which wants a GPU."""
    import kernel_verl
    from kernel_service import Fault

    kernel_verl.WAIT_S = 0.0
    found: Any = None
    try:
        found = asyncio.run(_verl(rows))
    except Fault as error:
        print("no reward:", error)
    print("scores", found)
    assert found == (None if is_down else [1.0, 0.0, 1.0, 0.0])


async def _verl(rows: list[dict[str, Any]]) -> list[float]:
    import numpy as np
    import torch
    import yaml
    from consumers import tokenizer
    from kernel_verl import KernelTool, compute_score
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.tools.schemas import OpenAIFunctionToolSchema
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.replica import TokenOutput

    told = yaml.safe_load((Path(kernel_verl_file()).with_name("kernel_verl_tool.yaml")).read_text())["tools"][0]
    tool = KernelTool(told["config"], OpenAIFunctionToolSchema.model_validate(told["tool_schema"]))
    good = [hermes(("bench", {"source": BROKEN})), hermes(("bench", {"source": RIGHT})), "Done."]
    poor = [hermes(("bench", {"source": BROKEN})), "I cannot do that."]
    tokens = tokenizer(iter([*good, *poor, json.dumps(rows)]))
    tokens.chat_template = QWEN
    multi = {"max_user_turns": 8, "max_assistant_turns": 8, "max_parallel_calls": 1, "format": "hermes",
             "max_tool_response_length": 4000, "tool_response_truncate_side": "middle"}  # fmt: skip
    rollout = {"prompt_length": 8192, "response_length": 8192, "multi_turn": multi, "full_determinism": False}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    scores = []
    for script in (good, poor):

        class Scripted:
            def __init__(self, script: list[str]) -> None:
                self.left = list(script)

            async def generate(self, **_: Any) -> TokenOutput:
                return TokenOutput(token_ids=tokens(self.left.pop(0) + tokens.eos_token)["input_ids"])

        loop = ToolAgentLoop(
            DictConfigWrap(config),
            Scripted(script),
            tokens,
            None,
            RLHFDataset,
            DictConfigWrap(config.data),
            tools=ToolListWrap([tool]),
        )
        extra = rows[0]["extra_info"]
        out = await loop.run({}, raw_prompt=rows[0]["prompt"], tools_kwargs=extra["tools_kwargs"], extra_info=extra)
        scores.append(
            await _scored(
                rows[0],
                out.response_ids,
                dict(out.extra_fields),
                tokens,
                np,
                torch,
                DataProto,
                NaiveRewardManager,
                compute_score,
            )
        )
    for text in (f"```python\n{RIGHT}\n```", "I cannot do that."):
        ids = tokens(text)["input_ids"]
        scores.append(await _scored(rows[0], ids, {}, tokens, np, torch, DataProto, NaiveRewardManager, compute_score))
    return scores


async def _scored(
    row: Any, ids: Any, fields: Any, tokens: Any, np: Any, torch: Any, proto: Any, manager: Any, score: Any
) -> float:
    from omegaconf import OmegaConf

    response = torch.tensor([ids])
    held = {
        "data_source": row["data_source"],
        "reward_model": row["reward_model"],
        "extra_info": {**row["extra_info"], **fields},
    }
    data = proto.from_dict(
        {"responses": response, "attention_mask": torch.ones_like(response), "prompts": response[:, :0]},
        non_tensors={name: np.array([value], dtype=object) for name, value in held.items()},
    )
    made = await manager(OmegaConf.create({}), tokens, score).run_single(data)
    return float(made["reward_score"])


def kernel_verl_file() -> str:
    """Where the client lies."""
    import kernel_verl

    return str(kernel_verl.__file__)


QWEN = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


# verifiers --------------------------------------------------------------------------------------------------------


def verifiers(rows: list[dict[str, Any]], *, is_down: bool) -> None:
    """Its evaluation with its own agent, whose model is a server of ours that goes by the script."""
    import subprocess

    work = Path(tempfile.mkdtemp())
    (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:1]))
    with_model = ThreadingHTTPServer(("127.0.0.1", 0), _ScriptedModel)
    threading.Thread(target=with_model.serve_forever, daemon=True).start()
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("vf-eval")), "kernel_verifiers"),
            *("--env.taskset.rows", str(work / "rows.jsonl")),
            *("--model", "scripted", "--client.base-url", f"http://127.0.0.1:{with_model.server_port}/v1"),
            *("--client.api-key-var", "SCRIPTED_KEY", "--num-rollouts", "1", "--env.agent.harness.id", "null"),
            *("--env.agent.runtime.type", "subprocess"),
            *("--run.dir", str(work / "out"), "--rich", "None"),
        ],
        env=os.environ | {"SCRIPTED_KEY": "none"}, capture_output=True, text=True, cwd=work,
    )  # fmt: skip
    found = [
        json.loads(line) for path in (work / "out").rglob("traces.jsonl") for line in path.read_text().splitlines()
    ]
    if not found:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
    (trace,) = found[0]["traces"]
    print("rewards", trace["rewards"], "errors", [error["type"] for error in trace["errors"]])
    score = trace["rewards"].get("kernel")
    assert (score["score"] if score else None) == (None if is_down else 1.0)
    assert bool(trace["errors"]) is is_down


class _ScriptedModel(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        n_done = sum(message["role"] == "tool" for message in asked["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if n_done < len(CALLS):
            name, arguments = CALLS[n_done]
            named = next(t["function"]["name"] for t in asked["tools"] if t["function"]["name"].endswith(name))
            function = {"name": named, "arguments": json.dumps(arguments)}
            message = {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": f"c{n_done}", "type": "function", "function": function}],
            }
        why = "tool_calls" if n_done < len(CALLS) else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        about = {"id": "x", "created": 0, "model": "scripted", "usage": usage}
        choice = {"index": 0, "message": message, "finish_reason": why}
        body = json.dumps({**about, "object": "chat.completion", "choices": [choice]})
        if asked.get("stream"):
            for i, call in enumerate(message.get("tool_calls", ())):
                call["index"] = i
            choice = {"index": 0, "delta": message, "finish_reason": why}
            body = json.dumps({**about, "object": "chat.completion.chunk", "choices": [choice]})
            body = f"data: {body}\n\ndata: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if asked.get("stream") else "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


# OpenEnv ----------------------------------------------------------------------------------------------------------


def openenv(rows: list[dict[str, Any]], *, is_down: bool) -> None:
    """Its server with its client over a WebSocket."""
    import time

    import kernel_openenv
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(kernel_openenv.app, port=0, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    with kernel_openenv.KernelClient(base_url=f"ws://127.0.0.1:{port}", message_timeout_s=300.0).sync() as env:
        told = env.reset(task="softmax", reward="fast_0")
        if is_down:
            assert (told.observation.fault, told.done, told.reward) == (True, True, None)
            print("no reward:", told.observation.text)
            return
        assert "softmax" in told.observation.text
        steps = [env.step(kernel_openenv.KernelAction(name=name, arguments=arguments)) for name, arguments in CALLS]
        last = env.step(kernel_openenv.KernelAction(name="end"))
    alone = kernel_openenv.KernelEnvironment()
    alone.reset(task="softmax")
    mistaken = alone.step(kernel_openenv.KernelAction(name="no such tool" * 9))
    assert (mistaken.fault, mistaken.done) == (False, False), mistaken
    ended = [alone.step(kernel_openenv.KernelAction(name="end")) for _ in range(2)]
    assert [(step.reward, step.fault) for step in ended] == [(0.0, False), (None, True)]  # it has given its place back
    print("rewards", [step.reward for step in steps], "at the end", last.reward)
    assert [step.reward for step in steps] == [0.0, None, 1.0]
    assert (last.reward, last.done) == (1.0, True)
    server.should_exit = True


# inspect-ai -------------------------------------------------------------------------------------------------------


def inspect(rows: list[dict[str, Any]], *, is_down: bool) -> None:
    """Its evaluation with its own agent and its scripted model."""
    import kernel_inspect
    from inspect_ai import eval as evaluated
    from inspect_ai.model import ModelOutput, ModelUsage, get_model

    file = Path(tempfile.mkdtemp()) / "rows.jsonl"
    file.write_text(json.dumps(rows[0]) + "\n")
    calls = [ModelOutput.for_tool_call("mockllm/model", *call) for call in (*CALLS, ("submit", {"answer": "done"}))]
    for one in calls:
        one.usage = ModelUsage()  # or it fetches a tokenizer to count for itself
    model = get_model("mockllm/model", custom_outputs=calls)
    (log,) = evaluated(kernel_inspect.kernels(str(file)), model=model, display="none", log_dir=str(file.parent))
    if is_down:
        print("no reward:", log.status, str(log.error)[:200] if log.error else "")
        assert log.status == "error" or not log.samples[0].scores
        return
    scores = {name: score.value for name, score in log.samples[0].scores.items()}
    print("status", log.status, "scores", scores)
    assert scores == {"kernel": 1.0}


LOOPS: dict[str, Callable[..., None]] = {
    **{"trl": trl, "trl-turns": trl_turns, "verl": verl, "verifiers": verifiers, "openenv": openenv, "inspect": inspect}
}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    name, file, *words = sys.argv[1:]
    if words == ["down"]:
        os.environ["KERNELTUNE_SERVICE"] = DOWN
    LOOPS[name](rows_of(file), is_down=bool(words))
    print(f"{name}: passed")
