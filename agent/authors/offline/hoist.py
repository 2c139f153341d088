"""Moves powers of plain numbers out of a kernel: they are the same for every element, and libdevice's is a function of
its own, which a kernel that we accept may not call. The host computes them in float64, as the kernel would. AST in, AST
out."""

import ast


class Hoist(ast.NodeTransformer):
    """Replaces `(1 - libdevice.pow(0.9, ks0)).to(tl.float32)` by a new parameter; `hoisted` has the host's expression
    of each. `sizes`: parameters that are numbers."""

    def __init__(self, sizes: set[str]) -> None:
        self._sizes = sizes
        self.hoisted: dict[str, str] = {}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A conversion to float32 whose operand the host can compute."""
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "to" and ast.unparse(node.args[0]) == "tl.float32":
            text = self._on_host(function.value)
            if text is not None and "**" in text:
                known = {value: name for name, value in self.hoisted.items()}
                name = known.setdefault(text, f"factor{len(self.hoisted)}")
                self.hoisted[name] = text
                return ast.Name(name, ast.Load())
        return self.generic_visit(node)

    def _on_host(self, node: ast.expr) -> str | None:
        """The expression as the host's Python; None where it is more than arithmetic on numbers."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return repr(node.value)
        if isinstance(node, ast.Name) and node.id in self._sizes:
            return node.id
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._on_host(node.operand)
            return inner and f"(-{inner})"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            left, right = self._on_host(node.left), self._on_host(node.right)
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
            return f"({left} {sign} {right})" if left and right else None
        return self._call_on_host(node) if isinstance(node, ast.Call) else None

    def _call_on_host(self, node: ast.Call) -> str | None:
        name = ast.unparse(node.func)
        if name == "libdevice.pow":
            base, exponent = map(self._on_host, node.args)
            return f"({base} ** {exponent})" if base and exponent else None
        if name == "tl.full" and ast.unparse(node.args[0]) == "[]":
            return self._on_host(node.args[1])
        if name == "tl.cast" and ast.unparse(node.args[1]) == "tl.float64":
            return self._on_host(node.args[0])
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "to"
            and ast.unparse(node.args[0]) == "tl.float64"
        ):
            return self._on_host(node.func.value)
        return None
