"""What a reader's browser would make of a page: its tags, attributes and text, by the standard library's parser."""

from html.parser import HTMLParser
from importlib import resources

_FOLDER = resources.files("kerneltune.agent.report") / "templates"
SCRIPT, LIVE = ((_FOLDER / name).read_text() for name in ("copy.js", "live.js"))

# Elements that a report is made of; anything else would have slipped in.
TAGS = frozenset(
    "html head meta title style body header main footer nav section p span a h1 h2 h3 h4 dl dt dd ul li table caption"
    " thead tbody tr th td div figure figcaption pre code details summary strong sub br svg g path rect text"
    " button script form label input".split()
)
ATTRIBUTES = frozenset(
    "lang charset http-equiv content name class id href tabindex role aria-label aria-hidden open data-l viewbox width"
    " height x y d rx text-anchor type scope data-seq data-of"
    " action method for name value placeholder".split()
)
_VOID = ("meta", "br", "input")


class Reading(HTMLParser):
    """A page as it was understood, a file's or (`is_site`) a service's. `text`: of elements but style; `problems`: what
    does not belong into it."""

    def __init__(self, page: str, *, is_site: bool = False) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.problems: list[str] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self._scripts: list[str] = []
        self.feed(page)
        self.close()
        self.text = "".join(self._text)
        if self._scripts != [SCRIPT + LIVE if is_site else SCRIPT]:  # one of ours, and no other
            self.problems.append(f"scripts {self._scripts!r:.200}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what there is, and what should not be there."""
        self.tags.append(tag)
        if tag not in TAGS:
            self.problems.append(f"<{tag}>")
        for name, value in attrs:
            if name not in ATTRIBUTES:
                self.problems.append(f"{tag} {name}={value!r:.60}")
            if name == "id":
                self.ids.append(str(value))
            if name == "href":
                self.links.append(str(value))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """<path/>."""
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Elements close in order: nothing broke out of one."""
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        """Text, but for the style."""
        if "script" in self._open:
            self._scripts.append(data)
        elif "style" not in self._open:
            self._text.append(data)

    def handle_comment(self, data: str) -> None:
        """There are none."""
        self.problems.append(f"<!--{data[:40]}")
