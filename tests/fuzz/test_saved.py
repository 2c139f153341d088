"""What fuzzing found once, and a few inputs that are right, by the readers that `make fuzz` tries."""

import itertools
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

SAVED = sorted((Path(__file__).parent / "saved").glob("*/*"))


@pytest.mark.parametrize("path", SAVED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_that_broke_a_reader_once_is_read_or_refused(path: Path) -> None:
    TARGETS[path.parent.name].read(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_takes_the_artefacts_that_fuzzing_begins_with(name: str) -> None:
    target = TARGETS[name]
    seeds = list(itertools.islice(target.seeds(), 3))
    assert seeds
    for seed in seeds:
        target.read(seed)
