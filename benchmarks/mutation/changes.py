"""The changes of syntax trees that make mutants.

A change is `(kind, start, end, text)`: the bytes from `start` to `end` of the source are replaced by `text`.
"""

import ast
import itertools
import re

KINDS = ("numbers", "comparisons", "arithmetic", "booleans", "arguments", "returns", "statements", "tables")
"""`tables` are numbers in modules and classes, which run at import."""

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
"""Keyword arguments that are texts for people."""
_BETWEEN = re.compile(r"#[^\n]*|[\s()\\]+|(\w+|[^\w\s()#\\]+)")
"""Text between two operands: comments, parentheses and space, and one operator."""
_DELETED = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete, ast.Assert)


class Text:
    """A source in UTF-8, with the positions of its syntax tree."""

    def __init__(self, source):
        self.bytes = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node):
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node):
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def source_of(self, node):
        return self.between(self.start(node), self.end(node))

    def between(self, start, end):
        return self.bytes[start:end].decode()

    def line(self, position):
        return self.bytes.count(b"\n", 0, position) + 1

    def replaced(self, start, end, text):
        """The source with a part replaced, and with the same number of lines."""
        missing = self.bytes[start:end].count(b"\n") - text.count("\n")
        return self.bytes[:start] + text.encode() + b"\n" * missing + self.bytes[end:]


def changes(node, text):
    """The changes of a node, without those of its children.

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
    """Whether it is a call for its effect, an assignment to an attribute or item, or a name set from itself."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, (ast.Call, ast.Await))
    if not isinstance(node, ast.Assign):
        return False
    if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
        return True
    names = {target.id for target in node.targets if isinstance(target, ast.Name)}
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node.value))


def _constant_changes(node, text):
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


def _truth_changes(node, text):
    if isinstance(node.value, bool):
        yield text.start(node), text.end(node), str(not node.value)


def _comparison_changes(node, text):
    left = node.left
    for right in node.comparators:
        for start, end, operator in _operators(text, text.end(left), text.start(right)):
            for other in _COMPARISONS.get(operator, ()):
                yield start, end, other
        left = right


def _operators(text, start, end):
    """(start, end, operator) between two operands. Two words count as one operator."""
    between = text.between(start, end)
    matches = [match for match in _BETWEEN.finditer(between) if match[1]]
    if matches and between.isascii():
        operator = " ".join(match[1] for match in matches)
        yield start + matches[0].start(), start + matches[-1].end(), operator


def _operation_changes(node, text):
    if any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right)):
        return
    if isinstance(node.op, ast.BitOr):
        yield text.end(node.left), text.end(node.right), ""
    for start, end, operator in _operators(text, text.end(node.left), text.start(node.right)):
        if operator in _ARITHMETIC:
            yield start, end, _ARITHMETIC[operator]


def _augmented_changes(node, text):
    if isinstance(node.value, ast.JoinedStr) or _is_text(node.value):
        return
    for start, end, operator in _operators(text, text.end(node.target), text.start(node.value)):
        if operator[:-1] in _ARITHMETIC:
            yield start, end, f"{_ARITHMETIC[operator[:-1]]}="


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def _junction_changes(node, text):
    for left, right in itertools.pairwise(node.values):
        for start, end, operator in _operators(text, text.end(left), text.start(right)):
            if operator in ("and", "or"):
                yield start, end, {"and": "or", "or": "and"}[operator]


def _sign_changes(node, text):
    if isinstance(node.op, ast.USub):
        yield text.start(node), text.start(node.operand), ""


def _negation_changes(node, text):
    if isinstance(node.op, ast.Not):
        yield text.start(node), text.start(node.operand), ""


def _call_changes(node, text):
    yield from _dropped_keywords(node, text)
    positional = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    for first, second in itertools.pairwise(positional):
        middle = text.between(text.end(first), text.start(second))
        if text.source_of(first) != text.source_of(second) and middle.strip() == ",":
            yield text.start(first), text.end(second), f"{text.source_of(second)}{middle}{text.source_of(first)}"


def _dropped_keywords(node, text):
    """Calls without one of their keywords and the comma before it, or after it if it is the first argument."""
    arguments = sorted([*node.args, *node.keywords], key=text.start)
    for index, argument in enumerate(arguments):
        if not isinstance(argument, ast.keyword) or argument.arg in (None, *_WORDS):
            continue
        if index:
            yield text.end(arguments[index - 1]), text.end(argument), ""
        else:
            end = text.start(arguments[1]) if len(arguments) > 1 else text.end(argument)
            yield text.start(argument), end, ""


def _return_changes(node, text):
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield text.start(node.value), text.end(node.value), "None"


_MAKERS = {
    ast.Constant: [("numbers", _constant_changes), ("booleans", _truth_changes)],
    ast.Compare: [("comparisons", _comparison_changes)],
    ast.BinOp: [("arithmetic", _operation_changes)],
    ast.AugAssign: [("arithmetic", _augmented_changes)],
    ast.BoolOp: [("booleans", _junction_changes)],
    ast.UnaryOp: [("arithmetic", _sign_changes), ("booleans", _negation_changes)],
    ast.Call: [("arguments", _call_changes)],
    ast.Return: [("returns", _return_changes)],
}
