"""What can go wrong with a model. Only what ends a conversation, or has to be handled by whoever holds it."""

from kerneltune.tools.schema.errors import KerneltuneError


class LlmError(KerneltuneError):
    """A model could not be asked. The message names the provider, what it said, and the way out."""


class KeyRejected(LlmError):
    """The API key is missing, wrong or expired, or may not use this model."""


class OutOfCredit(LlmError):
    """The account has no money left, or reached its spending limit."""


class NoSuchModel(LlmError):
    """The provider does not know the model; the message lists some that it knows."""


class RequestRejected(LlmError):
    """The provider will not take the request whatever is done about it."""


class ContextOverflow(LlmError):
    """The conversation is longer than the model can read: shorten it and ask again."""


class Unavailable(LlmError):
    """The provider does not answer, or is too busy, after all retries. `retry_after_s`: when to come back, if it said
    so."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
