"""What a move means, in words for a person: why it is tried, what it would show, and what it should do."""

from agent.authors.offline.search import Move

# parameter suffix -> (grows, shrinks): hypothesis and prediction of each
_REASONS = {
    "NUM_WARPS": (
        (
            "more warps keep more loads in flight and leave fewer values to each thread",
            "fewer registers; faster if spilling or latency held it back",
        ),
        (
            "fewer warps shorten the reduction across warps and leave room for more programs",
            "more registers a thread; faster unless it spills",
        ),
    ),
    "NUM_STAGES": (
        (
            "a deeper pipeline starts loads earlier",
            "more shared memory; faster if loads were waited for",
        ),
        (
            "a shallower pipeline needs less shared memory, so more programs fit",
            "less shared memory, higher occupancy",
        ),
    ),
    "BLOCK": (
        (
            "a larger block means fewer steps or programs, with more work in flight in each",
            "more registers; faster if the overhead of a step mattered",
        ),
        (
            "a smaller block leaves room for more programs at once",
            "fewer registers, higher occupancy",
        ),
    ),
    "TILE": (
        (
            "a larger tile shares a program's start-up among more rows",
            "fewer programs; faster for short rows",
        ),
        (
            "a smaller tile makes more programs, which balance better",
            "fewer registers, higher occupancy",
        ),
    ),
    "PROGRAMS": (
        (
            "more programs cover more latency",
            "faster if the multiprocessors had idle warps",
        ),
        (
            "fewer programs each keep a longer pipeline",
            "faster if starting programs cost more than waiting",
        ),
    ),
    "GROUP": (
        (
            "more rows of tiles at once share the columns' operand in the L2 cache",
            "less traffic to memory; faster if the operands exceed the cache",
        ),
        (
            "fewer rows of tiles at once share the rows' operand in the L2 cache",
            "faster if the other operand is the larger",
        ),
    ),
    "ROWS": (
        (
            "more rows a program keep more loads in flight and share what all rows read",
            "more registers; faster if one row left threads waiting",
        ),
        (
            "fewer rows a program make more programs, which balance better",
            "fewer registers, higher occupancy",
        ),
    ),
    "HELD": (
        (
            "rows that stay in registers are read once",
            "less traffic; faster unless too few rows fit a multiprocessor",
        ),
        (
            "rows that are read twice need few registers, so more programs fit",
            "faster if the second read hits the L2 cache",
        ),
    ),
    "PIECES": (
        (
            "a result that is stored in more pieces needs less shared memory beside the operands",
            "room for a deeper pipeline",
        ),
        (
            "a result that is stored in fewer pieces waits less often for the store before",
            "fewer instructions after each tile",
        ),
    ),
    "LEAVES_FIRST": (
        (
            "what is not needed again leaves the cache first, so that what is stays",
            "less traffic to memory; faster if the second read missed the L2 cache",
        ),
        (
            "without hints the cache keeps what was used last",
            "faster if the second read hit the L2 cache anyway",
        ),
    ),
    "SPECIALISED": (
        (
            "warps of their own for the loads leave the others to the products",
            "faster if issuing loads held the products back",
        ),
        (
            "without warps for the loads alone, registers and barriers are saved",
            "faster if the pipeline was full anyway",
        ),
    ),
    "SPLITS": (
        (
            "more programs a row fill the GPU when rows are few",
            "faster if fewer programs than multiprocessors ran",
        ),
        (
            "fewer programs a row mean less to combine",
            "faster if the GPU was already full",
        ),
    ),
}


MOST_TOGETHER = 3  # changes that can still be told apart in a hypothesis; more are a jump


def describe(move: Move) -> tuple[str, str, str]:
    """Rationale, hypothesis and prediction."""
    if move.parent is None or not 0 < len(move.steps) <= MOST_TOGETHER:
        jump = "" if move.parent is None else "a jump, away from what was tried: "
        return _and_why(f"{jump}{move.sketch.says}{_values(move)}", move), "", ""
    reasons = [_reason(name, up) for name, up in move.steps]
    hypothesis, prediction = ("; ".join(dict.fromkeys(words)) for words in zip(*reasons, strict=True))
    changes = ", ".join(f"{name} = {move.params[name]}" for name, _ in move.steps)
    return _and_why(f"{changes} in attempt {move.parent.number}: {hypothesis}", move), hypothesis, prediction


def _reason(name: str, up: bool) -> tuple[str, str]:
    grows, shrinks = next((r for key, r in _REASONS.items() if key in name), _REASONS["BLOCK"])
    return grows if up else shrinks


def _values(move: Move) -> str:
    values = ", ".join(f"{name.lower()} {value}" for name, value in move.params.items() if len(move.params) <= 6)
    return f" ({values})" if values else ""


def _and_why(rationale: str, move: Move) -> str:
    return f"{rationale}; {move.why}" if move.why else rationale
