"""`optimize eval`: independent samples of a model on many tasks, as a suite whose seeds are the samples."""

from typing import Annotated

from cyclopts import App, Parameter

from kerneltune.agent.commands import Arch, AsLines, RunsDir, Tier, Unsandboxed, Width
from kerneltune.agent.commands.suite import (
    Asked,
    AsText,
    BaseUrl,
    Dollars,
    Kernels,
    LogProbs,
    ModelEffort,
    Name,
    Ray,
    author_names,
    run_suite,
)
from kerneltune.agent.settings import chosen_settings, environment
from kerneltune.tools.schema.errors import UsageError

command = App(
    name="eval",
    help_epilogue="""
Examples:
    optimize eval --model anthropic --suite builtin --samples 10
    optimize eval --model chat:qwen --base-url http://host/v1 --suite level1/
    optimize eval --model openai --suite softmax --samples 2 --json | tail -1
""",
)


@command.default
def evaluate(
    *,
    model: Annotated[str, Parameter(metavar="MODEL", help="The model: anthropic[:ID], openai[:ID], chat:ID.")],
    suite: Annotated[
        list[str],
        Parameter(
            metavar="PATH", negative="", help="The tasks, as optimize suite takes them; may be given several times."
        ),
    ],
    samples: Annotated[int, Parameter(metavar="K", help="Independent samples of each task; 1 by default.")] = 1,
    attempts: Annotated[int, Parameter(metavar="N", help="Attempts that a sample may make; 1 by default.")] = 1,
    name: Name = "",
    max_cost_usd: Dollars = None,
    base_url: BaseUrl = None,
    effort: ModelEffort = None,
    logprobs: LogProbs = None,
    language: Kernels = None,
    tier: Tier = None,
    width: Width = None,
    arch: Arch = None,
    ray: Ray = "",
    runs_dir: RunsDir = None,
    json: AsLines = False,
    plain: AsText = False,
    allow_unsandboxed: Unsandboxed = None,
) -> int:
    """Draw independent samples of a model on many tasks, and estimate pass@k.

    Each sample is a stored run, independent of the others. Repeat the command to continue.

    Exit code 0: all samples were drawn; 1: some were not; 2: bad input.
    """
    for flag, value in (("--samples", samples), ("--attempts", attempts)):
        if value < 1:
            raise UsageError(f"{flag} {value}: give at least 1")
    settings = chosen_settings({key: value for key, value in locals().items() if key not in ("flag", "value")})
    authors = tuple(author_names(model, settings, environment()))
    asked = Asked(suite, authors, samples, name, sample_attempts=attempts, ray=ray)
    return run_suite(asked, settings, json=json, plain=plain)
