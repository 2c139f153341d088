"""Dataclasses as the documents show them: the fields of each, with their types in words."""

import ast
import inspect
import textwrap

_SIMPLE = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "None": "null",
    "Json": "JSON",
}


def fields_of(cls: type) -> dict[str, str]:
    """Field names of a dataclass, in order, and their types in the words of JSON."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    annotated = [node for node in tree.body if isinstance(node, ast.AnnAssign)]
    return {node.target.id: type_in_words(node.annotation) for node in annotated if isinstance(node.target, ast.Name)}


def type_in_words(node: ast.expr) -> str:
    """`str | None` is "text or null", `tuple[X, ...]` is "list of X"."""
    match node:
        case ast.BinOp(left=left, right=right):
            return f"{type_in_words(left)} or {type_in_words(right)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=values):
            return ", ".join(f"`{choice.value}`" for choice in getattr(values, "elts", [values]))
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[of, _])):
            return f"list of {type_in_words(of)}"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[_, of])):
            return "object" if ast.unparse(of) == "Json" else f"object of {type_in_words(of)}"
        case _:
            return _SIMPLE.get(ast.unparse(node), ast.unparse(node))
