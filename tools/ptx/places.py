"""Lines of PTX as lines of the candidate file that holds it. Pure."""

import re

_PLACE = re.compile(r"PTX line (\d{1,7})(?!, candidate)")


def lines_ahead(text: str, source: str) -> int | None:
    """What to add to a line of the text for its line in the source; None unless the text stands there once as it is:
    not one that a template made, or that is spelled with escapes."""
    bare = text.strip()
    at = source.find(bare) if bare else -1
    if at < 0 or source.find(bare, at + 1) >= 0:
        return None
    return source.count("\n", 0, at) - text.count("\n", 0, text.index(bare))


def with_candidate_lines(words: str, text: str, source: str) -> str:
    """The words with each `PTX line 12` made `PTX line 12, candidate line 31`, where the source has these lines."""
    ahead, last = lines_ahead(text, source), text.count("\n") + 1
    if ahead is None:
        return words

    def both(place: re.Match[str]) -> str:
        line = int(place[1])
        return f"{place[0]}, candidate line {line + ahead}" if 0 < line <= last else place[0]

    return _PLACE.sub(both, words)
