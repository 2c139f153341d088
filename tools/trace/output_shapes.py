"""Does a plan return what the task's Model returns? Structure, shapes and dtypes, compared as data. Pure.

Trees are those of a launch plan and of `schema.task`: {"$tensor": …} leaves in lists, {"$tuple"} and {"$dict"}. A list
may stand for a tuple, as the judge allows.
"""

from collections.abc import Iterator

from kerneltune.tools.schema.codec import Json

MOST_SHOWN = 6


def mismatch(wanted: Json, got: Json) -> str | None:
    """What is returned instead of what, in words; None when it is the same as far as shapes can tell."""
    if wanted is None:
        return None  # a case that was described without its outputs
    ours, theirs = dict(_leaves(wanted)), dict(_leaves(got))
    if list(ours) == list(theirs) and all(_fits(leaf, theirs[path]) for path, leaf in ours.items()):
        return None
    return f"forward returns {shown(got)}; the task's Model returns {shown(wanted)}"


def _leaves(tree: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    items = _items(tree)
    if items is None:
        yield path, tree
        return
    for key, value in items:
        yield from _leaves(value, f"{path}.{key}")


def _items(tree: Json) -> list[tuple[str, Json]] | None:
    """The children of a node; None for a leaf."""
    if isinstance(tree, dict) and "$dict" in tree:
        return list(tree["$dict"].items())
    if isinstance(tree, dict) and "$tuple" in tree:
        tree = tree["$tuple"]
    return [(str(i), value) for i, value in enumerate(tree)] if isinstance(tree, list) else None


def _fits(wanted: Json, got: Json) -> bool:
    """Plain numbers are the judge's to compare; it takes a float for a 0-dim float64 tensor and the reverse."""
    ours, theirs = _tensor(wanted), _tensor(got)
    return ours == theirs or {ours, theirs} == {None, ("float64", ())}


def _tensor(leaf: Json) -> tuple[str, tuple[int, ...]] | None:
    if isinstance(leaf, dict) and "$tensor" in leaf:
        return leaf["$tensor"]["dtype"], tuple(leaf["$tensor"]["shape"])
    return None


def shown(tree: Json) -> str:
    """A tree in short: float32[4, 8], (float32[4], int64[4]), {mean: float32[]}."""
    if isinstance(tree, dict) and "$tensor" in tree:
        spec = tree["$tensor"]
        return f"{spec['dtype']}{list(spec['shape'])}"
    items = _items(tree)
    if items is None:
        return repr(tree)[:80]
    more = f", … {len(items) - MOST_SHOWN} more" if len(items) > MOST_SHOWN else ""
    parts = [(key, shown(value)) for key, value in items[:MOST_SHOWN]]
    if isinstance(tree, dict) and "$dict" in tree:
        return "{" + ", ".join(f"{key}: {text}" for key, text in parts) + more + "}"
    inside = ", ".join(text for _, text in parts) + more
    if isinstance(tree, dict):
        return f"({inside},)" if len(items) == 1 else f"({inside})"
    return f"[{inside}]"
