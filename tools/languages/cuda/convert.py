"""Python candidates from CUDA C++ with a launcher: `kernel<<<grid, block>>>(…)` in a .cu file, or in a Python file that
builds it by load_inline. What is translated is the form that people and models write: tensors made and measured, sizes
computed, kernels launched, tensors returned. Pure.

Device code stays as it is; launchers become Python functions. What is not of this form is not guessed: CannotConvert
says what stands in the way, with its line.
"""

import ast
import itertools
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from kerneltune.tools.schema.codec import syntax_tree

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


class CannotConvert(Exception):
    """A source that has not the common form."""


# ---
# A text taken apart: what NVRTC gets, and what belongs to the host.

_HOST = re.compile(
    r"\btorch::|\bat::|\bc10::|\bcudaStream_t\b|<<<|\bpy::|\bcudaMalloc|\bcudaMemcpy|\bPYBIND11_MODULE|\bTORCH_LIB"
)
_HOST_HEADERS = re.compile(
    r"[<\"](?:torch|ATen|c10|pybind11|cublas|curand|cudnn|Python|cuda_runtime_api)|"
    r"<(?:iostream|vector|string|tuple|memory|stdexcept|sstream|algorithm|numeric|utility|array|map|functional|chrono)>"
)


@cache
def _parser() -> "Parser":
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ModuleNotFoundError as error:
        raise CannotConvert(f"{error.name} is not installed: pip install 'kerneltune[cuda]'") from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def _text(node: "Node | None") -> str:
    return (node.text or b"").decode(errors="replace") if node else ""


def _line(node: "Node") -> int:
    return int(node.start_point.row) + 1


def _named(node: "Node | None") -> "list[Node]":
    return [child for child in node.named_children if child.type != "comment"] if node else []


@dataclass
class CudaSource:
    """`device`: the text without host code, as many lines; `launchers`, and what calls them, by name; kernels by name,
    with the namespaces that they are in; constants of the file as they are written; names under which functions are
    offered to Python."""

    device: str
    launchers: "dict[str, Node]"
    kernels: dict[str, str]
    constants: dict[str, str]
    offered: dict[str, str] = field(default_factory=dict)
    others: "dict[str, Node]" = field(default_factory=dict)  # of the host's functions


def taken_apart(text: str) -> CudaSource:
    """Raises CannotConvert for a text without a kernel and a function that launches it."""
    raw = text.encode()
    source = CudaSource("", {}, {}, {})
    every = _top(_parser().parse(raw).root_node)
    dropped = [node for node, space in every if not _stays(node, space, source)]
    while called := [name for name, its in source.others.items() if _calls(its, source.launchers)]:
        source.launchers |= {name: source.others.pop(name) for name in called}
    source.offered = dict(re.findall(r'\bdef\(\s*"(\w+)"\s*,\s*&?\s*([\w:]+)', text)) or {}
    if not source.kernels:
        raise CannotConvert("the text has no __global__ function")
    if not source.launchers:
        raise CannotConvert(
            "no function of the text launches a kernel (`kernel<<<grid, block>>>(…)`): nothing says how"
        )
    for node in reversed(dropped):
        gone = raw[node.start_byte : node.end_byte]
        raw = raw[: node.start_byte] + b"\n" * gone.count(b"\n") + raw[node.end_byte :]
    source.device = raw.decode(errors="replace")
    source.device = "".join(f"#include <{header}>\n" for header in _needed(source.device)) + source.device
    return source


# What torch's headers bring along, by what is said of it.
_STD = {"limits": r"numeric_limits", "algorithm": r"m(?:ax|in)\b", "type_traits": r"is_\w+|conditional|enable_if"}


def _needed(device: str) -> list[str]:
    said = {name: re.search(rf"\bstd::(?:{words})", device) for name, words in _STD.items()}
    return [name for name, found in said.items() if found and f"<{name}>" not in device]


def _top(node: "Node", space: str = "") -> "Iterator[tuple[Node, str]]":
    """What is declared at the top, in namespaces too, with those."""
    for child in node.named_children:
        body = child.child_by_field_name("body")
        if child.type in ("namespace_definition", "linkage_specification") and body and body.type == "declaration_list":
            name = _text(child.child_by_field_name("name"))
            yield from _top(body, f"{space}{name}::" if name else space)
        else:
            yield child, space


def _calls(function: "Node", names: "dict[str, Node]") -> bool:
    return any(
        node.type == "call_expression" and _text(node.child_by_field_name("function")).rpartition("::")[2] in names
        for node in _every(function)
    )


def _stays(node: "Node", space: str, source: CudaSource) -> bool:
    """Whether the device's text keeps it; what the host needs of it is noted."""
    text = _text(node)
    if node.type == "preproc_include":
        return not _HOST_HEADERS.search(text)
    if node.type == "preproc_def":
        source.constants[_text(node.child_by_field_name("name"))] = _text(node.child_by_field_name("value")).strip()
    if node.type in ("preproc_function_def", "using_declaration"):
        return not re.search(r"\bTORCH_CHECK|\bAT_ASSERT|\b(?:torch|at|std)\b", text)
    while node.type in ("template_declaration", "linkage_specification"):
        node = node.named_children[-1]
    if node.type == "function_definition" and (declarator := _declarator(node)) is not None:
        return _is_of_device(node, _text(declarator.child_by_field_name("declarator")), space, source)
    for its in node.children_by_field_name("declarator") if node.type == "declaration" else ():
        if its.type == "init_declarator":
            source.constants[_text(its.child_by_field_name("declarator"))] = _text(its.child_by_field_name("value"))
    return node.type == "struct_specifier" or not _HOST.search(text)


def _is_of_device(function: "Node", name: str, space: str, source: CudaSource) -> bool:
    text = _text(function)
    head = text.partition("{")[0]
    if "__global__" in head:
        source.kernels[name] = space + name
    elif "__device__" not in head and _HOST.search(text):
        (source.launchers if "<<<" in text else source.others)[name] = function
        return False
    return True


def _declarator(function: "Node") -> "Node | None":
    node = function.child_by_field_name("declarator")
    while node is not None and node.type != "function_declarator":
        node = node.child_by_field_name("declarator") or next(iter(_named(node)[-1:]), None)
    return node


# ---
# C++ of the host, as Python.

_CHECKS = re.compile(
    r"(?:TORCH_|AT_|C10_)?(?:CUDA_?)?(?:INTERNAL_)?(?:CHECK|ASSERT|CALL|KERNEL_LAUNCH)\w*|AT_CUDA_CHECK|gpuErrchk|assert|"
    r"f?printf|cuda(?:DeviceSynchronize|GetLastError|PeekAtLastError|StreamSynchronize|FuncSetAttribute|SetDevice)|"
    r"(?:cuda)?FuncSetAttribute"
)
_OF_STREAMS = re.compile(r"\b(?:cudaStream_t|getCurrentCUDAStream|\w*CUDAGuard|cudaError_t|DeviceGuard|cudaSuccess)\b")
_DTYPES = {
    "Float": "float32", "Float32": "float32", "Half": "float16", "Float16": "float16", "BFloat16": "bfloat16",
    "Double": "float64", "Float64": "float64", "Int": "int32", "Int32": "int32", "Long": "int64", "Int64": "int64",
    "Int8": "int8", "Char": "int8", "UInt8": "uint8", "Byte": "uint8", "Bool": "bool", "Short": "int16",
}  # fmt: skip
_SIZES = {
    "float": 4, "double": 8, "int": 4, "half": 2, "__half": 2, "__nv_bfloat16": 2, "float4": 16, "float2": 8, "char": 1,
    "int8_t": 1, "uint8_t": 1, "int64_t": 8, "long": 8, "unsigned": 4, "unsigned int": 4,
}  # fmt: skip
_MATH = {name: f"math.{name}" for name in ("ceil", "floor", "sqrt", "log2", "exp", "log", "pow")} | {
    name: name for name in ("min", "max", "abs")
}
_ROUNDED_UP = ("cdiv", "ceil_div", "ceildiv", "div_up", "divup", "div_ceil")
_OPERATORS = {"&&": "and", "||": "or"}
_COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")
_TRUTHS = (*_OPERATORS, *_COMPARISONS)
# Members of tensors: what Python says, and what that is. {t} is the tensor, {v} what is given.
_MEMBERS = {
    "numel": ("{t}.numel()", "int"), "dim": ("{t}.dim()", "int"), "ndimension": ("{t}.dim()", "int"),
    "stride": ("{t}.stride({v})", "int"), "element_size": ("{t}.element_size()", "int"),
    "sizes": ("{t}.shape", "sizes"), "vec": ("list({t})", "sizes"),
    "options": ('{{"dtype": {t}.dtype, "device": {t}.device}}', "options"),
    "scalar_type": ("{t}.dtype", "dtype"), "dtype": ("{t}.dtype", "dtype"), "device": ("{t}.device", "other"),
    "is_cuda": ("True", "int"), "defined": ("({t} is not None)", "int"), "has_value": ("({t} is not None)", "int"),
    "value": ("{t}", "tensor"),
}  # fmt: skip
_POINTERS = ("pointer", "vectors")  # to elements; to several at once, as float4
_ADDRESSES = ("data_ptr", "data", "mutable_data_ptr", "const_data_ptr")
_NO_MEMBERS = ("accessor", "packed_accessor", "packed_accessor32", "packed_accessor64", "item")


class _Said(NamedTuple):
    """An expression in Python, and what it is: int, float, tensor, pointer, sizes, options, dtype, dim3 or other."""

    text: str
    kind: str = "other"


@dataclass
class LauncherTranslator:
    """Translates one function. `used`: constants of the file that the functions need."""

    source: CudaSource
    function: "Node"
    used: set[str]
    kinds: dict[str, str] = field(default_factory=dict)  # of the names that it knows
    lines: list[str] = field(default_factory=list)
    scalar: str = ""  # the tensor whose dtype scalar_t is
    depth: int = 1

    def python(self) -> str:
        """The function. Raises CannotConvert."""
        names = []
        for parameter in _parameters(self.function):
            words = re.findall(r"\w+", _text(parameter).partition("=")[0])
            if not words:
                raise self._cannot(parameter)
            if "cudaStream_t" not in words:
                number = "float" if {"float", "double"} & set(words) else "int"
                self.kinds[words[-1]] = (
                    "tensor" if "Tensor" in words else _address(_text(parameter)) if "*" in _text(parameter) else number
                )
                names.append(_safe(words[-1]))
        name = _text((_declarator(self.function) or self.function).child_by_field_name("declarator"))
        self.statement(self.function.child_by_field_name("body"))
        return "\n".join([f"def {name}({', '.join(names)}):", *(self.lines or ["    pass"])])

    def _cannot(self, node: "Node", words: str = "") -> CannotConvert:
        said = words or f"{_text(node)[:60]!r} is not of the common form: write it in Python"
        return CannotConvert(f"line {_line(node)}: {said}")

    def _say(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    # statements

    def statement(self, node: "Node | None") -> None:
        """Translate one; checks, streams and errors are nobody's business here."""
        if node is None or node.type == "comment":
            return
        if node.is_error:
            raise self._cannot(node)
        handler: Callable[[Node], None] | None = getattr(self, f"_on_{node.type}", None)
        if handler is None:
            raise self._cannot(node)
        handler(node)

    def _on_compound_statement(self, node: "Node") -> None:
        for child in _named(node):
            self.statement(child)

    def _on_type_alias(self, node: "Node") -> None:
        """`using T = …` says nothing that Python needs."""

    _on_alias_declaration = _on_static_assert_declaration = _on_using_declaration = _on_type_alias

    def _on_return_statement(self, node: "Node") -> None:
        self._say(" ".join(["return", *(self.said(child).text for child in _named(node))]))

    def _on_throw_statement(self, node: "Node") -> None:
        self._say(f"raise ValueError({_text(_declarator(self.function))[:60].partition('(')[0]!r})")

    def _on_if_statement(self, node: "Node") -> None:
        condition = node.child_by_field_name("condition")
        if re.search(r"\bcudaSuccess\b|\berr(?:or)?\b", _text(condition)):
            return
        self._say(f"if {self._truth(_named(condition)[-1]).text}:")
        self._block(node.child_by_field_name("consequence"))
        if other := node.child_by_field_name("alternative"):
            self._say("else:")
            self._block(_named(other)[-1] if other.type == "else_clause" else other)

    def _block(self, node: "Node | None") -> None:
        before, self.depth = len(self.lines), self.depth + 1
        self.statement(node)
        if len(self.lines) == before:
            self._say("pass")
        self.depth -= 1

    def _on_for_statement(self, node: "Node") -> None:
        first = node.child_by_field_name("initializer")
        self._effect(first) if first is not None and first.type != "declaration" else self.statement(first)
        self._say(f"while {self.said(node.child_by_field_name('condition')).text}:")
        self._block(node.child_by_field_name("body"))
        self.depth += 1
        self._effect(node.child_by_field_name("update"))
        self.depth -= 1

    def _on_declaration(self, node: "Node") -> None:
        kind = _text(node.child_by_field_name("type"))
        if _OF_STREAMS.search(_text(node)):
            return
        for declared in node.children_by_field_name("declarator"):
            if declared.type == "init_declarator":
                value = declared.child_by_field_name("value")
                self._declared(declared.child_by_field_name("declarator"), kind, value)
            elif declared.type == "function_declarator":  # `dim3 grid(blocks);` can be read as one
                self._declared(
                    declared.child_by_field_name("declarator"), kind, declared.child_by_field_name("parameters")
                )
            else:
                self._declared(declared, kind, None)

    def _declared(self, target: "Node | None", kind: str, value: "Node | None") -> None:
        points = target is not None and target.type == "pointer_declarator"
        while target is not None and target.type in ("pointer_declarator", "reference_declarator"):
            target = _named(target)[-1]
        if target is None or target.type != "identifier":
            raise self._cannot(target or self.function)
        name = _text(target)
        whole = (
            re.fullmatch(r"(?:unsigned|long|short|s?size_t|u?int\d*(?:_t)?|[\s\w]*\bint)\b[\s\w]*", kind) is not None
        )
        number = "float" if kind in ("float", "double") else ""
        if kind == "dim3":
            said = _Said(self._dims(value), "dim3")
        elif value is None:
            self.kinds[name] = _address(f"{kind}*") if points else "tensor" if "Tensor" in kind else number or "int"
            return
        elif value.type in ("argument_list", "parameter_list"):
            said = self._only(value)
        else:
            said = self.said(value)
        if points:
            said = _cast(f"{kind}*", said)
        elif whole and said.kind == "float":
            said = _Said(f"int({said.text})")
        self.kinds[name] = said.kind if points else "int" if whole else number or said.kind
        self._say(f"{_safe(name)} = {said.text}")

    def _dims(self, value: "Node | None") -> str:
        """dim3 of what it is made of, as a list: its members are assigned to."""
        if value is None:
            return "[1, 1, 1]"
        if value.type in ("argument_list", "initializer_list", "parameter_list"):
            return f"[{', '.join(self.said(child).text for child in _named(value))}]"
        return f"list({self.said(value).text})"

    def _on_expression_statement(self, node: "Node") -> None:
        for child in _named(node):
            self._effect(child)

    def _effect(self, node: "Node | None") -> None:
        """An expression that is there for what it does."""
        if node is None:
            return
        if node.type == "assignment_expression":
            left, right = (self.said(node.child_by_field_name(side)) for side in ("left", "right"))
            mark = _text(node.child_by_field_name("operator"))
            if left.kind in _POINTERS and mark != "=":
                mark, right = "=", self._moved(node, left, mark.removesuffix("="), right)
            mark = "//=" if mark == "/=" and "float" not in (left.kind, right.kind) else mark
            self._say(f"{left.text} {mark} {right.text}")
        elif node.type == "update_expression":
            mark, its = _text(node.child_by_field_name("operator"))[0], self.said(node.child_by_field_name("argument"))
            moved = its.kind in _POINTERS
            self._say(
                f"{its.text} = {self._moved(node, its, mark, _Said('1')).text}" if moved else f"{its.text} {mark}= 1"
            )
        elif node.type == "call_expression":
            self._called(node)
        elif not _OF_STREAMS.search(_text(node)):
            raise self._cannot(node)

    def _called(self, node: "Node") -> None:
        function = _text(node.child_by_field_name("function"))
        if any(child.type == "kernel_call_syntax" for child in node.children):
            self._launch(node)
        elif function.startswith("AT_DISPATCH"):
            self._dispatch(node)
        elif not _CHECKS.fullmatch(function.rpartition("::")[2]) and not _OF_STREAMS.search(_text(node)):
            self._say(self.said(node).text)

    def _dispatch(self, node: "Node") -> None:
        """AT_DISPATCH_…(x.scalar_type(), "name", [&] { … }): what stands in the lambda."""
        found = re.search(r"([\w.]+?)\.(?:scalar_type|type|dtype)\(", _text(node))
        self.scalar = _safe(found[1]) if found else ""
        bodies = [n for n in _every(node) if n.type == "lambda_expression"]
        if not bodies:
            raise self._cannot(node)
        self.statement(bodies[0].child_by_field_name("body"))

    def _launch(self, node: "Node") -> None:
        name, arguments = _text(node.child_by_field_name("function")), ""
        found = next((child for child in _every(node) if child.type == "template_argument_list"), None)
        if name.endswith(">") and found:
            name, arguments = name.partition("<")[0], self._template_arguments(_text(found))
        known = self.source.kernels.get(name.rpartition("::")[2])
        if known is None:
            raise self._cannot(node, f"{name} is no __global__ function of this text")
        shape = next(child for child in node.children if child.type == "kernel_call_syntax")
        if len(_named(shape)) < 2:
            raise self._cannot(node)
        grid, block, *more = (self.said(child).text for child in _named(shape)[:3])
        values = [self.said(child).text for child in _named(node.child_by_field_name("arguments"))]
        options = [f"block={block}", *(f"shared_bytes={text}" for text in more if text != "0")]
        quoted = f'{"f" if "{" in arguments else ""}"{known}{arguments}"'
        self._say(f"CudaKernel(TEXT, {quoted})[{grid}]({', '.join([*values, *options])})")

    def _template_arguments(self, text: str) -> str:
        """As CudaKernel's name has them: numbers of the host are filled in."""
        text = re.sub(r"\b([A-Za-z_]\w*)\b", lambda m: f"{{{_safe(m[1])}}}" if m[1] in self.kinds else m[1], text)
        return re.sub(r"\bscalar_t\b", f"{{_CUDA[{self.scalar}.dtype]}}", " ".join(text.split()))

    # expressions

    def said(self, node: "Node | None") -> _Said:
        """An expression in Python. Raises CannotConvert."""
        handler: Callable[[Node], _Said] | None = getattr(self, f"_of_{node.type}", None) if node else None
        if handler is None or node is None:
            raise self._cannot(node or self.function)
        return handler(node)

    def _only(self, node: "Node | None") -> _Said:
        """What a list holds that may hold one expression. Raises CannotConvert."""
        found = _named(node)
        if len(found) != 1:
            raise self._cannot(node or self.function)
        return self.said(found[0])

    def _of_number_literal(self, node: "Node") -> _Said:
        digits = _text(node).rstrip("uUlL")
        if digits.lower().startswith("0x") or not re.search(r"[.eEfF]", digits):
            return _Said(digits, "int")
        return _Said(digits.rstrip("fF"), "float")

    def _of_string_literal(self, node: "Node") -> _Said:
        return _Said(_text(node))

    def _of_true(self, node: "Node") -> _Said:
        return _Said(_text(node).capitalize(), "int")

    _of_false = _of_true

    def _of_null(self, node: "Node") -> _Said:
        return _Said("0", "int")

    def _of_identifier(self, node: "Node") -> _Said:
        name = _text(node)
        if name in self.kinds:
            return _Said(_safe(name), self.kinds[name])
        if name in self.source.constants:
            self.used.add(name)
            return _Said(name, "float" if re.search(r"\d\.|\.\d", self.source.constants[name]) else "int")
        raise self._cannot(node, f"nothing says what {name} is")

    def _of_parameter_declaration(self, node: "Node") -> _Said:
        return self._of_identifier(_named(node)[0])  # `dim3 grid(blocks);` read as a function's declaration

    def _of_qualified_identifier(self, node: "Node") -> _Said:
        words = _text(node).rpartition("::")[2].removeprefix("k")
        if words in _DTYPES:
            return _Said(f"torch.{_DTYPES[words]}", "dtype")
        if words == "CUDA":
            return _Said('"cuda"')
        raise self._cannot(node)

    def _of_parenthesized_expression(self, node: "Node") -> _Said:
        inner = self.said(_named(node)[-1])
        return _Said(f"({inner.text})", inner.kind)

    def _of_initializer_list(self, node: "Node") -> _Said:
        return _Said(f"[{', '.join(self.said(child).text for child in _named(node))}]")

    def _of_conditional_expression(self, node: "Node") -> _Said:
        test = self._truth(node.child_by_field_name("condition"))
        yes, no = (self.said(node.child_by_field_name(n)) for n in ("consequence", "alternative"))
        return _Said(f"({yes.text} if {test.text} else {no.text})", yes.kind if yes.kind == no.kind else "float")

    def _of_unary_expression(self, node: "Node") -> _Said:
        mark, argument = _text(node.child_by_field_name("operator")), node.child_by_field_name("argument")
        if mark == "!":
            return _Said(f"not {self._truth(argument).text}", "int")
        value = self.said(argument)
        return _Said(f"{mark}{value.text}", value.kind)

    def _truth(self, node: "Node | None") -> _Said:
        """An expression that is asked for its truth: an address is there, or it is null; a tensor has none."""
        value = self.said(node)
        return _Said(f"isinstance({value.text}, torch.Tensor)", "int") if value.kind in _POINTERS else value

    def _of_pointer_expression(self, node: "Node") -> _Said:
        of = node.child_by_field_name("argument")
        if of is not None and of.type == "subscript_expression" and _text(node).startswith("&"):
            value = self.said(of.child_by_field_name("argument"))
            index = self._only(of.child_by_field_name("indices"))
            if value.kind in _POINTERS:
                return self._moved(node, value, "+", index)
        return self.said(of)

    def _moved(self, node: "Node", address: _Said, mark: str, by: _Said) -> _Said:
        """An address some elements further. Raises CannotConvert."""
        if "vectors" in (address.kind, by.kind):
            raise self._cannot(node, f"{_text(node)[:60]!r} counts vectors, not elements: write it in Python")
        if mark != "+" or address.kind != "pointer" or by.kind == "pointer":
            raise self._cannot(node)
        return _Said(f"{address.text}.view(-1)[{by.text}:]", "pointer")

    def _of_binary_expression(self, node: "Node") -> _Said:
        mark = _text(node.child_by_field_name("operator"))
        left, right = (self._side(node.child_by_field_name(side), mark) for side in ("left", "right"))
        nulls = [its for its in node.named_children if its.type == "null"]
        if mark in ("==", "!=") and nulls and {left.kind, right.kind} & set(_POINTERS):
            there = self._truth(next(its for its in _named(node) if its.type != "null"))
            return _Said(f"{'not ' * (mark == '==')}{there.text}", "int")
        if {left.kind, right.kind} & set(_POINTERS) and mark not in _TRUTHS:
            return self._moved(node, left, mark, right)
        if mark in _TRUTHS:
            return _Said(f"{left.text} {_OPERATORS.get(mark, mark)} {right.text}", "int")
        kind = "float" if "float" in (left.kind, right.kind) else "int" if left.kind == right.kind == "int" else "other"
        mark = "//" if mark == "/" and kind != "float" and "tensor" not in (left.kind, right.kind) else mark
        return _Said(f"{left.text} {mark} {right.text}", kind)

    def _side(self, node: "Node | None", mark: str) -> _Said:
        """An operand, in brackets where Python would take it otherwise: it ranks comparisons below & ^ |, and `not`
        below all of them, and `a == b == c` is one comparison of three."""
        its = self._truth(node) if mark in _OPERATORS else self.said(node)
        inner = _text(node.child_by_field_name("operator")) if node else ""
        compared = inner in _COMPARISONS and mark in (*_COMPARISONS, "&", "^", "|")
        return its._replace(text=f"({its.text})") if compared or (inner == "!" and mark not in _OPERATORS) else its

    def _of_cast_expression(self, node: "Node") -> _Said:
        return _cast(_text(node.child_by_field_name("type")), self.said(node.child_by_field_name("value")))

    def _of_sizeof_expression(self, node: "Node") -> _Said:
        kind = _text(_named(node)[-1]).strip("() ")
        if kind == "scalar_t" and self.scalar:
            return _Said(f"{self.scalar}.element_size()", "int")
        if kind not in _SIZES:
            raise self._cannot(node)
        return _Said(str(_SIZES[kind]), "int")

    def _of_subscript_expression(self, node: "Node") -> _Said:
        value = self.said(node.child_by_field_name("argument"))
        if value.kind in _POINTERS:  # what stands there, the host does not know
            raise self._cannot(node)
        index = self._only(node.child_by_field_name("indices"))
        return _Said(f"{value.text}[{index.text}]", "int" if value.kind == "sizes" else "other")

    def _of_field_expression(self, node: "Node") -> _Said:
        value, name = self.said(node.child_by_field_name("argument")), _text(node.child_by_field_name("field"))
        if value.kind != "dim3" or name not in ("x", "y", "z"):
            raise self._cannot(node)
        return _Said(f"{value.text}[{'xyz'.index(name)}]", "int")

    def _of_call_expression(self, node: "Node") -> _Said:
        function = node.child_by_field_name("function")
        values = [self.said(child) for child in _named(node.child_by_field_name("arguments"))]
        if function is None:
            raise self._cannot(node)
        if function.type == "field_expression":
            return self._member(node, function, values)
        return self._function(node, _text(function), values)

    def _of_primitive_type(self, node: "Node") -> _Said:
        raise self._cannot(node)

    def _function(self, node: "Node", name: str, values: Sequence[_Said]) -> _Said:
        plain, short = [v.text for v in values], name.partition("<")[0].rpartition("::")[2]
        if short in ("static_cast", "reinterpret_cast", "const_cast"):
            return _cast(name.partition("<")[2], values[0])
        if short == "dim3":
            return _Said(f"[{', '.join(plain)}]", "dim3")
        if short in ("TensorOptions", "dtype", "device") and len(values) <= 1:
            meant = short if short != "TensorOptions" else "dtype" if values and values[0].kind == "dtype" else "device"
            return _Said(f'{{"{meant}": {plain[0]}}}' if plain else "{}", "options")
        if short.lower() in _ROUNDED_UP and len(plain) == 2:
            return _Said(f"-(-({plain[0]}) // ({plain[1]}))", "int")
        if name.startswith(("torch::", "at::")):
            key = {"options": "**{}", "dtype": "dtype={}"}
            said = [
                *(v.text for v in values if v.kind not in key),
                *(key[v.kind].format(v.text) for v in values if v.kind in key),
            ]
            return _Said(f"torch.{name.partition('::')[2].replace('::', '.')}({', '.join(said)})", "tensor")
        if known := _MATH.get(short.removesuffix("f")):
            whole = known in ("min", "max", "abs") and all(v.kind == "int" for v in values)
            return _Said(f"{known}({', '.join(plain)})", "int" if whole else "float")
        if short in ("make_tuple", "tie"):
            return _Said(f"({', '.join(plain)})")
        if short in self.source.launchers:
            return _Said(f"{short}({', '.join(plain)})", "tensor")
        if re.fullmatch(r"(?:unsigned|s?size_t|u?int\d*(?:_t)?|float|double)", short) and len(values) == 1:
            return _cast(short, values[0])
        raise self._cannot(node)

    def _member(self, node: "Node", function: "Node", values: Sequence[_Said]) -> _Said:
        value = self.said(function.child_by_field_name("argument"))
        name = _text(function.child_by_field_name("field")).partition("<")[0].removeprefix("template").strip()
        plain = ", ".join(v.text for v in values)
        if value.kind == "options":
            key = name if name in ("dtype", "device") else ""
            return _Said(f'({value.text} | {{"{key}": {values[0].text}}})', "options") if key and values else value
        if name in _ADDRESSES:
            return _Said(value.text, "pointer")
        if name in ("size", "length"):
            return _Said(f"{value.text}.shape[{plain}]" if values else f"len({value.text})", "int")
        if name in _NO_MEMBERS:
            raise self._cannot(node, f"{name} of a tensor: no launch can pass one; pass its address and sizes")
        if known := _MEMBERS.get(name):
            return _Said(known[0].format(t=value.text, v=plain), known[1])
        return _Said(f"{value.text}.{name}({plain})", "tensor")


def _address(kind: str) -> str:
    """What an address is, by the type that it is said to have: one further is an element, or several."""
    several = re.search(r"(?:char|short|int|long|float|double|half|bfloat16)[234]\s*(?:const\s*)?\*", kind)
    return "vectors" if several else "pointer"


def _cast(kind: str, value: _Said) -> _Said:
    if "*" in kind:
        return value._replace(kind=_address(kind) if value.kind in _POINTERS else value.kind)
    if value.kind in ("tensor", *_POINTERS):
        return value
    if re.search(r"\b(?:float|double)\b", kind):
        return _Said(f"float({value.text})", "float")
    return value if value.kind == "int" else _Said(f"int({value.text})", "int")


def _every(node: "Node") -> "Iterator[Node]":
    for child in node.children:
        yield child
        yield from _every(child)


def _parameters(function: "Node") -> "list[Node]":
    declarator = _declarator(function)
    return _named(declarator.child_by_field_name("parameters")) if declarator else []


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


# ---
# Whole files.

_TYPES_OF_CUDA = """_CUDA = {
    torch.float32: "float", torch.float64: "double", torch.float16: "__half", torch.bfloat16: "__nv_bfloat16",
    torch.int32: "int", torch.int64: "long long", torch.int8: "signed char", torch.uint8: "unsigned char",
}"""


def converted(text: str, name: str) -> str:
    """A candidate from a .cu file called `name`. Raises CannotConvert."""
    source = taken_apart(text)
    code = _host(source)
    entry, function = list(source.launchers.items())[-1]
    words = [_text(p).partition("=")[0] for p in _parameters(function)]
    if any("*" in its for its in words):
        names = ", ".join(re.findall(r"\w+", its)[-1] for its in words if "cudaStream_t" not in its)
        forward = f"# LOOK: of ({names}) make here what is no input\n        return {entry}(*inputs)"
    else:
        forward = f"return {entry}(*inputs)"
    imports = "import math\n\nimport torch" if "math." in code else "import torch"
    made = (
        f'"""From {name}."""\n\n{imports}\nfrom torch import nn\n\nfrom kerneltune import CudaKernel\n\n'
        f"TEXT = {_quoted(source.device)}\n\n\n{code}\n\n\nclass ModelNew(nn.Module):\n"
        f"    def forward(self, *inputs):\n        {forward}\n"
    )
    _parsed(made)
    return made


def _host(source: CudaSource) -> str:
    """Launchers, and the constants that they need."""
    used: set[str] = set()
    functions = [LauncherTranslator(source, function, used).python() for function in source.launchers.values()]
    for name in list(source.constants)[::-1]:  # constants are made of earlier ones
        if name in used:
            used |= set(re.findall(r"[A-Za-z_]\w*", source.constants[name]))
    ahead = [_TYPES_OF_CUDA] if any("_CUDA[" in its for its in functions) else []
    for name, value in source.constants.items():
        if name in used:
            plain = re.sub(r"\b(\d+(?:\.\d*)?)[fFuUlL]+\b", r"\1", value)
            ahead.append(f"{name} = {plain if '.' in plain else plain.replace('/', '//')}")
    return "\n\n\n".join(["\n".join(ahead)] * bool(ahead) + functions)


def _quoted(text: str) -> str:
    body = re.sub(r"\n{3,}", "\n\n", text).strip("\n")
    if '"""' in body or body.endswith("\\"):
        raise CannotConvert('the text holds """')
    return f'r"""\n{body}\n"""'


_BUILDERS = ("load_inline", "cpp_extension.load_inline", "torch.utils.cpp_extension.load_inline")


def converted_python(source: str) -> str:
    """A candidate from a Python file that builds CUDA C++ by load_inline. Raises CannotConvert."""
    tree, starts = _parsed(source), [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    builds = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) in _BUILDERS]
    if not builds:
        raise CannotConvert("the file builds nothing by load_inline")
    edits, blocks, named = list[tuple[Any, str]](), list[str](), set[str]()
    for number, call in enumerate(builds, 1):
        text, names = _sources(call, assigned, tree)
        name = "TEXT" if len(builds) == 1 else f"TEXT_{number}"
        try:
            parts = taken_apart(text)
            host = _host(parts).replace("CudaKernel(TEXT,", f"CudaKernel({name},")
        except CannotConvert as error:
            raise CannotConvert(f"in its CUDA C++, {error}") from error
        blocks.append(f"{name} = {_quoted(parts.device)}\n\n\n{host}\n")
        offered = {its: its for its in parts.launchers}
        offered |= {k: v.rpartition("::")[2] for k, v in parts.offered.items() if v.rpartition("::")[2] in offered}
        edits.append((call, f"SimpleNamespace({', '.join(f'{name}={its}' for name, its in offered.items())})"))
        named |= names
    edits += [(node, "" if node in tree.body else "pass") for node in ast.walk(tree) if _is_dropped(node, named)]
    raw = source.encode()
    for node, new in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        first, last = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        raw = raw[:first] + new.encode() + raw[last:]
    imports = ["import math"] * any("math." in block for block in blocks)
    imports += ["from types import SimpleNamespace", "", "from kerneltune import CudaKernel", ""]
    made = _after_imports(raw.decode(), "\n".join([*imports, "\n\n".join(blocks)]))
    _parsed(made)
    return made


def _parsed(source: str) -> ast.Module:
    try:
        return syntax_tree(source)
    except SyntaxError as error:
        raise CannotConvert(f"this is no Python: {error}") from error


def _sources(call: ast.Call, assigned: Sequence[ast.Assign], tree: ast.Module) -> tuple[str, set[str]]:
    """What a call of load_inline compiles, and the names that hold its texts."""
    named: set[str] = set()
    changed = {ast.unparse(node.target) for node in ast.walk(tree) if isinstance(node, ast.AugAssign)}

    def text_of(node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return text_of(node.left) + text_of(node.right)
        if isinstance(node, ast.List | ast.Tuple):
            return "\n".join(map(text_of, node.elts))
        spoken = ast.unparse(node)
        values = [a.value for a in assigned if any(ast.unparse(t) == spoken for t in a.targets)]
        if not isinstance(node, ast.Name | ast.Attribute) or len(values) != 1 or values[0] is node or spoken in changed:
            raise CannotConvert(f"line {node.lineno}: {spoken[:60]} is no text that stands in the file once")
        named.add(spoken)
        return text_of(values[0])

    texts = {k.arg: text_of(k.value) for k in call.keywords if k.arg in ("cuda_sources", "cpp_sources")}
    return "\n".join(texts[kind] for kind in ("cpp_sources", "cuda_sources") if "{" in texts.get(kind, "")), named


def _is_dropped(node: ast.AST, named: set[str]) -> bool:
    """Texts that were converted, and the import of what built them."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "torch.utils.cpp_extension"
    if isinstance(node, ast.Import):
        return any("cpp_extension" in alias.name for alias in node.names)
    return isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} <= named


def _is_heading(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)


def _after_imports(source: str, head: str) -> str:
    first = itertools.takewhile(_is_heading, _parsed(source).body)
    last = max((node.end_lineno or node.lineno for node in first), default=0)
    lines = source.split("\n")
    body = re.sub(r"\A\n+", "\n\n", re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines[last:])))
    return "\n".join([*lines[:last], head.rstrip("\n"), body])
