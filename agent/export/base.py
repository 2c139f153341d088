"""What a format is: its columns, and the rows that one trajectory makes.

An export goes over the store twice at most. In the first pass every format that `surveys` sees every trajectory, for
what cannot be known of one run alone (the best kernel of a task, the mean return of a group); in the second, each
trajectory makes its rows. Between the passes the process may be forked, so a survey is kept in plain attributes, and
holds numbers and ids, never texts: memory has to stay flat.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from agent.record.events import Event
from agent.record.trajectory import AttemptRecord, Trajectory
from tools.codec import Json

Row = dict[str, Json]
# `json`: any JSON value. `messages`: a list of {"role", "content", …} that need not have the same keys. `exact`: a JSON
# value whose every digit counts; it is stored as its text, since readers' own decoders round floats. `struct`: a plain
# nested record of the column's `fields`; `structs`: a list of them.
Kind = Literal["text", "int", "float", "bool", "json", "messages", "texts", "exact", "struct", "structs"]


@dataclass(frozen=True)
class Column:
    """A column of a format. `about` goes into the dataset card, with the unit. `fields`: of a `struct` or `structs`."""

    name: str
    kind: Kind
    about: str
    fields: tuple["Column", ...] = ()


@dataclass(frozen=True)
class Made:
    """A row as its format makes it. The exporter adds where it comes from: its run, and the `attempt` it is about."""

    values: Row
    attempt: AttemptRecord | None = None


class Format:
    """Subclasses say how rows look.

    conversations: whether trajectories must come with their messages. events: rows are made of the events of a run, by
    `rows_of_events`, and not of its trajectory. bare: readers refuse keys they do not know, so that a row is written as
    it is and only as JSON lines; what the exporter adds goes into a file beside it, line for line. apart: each row is a
    file of its own, with a name ("file") and "lines", a JSON value each. whole_runs: the survey wants every attempt of
    a run, not only those that pass the filters. about_tasks: rows are about no attempt, and a run speaks for its task
    if what is known of the run alone passes.
    """

    name: ClassVar[str]
    about: ClassVar[str]  # one line, for the help and the card
    columns: ClassVar[tuple[Column, ...]]
    conversations: ClassVar[bool] = False
    surveys: ClassVar[bool] = False
    events: ClassVar[bool] = False
    bare: ClassVar[bool] = False
    apart: ClassVar[bool] = False
    whole_runs: ClassVar[bool] = False
    about_tasks: ClassVar[bool] = False

    def placed(self, splits: Mapping[str, str]) -> None:
        """Hears, before anything else, in which split each task is, by the hash of its file."""

    def survey(self, trajectory: Trajectory) -> None:
        """The first pass, if `surveys`."""

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """The rows of one trajectory."""
        raise NotImplementedError

    def rows_of_events(self, events: Iterable[Event]) -> Iterator[Made]:
        """The rows of the events of one run, in order, if `events`."""
        raise NotImplementedError
