"""Tensors without data, which a model is run on to see what it does."""

from typing import Any

from torch._subclasses import fake_tensor


class CopiedFakes(fake_tensor.FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors of which copies are of the same mode. torch's deepcopy of one copies its mode, too, and then refuses
    to mix the two: so any nn.TransformerEncoder, which copies its layer."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> "CopiedFakes":
        return self
