"""The words of a global access, taken apart and put together in the order that PTX asks for. Pure."""

from dataclasses import dataclass, replace

from tools.ptx.ir import Instruction

_COPS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt")
_L1 = "L1::"
_PREFETCH = ("L2::64B", "L2::128B", "L2::256B")
_HINT = "L2::cache_hint"


@dataclass(frozen=True)
class Words:
    """ld.global{.cop}{.nc}{.L1::…}{.L2::cache_hint}{.L2::…B}{.v4}.b32 — `policy`: a createpolicy register follows."""

    cop: str = ""
    nc: bool = False
    l1: str = ""
    policy: bool = False
    prefetch: str = ""
    vector: str = ""
    kind: str = "b32"

    @property
    def count(self) -> int:
        """Elements of an access."""
        return int(self.vector[1:]) if self.vector else 1

    def modifiers(self) -> tuple[str, ...]:
        """In PTX's order."""
        found = (
            "global", self.cop, "nc" if self.nc else "", self.l1, _HINT if self.policy else "", self.prefetch,
            self.vector, self.kind,
        )  # fmt: skip
        return tuple(word for word in found if word)


def words(access: Instruction) -> Words | None:
    """Of a global ld or st; None where there are words that are not known here (volatile, relaxed, L2::evict…)."""
    first, *middle, kind = access.modifiers if len(access.modifiers) > 1 else ("", "")
    if access.opcode not in ("ld", "st") or first != "global":
        return None
    found = Words(kind=kind)
    for word in middle:
        if word in _COPS:
            found = replace(found, cop=word)
        elif word == "nc":
            found = replace(found, nc=True)
        elif word.startswith(_L1):
            found = replace(found, l1=word)
        elif word == _HINT:
            found = replace(found, policy=True)
        elif word in _PREFETCH:
            found = replace(found, prefetch=word)
        elif word in ("v2", "v4"):
            found = replace(found, vector=word)
        else:
            return None
    return found


def with_words(access: Instruction, new: Words) -> Instruction:
    """The access with other words; its policy goes where the words name none."""
    operands = access.operands if new.policy else access.operands[:2]
    return replace(access, modifiers=new.modifiers(), operands=operands)
