"""The changes that make mutants of a syntax tree: what each kind of change may replace, and by what.

A change is `(kind, start, end, text)`: the bytes from `start` to `end` of the source become `text`.
"""

import ast
import itertools
import re

KINDS = ("numbers", "comparisons", "arithmetic", "booleans", "arguments", "returns", "statements", "tables")
"""`tables` are numbers of tables in modules and classes, which run at import."""

_COMPARISONS = {
    "<": ("<=", ">="),
    "<=": ("<", ">"),
    ">": (">=", "<="),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
}
_ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "&": "|", "<<": ">>", ">>": "<<"}
_WORDS = {"help", "description", "metavar", "prog", "epilog", "title"}
"""Keywords of texts for people."""
_BETWEEN = re.compile(r"#[^\n]*|[\s()\\]+|(\w+|[^\w\s()#\\]+)")
"""What may stand between two operands: comments, parentheses and space, and one operator."""
_DELETED = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete, ast.Assert)


class Text:
    """A source in UTF-8, by the positions of its syntax tree."""

    def __init__(self, source):
        self.bytes = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node):
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node):
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node):
        return self.between(self.start(node), self.end(node))

    def between(self, start, end):
        return self.bytes[start:end].decode()

    def line(self, position):
        return self.bytes.count(b"\n", 0, position) + 1

    def replaced(self, start, end, text):
        """The source with another text, as many lines long."""
        missing = self.bytes[start:end].count(b"\n") - text.count("\n")
        return self.bytes[:start] + text.encode() + b"\n" * missing + self.bytes[end:]


def changes(node, text):
    """What a node can be changed into, without what stands below it.

    Args:
        node: A node of the syntax tree.
        text: `Text` of the source.

    Yields:
        (kind, start, end, text)
    """
    for kind, make in _MAKERS.get(type(node), ()):
        for start, end, replacement in make(node, text):
            yield kind, start, end, replacement
    if isinstance(node, _DELETED) or _is_deletable(node):
        yield "statements", text.start(node), text.end(node), "pass"


def _is_deletable(node):
    """A call for its effect; an attribute or an item that is set; a name that is set anew from itself."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await))
    if not isinstance(node, ast.Assign):
        return False
    if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
        return True
    names = {target.id for target in node.targets if isinstance(target, ast.Name)}
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node.value))


def _of_constant(node, text):
    value = node.value
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield text.start(node), text.end(node), str(value + 1)
        if value > 0:
            yield text.start(node), text.end(node), str(value - 1)
    elif isinstance(value, float):
        for other in (2 * value, value / 2) if value else (1.0,):
            yield text.start(node), text.end(node), repr(other)


def _of_truth(node, text):
    if isinstance(node.value, bool):
        yield text.start(node), text.end(node), str(not node.value)


def _of_comparison(node, text):
    left = node.left
    for right in node.comparators:
        for start, end, operator in _operators(text, text.end(left), text.start(right)):
            for other in _COMPARISONS.get(operator, ()):
                yield start, end, other
        left = right


def _operators(text, start, end):
    """(start, end, operator) of what stands between two operands; two words count as one operator."""
    between = text.between(start, end)
    found = [match for match in _BETWEEN.finditer(between) if match[1]]
    if found and between.isascii():
        operator = " ".join(match[1] for match in found)
        yield start + found[0].start(), start + found[-1].end(), operator


def _of_operation(node, text):
    if any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right)):
        return
    if isinstance(node.op, ast.BitOr):
        yield text.end(node.left), text.end(node.right), ""
    for start, end, operator in _operators(text, text.end(node.left), text.start(node.right)):
        if operator in _ARITHMETIC:
            yield start, end, _ARITHMETIC[operator]


def _of_augmented(node, text):
    if isinstance(node.value, ast.JoinedStr) or _is_text(node.value):
        return
    for start, end, operator in _operators(text, text.end(node.target), text.start(node.value)):
        if operator[:-1] in _ARITHMETIC:
            yield start, end, f"{_ARITHMETIC[operator[:-1]]}="


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _of_junction(node, text):
    for left, right in itertools.pairwise(node.values):
        for start, end, operator in _operators(text, text.end(left), text.start(right)):
            if operator in ("and", "or"):
                yield start, end, {"and": "or", "or": "and"}[operator]


def _of_sign(node, text):
    if isinstance(node.op, ast.USub):
        yield text.start(node), text.start(node.operand), ""


def _of_negation(node, text):
    if isinstance(node.op, ast.Not):
        yield text.start(node), text.start(node.operand), ""


def _of_call(node, text):
    yield from _dropped_keywords(node, text)
    positional = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    for first, second in itertools.pairwise(positional):
        middle = text.between(text.end(first), text.start(second))
        if text.of(first) != text.of(second) and middle.strip() == ",":
            yield text.start(first), text.end(second), f"{text.of(second)}{middle}{text.of(first)}"


def _dropped_keywords(node, text):
    """Calls without one of their keywords: with it goes the comma before it, or behind it where it is the first."""
    arguments = sorted([*node.args, *node.keywords], key=text.start)
    for index, argument in enumerate(arguments):
        if not isinstance(argument, ast.keyword) or argument.arg in (None, *_WORDS):
            continue
        if index:
            yield text.end(arguments[index - 1]), text.end(argument), ""
        else:
            end = text.start(arguments[1]) if len(arguments) > 1 else text.end(argument)
            yield text.start(argument), end, ""


def _of_return(node, text):
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield text.start(node.value), text.end(node.value), "None"


_MAKERS = {
    ast.Constant: [("numbers", _of_constant), ("booleans", _of_truth)],
    ast.Compare: [("comparisons", _of_comparison)],
    ast.BinOp: [("arithmetic", _of_operation)],
    ast.AugAssign: [("arithmetic", _of_augmented)],
    ast.BoolOp: [("booleans", _of_junction)],
    ast.UnaryOp: [("arithmetic", _of_sign), ("booleans", _of_negation)],
    ast.Call: [("arguments", _of_call)],
    ast.Return: [("returns", _of_return)],
}
