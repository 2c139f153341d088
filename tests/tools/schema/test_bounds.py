"""What comes from elsewhere is unpacked, parsed and read as far as its bound."""

import gc
import json
import resource
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kerneltune.tools.schema.codec import encode, expression_tree, inflated, parsed, read_file, syntax_tree


def bomb(gib: int) -> bytes:
    """So many GiB of '#', compressed to 1 MiB each, in no time: one block again and again. Its checksum is missing."""
    packer = zlib.compressobj(9)
    first, again = (packer.compress(b"#" * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + again * ((gib << 10) - 1)


def test_three_gib_in_three_mib_are_unpacked_as_far_as_the_bound() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = bomb(3)
    assert len(data) < 4 << 20
    with pytest.raises(ValueError, match="unpacks to more than 33,554,432 bytes"):
        inflated(data, 1 << 25)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 120_000  # KiB


@pytest.mark.parametrize("size", [0, 1, (1 << 24) - 1, 1 << 24, (1 << 24) + 300])
def test_what_was_compressed_comes_back_up_to_its_last_byte(size: int) -> None:
    data = zlib.compress(b"#" * size)
    assert inflated(data, size) == b"#" * size
    if size:
        with pytest.raises(ValueError, match="more than"):
            inflated(data, size - 1)


@pytest.mark.parametrize("data", [b"", b"no zlib", zlib.compress(b"abc" * 99)[:-9], zlib.compress(b"abc")[:-1] + b"x"])
def test_damaged_data_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        inflated(data, 1000)


def test_json_of_more_values_than_the_bound_is_not_built() -> None:
    empty = "[" + "[]," * 20_000_000 + "[]]"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="more than 8,388,608 values"):
        parsed(empty)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 120_000  # KiB; built they take 1.3 GiB
    wanted = {"a": [1, {"b": "[,{" * 5}]}
    assert parsed(json.dumps(wanted), most_values=100) == wanted


def test_a_file_without_an_end_is_read_as_far_as_the_bound(tmp_path: Path) -> None:
    (tmp_path / "task.py").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="more than 1,000 bytes") as caught:
        read_file(tmp_path / "task.py", 1000)
    assert caught.value.strerror == "it has more than 1,000 bytes"
    (tmp_path / "whole").write_bytes(b"x" * 1000)
    assert read_file(tmp_path / "whole", 1000) == b"x" * 1000


class Knot:
    """Garbage for the collector, which runs while a tree is made and lets other threads go on meanwhile."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0.0001)


@pytest.mark.parametrize("text", ["def", "a = \0", "(" * 300_000, "-" * 300_000 + "1", "9" * 5_000, "a = '\ud800'"])
def test_what_is_no_python_is_a_syntax_error(text: str) -> None:
    for parse in (syntax_tree, expression_tree):
        with pytest.raises(SyntaxError) as caught:
            parse(text)
        assert str(caught.value)


def test_several_threads_parse_python_at_once() -> None:
    """With `ast.parse` CPython 3.11.7 raised SystemError here in each of ten runs."""
    source = "\n".join(f"a{i} = (b, [c, d + {i}])" for i in range(200))

    def parse(_: int) -> int:
        [Knot() for _ in range(20)]
        return len(syntax_tree(source).body)

    before = gc.get_threshold()
    gc.set_threshold(20)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(parse, range(40))) == {200}
    finally:
        gc.set_threshold(*before)


def test_threads_that_encode_at_once_leave_the_search_for_cycles_on() -> None:
    before, threads = sys.getswitchinterval(), 8

    def encode_many(_: int) -> None:
        for _ in range(300):
            encode(1)

    assert gc.isenabled()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(200):  # in one of some hundred, it was left off
                list(pool.map(encode_many, range(threads)))
                assert gc.isenabled()
    finally:
        sys.setswitchinterval(before)
        gc.enable()
