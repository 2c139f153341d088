"""What a check had to do without, in words: of a comparison, of a battery, of a verdict. Pure.

A check that is weaker than this project's own is never silently so: a comparison says it in its detail, a verdict that
accepts says it behind its claim, and the receipt lists it as `not_in_full`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tools.codec import Json
from tools.verdict import CaseResult, Verdict

NOT_FLOAT64 = "no memory for float64, compared with the reference in its own dtype"
NO_NOISE = "no memory to measure the noise, its share of the tolerance follows from the row's size"
LEFT_OUT = "no memory to draw these inputs, left out"
OWN_DTYPE = "the reference does not run in float64, compared with it in its own dtype"
MANY_OUTPUTS = (
    "more outputs than its noise is measured for, the noise's share of the tolerance follows from the row's size"
)
NATIVE_MISSES = "inputs at which torch's own arithmetic misses the answer as far say nothing"
FACT = "not_in_full"
_OF_MEMORY = (NOT_FLOAT64, NO_NOISE, LEFT_OUT)
_OF_COMPARISONS = (NOT_FLOAT64, NO_NOISE, OWN_DTYPE, MANY_OUTPUTS, NATIVE_MISSES)
_INTRODUCTION = "; not checked in full: "
_ASKED = re.compile(r"(?:tried to allocate|asked for) ([\d.]+ \w+)", re.IGNORECASE)


def lacking(words: str, error: str = "") -> str:
    """The words, with what was asked for when the memory ran out, where an error says it."""
    asked = _ASKED.search(error)
    return f"{words} (asked for {asked[1]})" if asked else words


def marked(result: CaseResult, others: Iterable[CaseResult]) -> CaseResult:
    """The result, which stands for the others and so says what any of them lacked."""
    told = " ".join(other.detail for other in others)
    more = [words for words in _OF_COMPARISONS if words in told and words not in result.detail]
    return replace(result, detail="; ".join(filter(None, (result.detail, *more)))) if more else result


def told(verdict: Verdict, left_out: Iterable[str] = ()) -> Verdict:
    """The verdict with everything that its comparisons lacked, and the batteries that were left out (as case/battery),
    in its receipt and, when it accepts, in words. Telling it twice changes nothing."""
    found: dict[str, Json] = {}
    for words in _OF_COMPARISONS:
        if names := [f"{c.case}/{c.inputs}" for c in verdict.cases if words in c.detail]:
            found[words] = list(dict.fromkeys(names))
    if names := list(dict.fromkeys([*left_out_of(verdict), *left_out])):
        found[LEFT_OUT] = names
    if not found:
        return verdict
    claim = verdict.detail.partition(_INTRODUCTION)[0]
    words = f"{_INTRODUCTION}{in_words(found)}" if verdict.accepted else ""
    return replace(verdict, detail=claim + words, receipt={**verdict.receipt, FACT: found})


def left_out_of(verdict: Verdict) -> list[str]:
    """The batteries that a verdict was told to do without."""
    return list(_known(verdict).get(LEFT_OUT, ()))


def in_words(found: Mapping[str, Json]) -> str:
    """What `not_in_full` of a receipt holds, as one clause."""
    return "; ".join(f"{words}: {_by_case(names)}" for words, names in found.items())


def _by_case(names: Iterable[str]) -> str:
    cases: dict[str, list[str]] = {}
    for name in names:
        case, _, battery = name.rpartition("/")
        cases.setdefault(case, []).append(battery)
    return ", ".join(f"{case} ({', '.join(batteries)})" for case, batteries in cases.items())


def short_of_memory(verdict: Verdict) -> bool:
    """Whether another time more memory might have made the check a full one."""
    return any(words in _known(verdict) for words in _OF_MEMORY)


def _known(verdict: Verdict) -> Mapping[str, Json]:
    known = verdict.receipt.get(FACT)
    return known if isinstance(known, Mapping) else {}
