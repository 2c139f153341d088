"""Verdicts by what was judged: search loops hand in the same plan again and again."""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from kerneltune.tools.judge.service.protocol import BenchRequest
from kerneltune.tools.schema.plan import plan_hash
from kerneltune.tools.schema.verdict import Status, Tier, Verdict

_MOST = 1024
_LASTING = (Status.REJECTED, Status.WRONG, Status.IMPOSSIBLE, Status.CORRECT)  # the others may be the machine's fault


def name_of(request: BenchRequest, blobs: Sequence[bytes]) -> str:
    """The same for the same plans, cubins, launch metadata, tier and baselines, and for nothing else."""
    parts = [request.tier, repr(request.rules), str(request.repeats), str(request.all_baselines)]
    parts += [plan_hash(plan) for plan in request.plans]
    for image, blob in zip(request.images, blobs, strict=True):
        parts += [image.sha256, repr(sorted(image.metadata.items())), hashlib.sha256(blob).hexdigest()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class VerdictCache:
    """The latest verdicts that would come out the same again."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._held: OrderedDict[str, Verdict] = OrderedDict()

    def find(self, name: str) -> Verdict | None:
        """The verdict of that name, marked as not judged anew; None when there is none."""
        known = self._held.get(name)
        return None if known is None else replace(known, receipt={**known.receipt, "reused": True})

    def find_in_full(self, request: BenchRequest, blobs: Sequence[bytes]) -> Verdict | None:
        """What a confirmation is to confirm, when that was judged in full already."""
        if request.tier != "confirmed" or not request.reuse:
            return None
        return self.find(name_of(replace(request, tier="judged"), blobs))

    def keep(self, name: str, verdict: Verdict, tier: Tier = "judged") -> None:
        """Remember a verdict on what was asked for in that tier. Neither a confirmation nor its refusal is reused: its
        point is to be measured anew. Nor is what was checked with less for want of memory, which may be there then."""
        if verdict.status in _LASTING and tier != "confirmed" and not verdict.lacked_memory:
            self._held[name] = verdict
            while len(self._held) > self._most:
                self._held.popitem(last=False)
