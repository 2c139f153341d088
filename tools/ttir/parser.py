"""TTIR text to the IR of `tools.ttir.ir`.

Most ops share one loose grammar (operands, keywords, attributes, regions and types in any order that MLIR prints), so
an op that nobody taught us still parses and fails later, as `UnsupportedOp`, only if it is executed. `tt.func`,
`scf.for` and `scf.while` bind names in their headers and have grammars of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tools.ttir.cursor import Cursor
from tools.ttir.errors import TtirSyntaxError
from tools.ttir.ir import Block, Func, Literal, Module, Op, Region, Successor
from tools.ttir.lexer import tokenize
from tools.ttir.types import I1

MAX_DEPTH = 48
_CLOSER = {"(": ")", "[": "]", "{": "}", "<": ">"}


def parse(text: str) -> Module:
    """Parses a module, or raises `TtirSyntaxError`."""
    parser = _Parser(tokenize(text))
    try:
        funcs = {func.name: func for func in parser.module()}
    except RecursionError:
        raise TtirSyntaxError("attributes or types nested too deeply") from None
    if not funcs:
        raise TtirSyntaxError("no tt.func in the text")
    return Module(funcs)


class _Parser(Cursor):
    # -- functions ------------------------------------------------------------------------------------------------

    def module(self) -> Iterator[Func]:
        self.newlines()
        if self.accept("module"):
            if self.token.kind == "symbol":
                self.next()
            if self.accept("attributes"):
                self.attributes()
            self.expect("{")
        self.newlines()
        while not self.peek("}") and self.token.kind != "end":
            self.expect("tt.func")
            if func := self.func():
                yield func
            self.newlines()

    def func(self) -> Func | None:
        public = self.accept("public")
        if not public and (self.peek("private") or self.peek("nested")):
            self.next()
        name = self.kind("symbol")
        self.expect("(")
        first, start = self.arguments(), self.at
        if self.accept("->"):
            self.types()
        if self.accept("attributes"):
            self.attributes()
        if not self.peek("{"):
            return None
        body = self.region(first)
        used = {token.text for token in self.tokens[start : self.at] if token.kind == "value"}
        return Func(name, public, first.args, first.types, body, used)

    def arguments(self) -> Block:
        """`%a: type, %b: type)`, as functions and blocks declare them."""
        names, types = [], []
        for _ in self.listed(")"):
            names.append(self.kind("value"))
            self.expect(":")
            types.append(self.type())
            if self.peek("{"):
                self.attributes()
        return Block("", tuple(names), tuple(types))

    def region(self, first: Block | None = None) -> Region:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fail(f"at most {MAX_DEPTH} nested regions")
        self.expect("{")
        blocks = [first or Block("", (), ())]
        self.newlines()
        while not self.accept("}"):
            if self.token.kind == "label":
                blocks.append(self.block_header())
            else:
                blocks[-1].ops.append(self.op())
                if not self.peek("}") and self.token.kind != "newline":
                    raise self.fail("the end of the op")
            self.newlines()
        self.depth -= 1
        # a region that names its first block (`^bb0(%a: f32):`) leaves the unnamed one empty
        return Region(blocks if blocks[0].ops or first else blocks[1:] or blocks)

    def block_header(self) -> Block:
        label = self.next().text
        block = self.arguments() if self.accept("(") else Block("", (), ())
        block.label = label
        self.expect(":")
        return block

    # -- ops ------------------------------------------------------------------------------------------------------

    def op(self) -> Op:
        line, results = self.token.line, self.results()
        if self.token.kind not in ("word", "string"):
            raise self.fail("an op")
        op = Op(self.next().text.strip('"'), line, results)
        if op.name == "scf.for":
            self.for_header(op)
        elif op.name == "scf.while":
            self.while_header(op)
        while self.token.kind not in ("newline", "end") and not self.peek("}"):
            self.part(op)
        return op

    def results(self) -> tuple[str, ...]:
        names: list[str] = []
        while self.token.kind == "value":
            name, count = self.next().text, 1
            if self.accept(":"):
                count = self.integer()
                names += [f"{name}#{index}" for index in range(min(count, 4096))]
            else:
                names.append(name)
            if not self.accept(","):
                self.expect("=")
        return tuple(names)

    def integer(self) -> int:
        text = self.kind("number")
        if not text.lstrip("-").isdigit() or len(text) > 20:
            raise self.fail("a small integer")
        return int(text)

    def part(self, op: Op) -> None:
        token = self.token
        handler = _PARTS.get(token.text) if token.kind != "string" else None
        handler = handler or _PARTS.get(token.kind)
        if handler is None:
            raise self.fail("part of an op")
        handler(self, op)

    def operand(self, op: Op) -> None:
        op.operands.append(self.next().text)

    def comma(self, op: Op) -> None:
        self.next()

    def group(self, op: Op) -> None:
        """Parentheses and brackets around operands or regions; they only group."""
        closer = _CLOSER[self.next().text]
        while not self.accept(closer):
            if self.token.kind in ("newline", "end"):
                raise self.fail(repr(closer))
            self.part(op)

    def word(self, op: Op) -> None:
        name = self.next().text
        if self.accept("="):
            op.attrs[name] = self.attribute_value()
        elif self.peek("<"):
            self.angles()
        elif name == "attributes":
            op.attrs.update(self.attributes())
        else:
            op.words.append(name.strip('"') if name.startswith('"') else name)

    def literal(self, op: Op) -> None:
        text = self.next().text
        op.attrs.setdefault("value", Literal(text))
        if op.name == "arith.constant" and text in ("true", "false") and not self.peek(":"):
            op.ins = (I1,)

    def symbol(self, op: Op) -> None:
        op.attrs["callee"] = self.next().text

    def braces(self, op: Op) -> None:
        if self.tokens[self.at + 1].kind == "newline":
            op.regions.append(self.region())
        else:
            op.attrs.update(self.attributes())

    def properties(self, op: Op) -> None:
        self.expect("<")
        op.attrs.update(self.attributes())
        self.expect(">")

    def successor(self, op: Op) -> None:
        label, names = self.next().text, []
        if self.accept("("):
            while self.token.kind == "value":
                names.append(self.next().text)
                self.accept(",")
            if self.accept(":"):
                self.types()
            self.expect(")")
        op.successors.append(Successor(label, tuple(names)))

    def signature(self, op: Op) -> None:
        """What follows a colon: operand types, then possibly `->`/`to` and result types."""
        self.next()
        if self.token.kind != "value":  # tt.print has its operands behind a colon
            op.ins = self.types()
            if self.accept("to"):
                op.outs = self.types()

    def arrow(self, op: Op) -> None:
        self.next()
        op.outs = self.types()

    # -- headers that bind names ----------------------------------------------------------------------------------

    def for_header(self, op: Op) -> None:
        if self.accept("unsigned"):
            op.words.append("unsigned")
        names = [self.kind("value")]
        for before in ("=", "to", "step"):
            self.expect(before)
            op.operands.append(self.kind("value"))
        if self.accept("iter_args"):
            names += self.bindings(op)
        if self.accept("->"):
            op.outs = self.types()
        if self.accept(":"):
            op.ins = self.types()
        op.regions.append(self.region(Block("", tuple(names), ())))

    def while_header(self, op: Op) -> None:
        names = self.bindings(op) if self.peek("(") else []
        self.expect(":")
        op.ins = self.types()
        if self.accept("->"):
            op.outs = self.types()
        op.regions.append(self.region(Block("", tuple(names), ())))
        self.expect("do")
        op.regions.append(self.region())

    def bindings(self, op: Op) -> list[str]:
        self.expect("(")
        names = []
        for _ in self.listed(")"):
            names.append(self.kind("value"))
            self.expect("=")
            op.operands.append(self.kind("value"))
        return names


_PARTS: dict[str, Callable[[_Parser, Op], None]] = {
    "value": _Parser.operand,
    ",": _Parser.comma,
    "else": _Parser.comma,
    "(": _Parser.group,
    "[": _Parser.group,
    "true": _Parser.literal,
    "false": _Parser.literal,
    "raw": _Parser.literal,
    "number": _Parser.literal,
    "word": _Parser.word,
    "string": _Parser.word,
    "symbol": _Parser.symbol,
    "{": _Parser.braces,
    "<": _Parser.properties,
    "label": _Parser.successor,
    ":": _Parser.signature,
    "->": _Parser.arrow,
}
