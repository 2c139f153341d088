"""PTX text to `tools.ptx.ir`. Reads what people and compilers write; what instructions mean it does not know. Pure."""

from dataclasses import replace
from functools import lru_cache

from tools.ptx.bodies import Body
from tools.ptx.ir import Function, Module, Param, PtxError, Variable
from tools.ptx.stream import LINKING, SPACES, Stream

MOST_TEXT_BYTES = 1 << 20


@lru_cache(maxsize=64)
def parse(text: str) -> Module:
    """The module that a text describes. Raises PtxError, which names the line."""
    if len(text) > MOST_TEXT_BYTES:
        raise PtxError(1, f"{len(text)} characters of PTX; the limit is {MOST_TEXT_BYTES} (1 MiB)")
    parser = _Parser(text)
    try:
        return parser.module()
    except RecursionError as error:
        raise parser.error("operands nested too deeply") from error


class _Parser(Stream):
    """Reads a file."""

    def module(self) -> Module:
        module = self._head()
        functions: list[Function] = []
        variables: list[Variable] = []
        files: dict[int, str] = {}
        while self.next.kind != "end":
            links = self._links()
            token = self.take()
            if token.text in (".entry", ".func"):
                functions.append(self._function(entry=token.text == ".entry"))
            elif token.text in SPACES:
                variables += self.variables(token, extern=".extern" in links)
            elif token.text == ".file":
                number = self.number("a file's number")
                files[number] = self.take().text.strip('"')
                while self.accept(","):
                    self.take()
            elif token.text == ".section":
                self._skip_section()
            elif token.text in (".pragma", ".alias"):
                self.until_semicolon()
            else:
                raise self.error(f"{token.text!r} does not begin a declaration", token)
        return replace(module, functions=tuple(functions), variables=tuple(variables), files=files)

    def _head(self) -> Module:
        version_token = self.take()
        if version_token.text != ".version":
            raise self.error("PTX begins with .version, as in `.version 8.0`", version_token)
        version = self.take().text.split(".")
        if len(version) != 2 or not all(part.isdecimal() and len(part) < 4 for part in version):
            raise self.error("a version has the form 8.0", version_token)
        target_token = self.take()
        if target_token.text != ".target":
            raise self.error(".target follows .version, as in `.target sm_90a`", target_token)
        target = self.word("a target").text
        while self.accept(","):
            if self.word("a target option").text.startswith(("sm_", "compute_")):
                raise self.error("a text has one target: keep one of them", target_token)
        size = self.number("the address size") if self.accept(".address_size") else 64
        numbers = (int(version[0]), int(version[1]))
        return Module(numbers, target, version_token.line, target_token.line, size)

    def _links(self) -> set[str]:
        found = set()
        while token := self.accept(*LINKING):
            found.add(token.text)
        return found

    def _skip_section(self) -> None:
        """Debug information."""
        while self.next.text != "{":
            if self.take().kind == "end":
                raise self.error("a .section has no body")
        depth = 0
        while self.next.kind != "end":
            token = self.take()
            depth += (token.text == "{") - (token.text == "}")
            if depth == 0:
                return
        raise self.error("a .section is not closed")

    def _function(self, *, entry: bool) -> Function:
        if self.next.text == "(":
            self._params()  # what it returns
        name = self.word("the function's name")
        params = self._params() if self.next.text == "(" else ()
        directives = self._directives()
        function = Function(name.text, name.line, entry, params, directives)
        if self.accept(";"):
            return replace(function, defined=False, end_line=name.line)
        draft = Body(self).read(self.expect("{"))
        return replace(
            function,
            registers=draft.registers,
            variables=tuple(draft.variables),
            body=tuple(draft.body),
            end_line=draft.end_line,
        )

    def _params(self) -> tuple[Param, ...]:
        self.expect("(")
        found: list[Param] = []
        while not self.accept(")"):
            found.append(self._param())
            if self.next.text != ")":
                self.expect(",")
        return tuple(found)

    def _param(self) -> Param:
        if not self.accept(".param", ".reg"):
            raise self.error(f"expected .param before {self.next.text or 'the end'!r}")
        align, kind, ptr = None, "", False
        while self.next.kind == "dot":
            token = self.take()
            if token.text == ".align":
                align = self.number("an alignment")
            elif token.text == ".ptr":
                ptr = True
            elif not (ptr and token.text in SPACES):
                kind = self.type(token)
        name = self.word("a parameter's name")
        if not kind:
            raise self.error("a parameter has a type, as in `.param .u64 x`", name)
        return Param(name.text, kind, name.line, self.count(), align, ptr)

    def _directives(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        while self.next.kind == "dot":
            token = self.take()
            if token.text == ".pragma":
                self.until_semicolon()
                continue
            numbers: list[int] = []
            while self.next.kind == "number":
                numbers.append(self.number(f"{token.text} takes numbers; it"))
                if not self.accept(","):
                    break
            found[token.text[1:]] = tuple(numbers)
        return found
