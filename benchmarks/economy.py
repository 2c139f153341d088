"""What a run of 50 turns costs at list prices, and how much of its prompts the provider reads from its cache.

    python -m benchmarks.economy [--turns 50] [--strategy refine]

`optimize` as a person starts it, without a GPU, against a provider on loopback that counts cached prefixes as Anthropic
does, by the markers in the requests; a token is four characters. The model is simulated: in each turn it thinks for 200
to 1,500 tokens, writes an attempt (half of them whole files of 55 to 100 lines, half edits), benches it, and reflects
on every fifth. Some do not compile, some are wrong. Its replies are drawn with a seed, so that two versions of the
author are asked the same. Takes some ten minutes on two busy cores.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kerneltune.agent.events import Replied, Said
from kerneltune.agent.models.http_api import list_price_usd
from kerneltune.agent.models.types import Usage
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.codec import decode
from tests.agent.models.server import LlmServer

MODEL = "claude-opus-5-5"
WORDS = (
    "the row stays in registers while each warp reads a coalesced slice so latency of loads is hidden by occupancy but "
    "shared memory would need a barrier between passes and the exponent is cheaper in base two with a folded scale"
).split()
HEAD = '''"""{words}"""

import torch
import triton
import triton.language as tl
from torch import nn
'''
KERNEL = '''

@triton.jit
def rows_{i}(x, y, cols, stride, BLOCK: tl.constexpr):
    """{words}"""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64)
    inside = at < cols
    values = tl.load(x + row * stride + at, mask=inside, other=float("-inf")).to(tl.float32)
    largest = tl.max(values, 0)
    powers = tl.exp2((values - largest) * 1.4426950408889634)
    total = tl.sum(powers, 0)
    tl.store(y + row * stride + at, powers / total, mask=inside)
'''
MODULE = """

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        rows_0[(x.shape[0],)](x, y, x.shape[1], x.stride(0), BLOCK=block, num_warps={warps})
        return y  # {turn}
"""


def words(draw: random.Random, characters: int) -> str:
    """Prose of about so many characters."""
    return " ".join(draw.choices(WORDS, k=max(1, characters // 6)))


def wrapped(text: str, width: int = 90) -> str:
    """The same in lines."""
    return "\n".join(text[i : i + width] for i in range(0, len(text), width))


def source(draw: random.Random, turn: int) -> str:
    """A whole file. A file of a person's or a model's has more than one kernel and words in it."""
    kernels = "".join(
        KERNEL.format(i=i, words=wrapped(words(draw, 100)).replace("\n", "\n    ")) for i in range(draw.randint(3, 6))
    )
    made = HEAD.format(words=wrapped(words(draw, 200))) + kernels
    return made + MODULE.format(warps=draw.choice((2, 4, 8, 16)), turn=f"turn {turn}")


def story(turns: int) -> list[dict[str, Any]]:
    """A model's replies: attempt `turn` is made and benched in that turn; edits are those of the last whole file."""
    draw, lines, whole = random.Random(20261123), [], 1
    for turn in range(1, turns + 1):
        update: dict[str, Any] = {
            "parent": None, "rationale": words(draw, 90), "hypothesis": None, "predicted_speedup": None, "source": None,
            "edits": None,
        }  # fmt: skip
        if turn % 2:
            whole, update["source"] = turn, source(draw, turn)
            if turn % 7 == 0:
                update["source"] = update["source"].replace("tl.exp2(", "tl.exponent(")  # does not compile
        else:
            change = "return y.clone()" if turn % 8 == 0 else "return y.mul(2)" if turn % 10 == 0 else "return y"
            edit = {"search": f"return y  # turn {whole}", "replace": f"{change}  # {words(draw, 60)} {turn}"}
            claim = {"hypothesis": words(draw, 120), "predicted_speedup": round(draw.uniform(1, 1.5), 2)}
            update |= {"parent": whole, "edits": [edit], **claim}
        calls = [{"name": "update", "arguments": update}, {"name": "bench", "arguments": {"attempt": turn}}]
        if turn % 5 == 0:
            calls.append({"name": "reflect", "arguments": {"attempt": turn, "hypothesis": words(draw, 100)}})
        thinking = words(draw, 4 * int(draw.triangular(200, 1_500, 200)))
        lines.append({"thinking": thinking, "text": words(draw, 160), "calls": calls})
    return lines


def run(turns: int, strategy: str, folder: Path) -> list[Replied | Said]:
    """What the model said and was told, as recorded; words on their way are not."""
    command = [sys.executable, "-c", "from kerneltune.agent.cli import main; main()", "--task", "softmax", "--json"]
    with LlmServer(story(turns), "anthropic") as server:
        done = subprocess.run(
            [*command, "--model", f"anthropic:{MODEL}", "--base-url", server.url, "--runs-dir", str(folder),
             "--max-attempts", str(turns), "--strategy", strategy],
            env={"ANTHROPIC_API_KEY": server.key, "HOME": str(folder), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        assert done.returncode == 0
        assert server.refused == []
    with Store.open(folder) as store:
        (run_id,) = store.run_ids()
        return [e for e in store.load_events(run_id) if isinstance(e, Replied | Said)]


def usd(*, read: int = 0, written: int = 0, written_1h: int = 0, fresh: int = 0, out: int = 0) -> float:
    """The list price of so many tokens."""
    price = list_price_usd("anthropic", MODEL, Usage(read + written + fresh, out, read, written, None, written_1h))
    assert price is not None
    return price


def main() -> None:
    """Print the bill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--strategy", default="refine")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        said = run(given.turns, given.strategy, Path(folder))
    used = [decode(Usage, e.usage) for e in said if isinstance(e, Replied) and e.usage]
    read, written, hourly = (
        sum(getattr(u, n) for u in used) for n in ("cached_tokens", "cache_write_tokens", "cache_write_1h_tokens")
    )
    prompt, out = sum(u.input_tokens for u in used), sum(u.output_tokens for u in used)
    fresh = prompt - read - written
    rows = [
        ("read from the cache", read, usd(read=read)),
        ("written to it", written, usd(written=written, written_1h=hourly)),
        ("neither", fresh, usd(fresh=fresh)),
        ("output", out, usd(out=out)),
    ]
    for name, tokens, price in rows:
        print(f"{name:20} {tokens:>9,} tokens  ${price:.3f}")
    told = sum(len(e.text) for e in said if isinstance(e, Said) and e.role == "tool") // 4
    total = sum(price for *_, price in rows)
    histories = sum(e.role == "user" and e.raw is not None for e in said if isinstance(e, Said))
    prompts = [u.input_tokens for u in used]
    print(f"{len(used)} replies; the first prompt {prompts[0]:,}, the longest {max(prompts):,}")
    print(f"results of tools {told:,} tokens; {histories} histories")
    print(f"cached {read / prompt:.1%}; ${total:.2f}")


if __name__ == "__main__":
    main()
