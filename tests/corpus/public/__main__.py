"""Judges public kernels on this machine: Liger-Kernel's ops and Triton's tutorials, which are honest.

pip download --no-deps liger-kernel==0.8.2 && unzip liger_kernel-*.whl -d LIGER
git clone --depth 1 --branch v3.6.0 https://github.com/triton-lang/triton
python -m tests.corpus.public --liger LIGER --tutorials triton/python/tutorials [--json] [--only NAME ...]
"""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kerneltune.agent.commands.session import workshop
from kerneltune.agent.events import Event
from kerneltune.agent.settings import chosen_settings
from tests.corpus.public.public import OPEN, Judged, Sources, judged, kernels


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0 if all are as expected (see OPEN), 1 if one is not, 2 for a mistake in the arguments."""
    args = _arguments(argv)
    sources = Sources(args.liger, args.tutorials)
    chosen = [k for k in kernels() if sources.has(k) and (not args.only or k.name in args.only)]
    if unknown := set(args.only) - {k.name for k in chosen}:
        print(f"no kernel {sorted(unknown)[0]!r} in the given sources", file=sys.stderr)
        return 2
    done = []
    with _folder(args.keep) as folder, workshop(chosen_settings({}), _ignore) as shop:
        print(f"{len(chosen)} kernels on {shop.gpu.name if shop.gpu else 'no GPU'}", file=sys.stderr)
        for found in judged(shop, chosen, sources, folder):
            done.append(found)
            print(json.dumps(found.json()) if args.json else line(found), flush=True)
    if not args.json:
        print(conclusion(done))
    return int(not all(found.expected for found in done))


def conclusion(done: Sequence[Judged]) -> str:
    """How many were accepted, how many are known not to be, and which were refused."""
    known = [f.name for f in done if f.name in OPEN and f.expected]
    odd = [f.name for f in done if not f.expected]
    words = f"{sum(f.verdict.accepted for f in done)} of {len(done)} accepted; {len(known)} known not to be"
    return f"{words}; not as expected: {', '.join(odd)}" if odd else words


def line(found: Judged) -> str:
    """What became of one kernel, in one line."""
    shown = found.json()
    ratio = "-" if found.worst_ratio is None else f"{found.worst_ratio:.2g}"
    time = "" if shown["median_us"] is None else f" {shown['median_us']:.1f} us {shown['speedup_over_eager']}x"
    detail = " ".join(found.verdict.detail.split()) + (f" (known: {shown['open']})" if shown["open"] else "")
    return f"{found.name:36} {found.verdict.status.value:14} {ratio:>8} {found.seconds:6.1f} s{time}  {detail}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.public", description=__doc__.splitlines()[0])
    parser.add_argument("--liger", type=Path, help="the folder that holds liger_kernel")
    parser.add_argument("--tutorials", type=Path, help="the folder of 01-vector-add.py")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only this kernel; may be repeated")
    parser.add_argument("--keep", type=Path, help="write the generated files here and leave them")
    parser.add_argument("--json", action="store_true", help="one object per kernel")
    return parser.parse_args(argv)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="public-") as folder:
        yield Path(folder)


def _ignore(event: Event) -> None:
    """A list of results is all that is shown."""


if __name__ == "__main__":
    sys.exit(main())
