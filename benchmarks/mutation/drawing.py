"""Draws mutants from the source of the library: balanced over kinds and functions, the same for the same seed."""

import ast
import collections
import dataclasses
import hashlib
import pathlib
import random
import warnings

from benchmarks.mutation.changes import KINDS, Text, changes

PACKAGES = ("keras_vit", "training")
MOST_OF_FUNCTION = 3
"""Largest number of mutants of one function."""
MOST_OF_FILE = 0.02
"""Largest share of all mutants that are in one file."""
_PRINTED = {"print", "warn", "debug", "info", "warning", "error", "log"}
"""Functions whose arguments are messages."""


@dataclasses.dataclass(frozen=True, order=True)
class Mutant:
    """One small change of a source file.

    Args:
        id: Digest of the place and the change.
        path: Path of the file, from the root of the checkout.
        line: First changed line.
        end_line: Last changed line.
        function: Qualified name; outside functions, `module:` and the names that the statement defines.
        kind: One of `benchmarks.mutation.changes.KINDS`.
        before: Text that is replaced.
        after: Text that replaces it.
        runs: When the line runs: `"called"`, with the function; `"defined"`, with its `def`; `"imported"`.
        statement: First line of the statement, or of the function if it runs with the `def`.
        end_statement: Last line of the statement, or of the function.
        start: First byte that is replaced.
        source: Digest of the file.
    """

    id: str
    path: str
    line: int
    end_line: int
    function: str
    kind: str
    before: str
    after: str
    runs: str
    statement: int
    end_statement: int
    start: int
    source: str

    def applied(self, source):
        """The mutated source, in bytes.

        Raises:
            ValueError: If the mutant was drawn from another source.
        """
        if digest(source) != self.source:
            raise ValueError(f"{self.path} has changed since mutant {self.id} was drawn. Draw the mutants anew.")
        return Text(source).replaced(self.start, self.start + len(self.before.encode()), self.after)


def digest(source):
    return hashlib.sha256(source).hexdigest()[:16]


def draw(root, count, seed):
    """Draws mutants of the library. Kinds take turns, and within a kind all functions are equally likely.

    Args:
        root: Folder of the checkout.
        count: Minimum number of mutants. There are fewer only if no more exist.
        seed: Integer.

    Returns:
        List of `Mutant`, by path and line.
    """
    rng, drawn, functions, files = random.Random(seed), [], collections.Counter(), collections.Counter()
    queues = _queues(root, rng)
    while any(queues.values()) and len(drawn) < count:
        for queue in queues.values():
            while queue:
                mutant = queue.popleft()
                function, source = (mutant.path, mutant.function), pathlib.Path(root, mutant.path).read_bytes()
                is_full = files[mutant.path] >= max(1, MOST_OF_FILE * count) or functions[function] >= MOST_OF_FUNCTION
                if not is_full and changes_syntax_tree(mutant, source):
                    drawn.append(mutant)
                    functions[function] += 1
                    files[mutant.path] += 1
                    break
    return sorted(drawn, key=lambda mutant: (mutant.path, mutant.start, mutant.id))


def _queues(root, rng):
    """{kind: its candidates}: one candidate of each function, in random order, then a second of each, and so on."""
    paths = [path for package in PACKAGES for path in sorted(pathlib.Path(root, package).rglob("*.py"))]
    mutants = [mutant for path in paths for mutant in candidates(path.read_bytes(), str(path.relative_to(root)))]
    rng.shuffle(mutants)
    queues = {kind: [] for kind in KINDS}
    counts = collections.Counter()
    for mutant in mutants:
        key = mutant.kind, mutant.path, mutant.function
        queues[mutant.kind].append((counts[key], rng.random(), mutant))
        counts[key] += 1
    return {kind: collections.deque(mutant for *_, mutant in sorted(queue)) for kind, queue in queues.items()}


def candidates(source, path):
    """All changes of a file, also those that do not compile.

    Args:
        source: Bytes of the file.
        path: Path of the file, from the root of the checkout.

    Returns:
        List of `Mutant`.
    """
    text, source_digest, mutants = Text(source), digest(source), {}
    for place, node in places(ast.parse(source)):
        for kind, start, end, after in changes(node, text):
            before = text.between(start, end)
            key = f"{path}:{start}:{before}:{after}"
            mutants[key] = Mutant(
                id=digest(key.encode())[:10],
                path=path,
                line=text.line(start),
                end_line=text.line(end),
                function=place.function,
                kind=place.kind(kind),
                before=before,
                after=after,
                runs=place.runs,
                statement=place.statement,
                end_statement=place.end_statement,
                start=start,
                source=source_digest,
            )
    return list(mutants.values())


def changes_syntax_tree(mutant, source):
    """Whether the mutant compiles and its syntax tree differs from that of the source."""
    mutated = mutant.applied(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(mutated, "mutant", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))


@dataclasses.dataclass(frozen=True)
class _Place:
    """The place of a node."""

    function: str = ""
    runs: str = "imported"
    statement: int = 0
    end_statement: int = 0

    def kind(self, kind):
        """The kind of a change at this place. In code that runs at import, `"numbers"` are called `"tables"`."""
        return "tables" if kind == "numbers" and self.runs == "imported" else kind

    def at(self, node):
        return dataclasses.replace(self, statement=node.lineno, end_statement=node.end_lineno)

    def within(self, name):
        outer = "" if self.function.startswith("module:") else self.function
        return dataclasses.replace(self, function=f"{outer}.{name}".lstrip("."))


def places(tree):
    """(`_Place`, node) of every node that may be changed."""
    for statement in tree.body:
        if not _is_main(statement):
            yield from _nodes_in_statement(statement, _Place())


def _is_main(statement):
    return isinstance(statement, ast.If) and ast.unparse(statement.test).startswith("__name__")


def _nodes_in_statement(node, place):
    if _is_docstring(node) or isinstance(node, (ast.Import, ast.ImportFrom)) or _targets(node) == ["__all__"]:
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield from _nodes_in_function(node, place)
    elif isinstance(node, ast.ClassDef):
        inner = dataclasses.replace(place.at(node), function=place.within(node.name).function)
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            yield from _nodes_in_expression(part, inner)
        for statement in node.body:
            yield from _nodes_in_statement(statement, inner)
    else:
        yield from _nodes_in_simple(node, place.at(node) if place.runs != "defined" else place)


def _is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _targets(node):
    """Names that an assignment defines."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)]


def _nodes_in_function(node, place):
    """The default values and decorators of a function, which run with the `def`, and its body."""
    within = place.within(node.name)
    # Within a function the `def` is an ordinary statement.
    header = dataclasses.replace(within.at(node), runs="defined" if place.runs == "imported" else place.runs)
    for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
        yield from _nodes_in_expression(part, header)
    for statement in node.body:
        yield from _nodes_in_statement(statement, dataclasses.replace(within, runs="called"))


def _nodes_in_simple(node, place):
    """A statement that defines neither a function nor a class, and the nodes in it."""
    if place.runs == "imported" and not place.function:
        place = dataclasses.replace(place, function=f"module:{','.join(_targets(node))}")
    if place.runs == "called":
        yield place, node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "target", "targets", "exc", "cause"):
            continue
        for part in value if isinstance(value, list) else [value]:
            yield from _nodes_in_part(part, place)


def _nodes_in_part(part, place):
    if isinstance(part, ast.stmt):
        yield from _nodes_in_statement(part, place)
    elif isinstance(part, (ast.ExceptHandler, ast.match_case)):
        for _, value in ast.iter_fields(part):
            for inner in value if isinstance(value, list) else [value]:
                yield from _nodes_in_part(inner, place)
    elif isinstance(part, ast.AST):
        yield from _nodes_in_expression(part, place)


def _nodes_in_expression(node, place):
    """An expression and its parts, without f-strings and messages."""
    if isinstance(node, ast.JoinedStr) or _is_message(node):
        return
    yield place, node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.expr_context, ast.operator, ast.cmpop)):
            yield from _nodes_in_expression(child, place)


def _is_message(node):
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in _PRINTED
