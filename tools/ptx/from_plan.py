"""A PTX candidate from a Triton candidate: what its plans launch, with each kernel as the PTX that Triton made. Pure."""

from collections.abc import Mapping

from tools.plan.schema import Plan


class CannotSay(Exception):
    """A plan that no PTX candidate of this form can follow; the words say what stands in the way."""


def ptx_candidate(
    source: str, plans: Mapping[str, Plan], ptx: Mapping[str, str], shared_bytes: Mapping[str, int] | None = None
) -> str:
    """One Python file: `source`, then a ModelNew over its ModelNew that launches PTX for exactly the traced shapes.

    `plans`: by case, those that may be told to an author (never held-out ones), the best variant of each. `ptx`: Triton's
    text by Kernel.sha256. `shared_bytes`: dynamic shared memory by Kernel.sha256 (Compiled.metadata["shared"]), which
    PTX does not say; needed for kernels whose text declares `.extern .shared`. Other shapes go the Triton way.
    Raises CannotSay, and PtxError for text that is no PTX.
    """
    raise NotImplementedError
