"""Who shall write the kernels of a run, and why: what --model says, else the first provider whose key is set."""

from dataclasses import dataclass

from agent.llm.providers import KEY_VARIABLES, OFFLINE, open_model, parse
from agent.llm.types import LanguageModel, Usage
from agent.settings import Environment, Settings
from tools.errors import UsageError


@dataclass(frozen=True)
class Choice:
    """`model` is None for the offline author. `notes`: what a person should know of the model."""

    name: str
    why: str
    model: LanguageModel | None = None
    notes: tuple[str, ...] = ()

    def close(self) -> None:
        """Let go of connections."""
        if self.model is not None:
            self.model.close()


def chosen(settings: Settings, environment: Environment) -> Choice:
    """The author of a new run. Raises UsageError for a --model that nobody knows, LlmError for one that is no use."""
    if settings.model:
        return named(settings.model, "--model", settings, environment)
    if not environment.keys:
        return named(OFFLINE, f"neither {' nor '.join(KEY_VARIABLES.values())} is set", settings, environment)
    provider = environment.keys[0]
    return named(provider, f"{KEY_VARIABLES[provider]} is set", settings, environment)


def named(name: str, why: str, settings: Settings, environment: Environment) -> Choice:
    """The author of that name, which is asked about itself, so that a key or a name that is wrong shows at once."""
    if name == OFFLINE:
        return Choice(OFFLINE, why)
    parse(name)
    keys = {"chat": environment.server_key} if environment.server_key else {}
    model = open_model(name, keys=keys, base_url=settings.base_url or None, effort=settings.effort)
    try:
        facts = model.facts()
    except BaseException:
        model.close()
        raise
    provider = name.partition(":")[0]
    known = name if provider == "scripted" else f"{provider}:{facts.model}"
    return Choice(known, why, model, facts.notes)


def require_price(choice: Choice, settings: Settings) -> None:
    """A limit on cost needs a price. Raises UsageError."""
    if choice.model is None or settings.max_cost_usd is None:
        return
    if choice.model.price_usd(Usage(1_000, 1_000)) is None:
        raise UsageError(
            f"--max-cost {settings.max_cost_usd:g}: the price of {choice.name} is unknown, so no cost can be kept to; "
            "limit the run by --max-attempts or --max-time instead"
        )
