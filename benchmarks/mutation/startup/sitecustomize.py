"""Records which statements of the library a process executes, and in which context. Python imports this at its start.

`benchmarks.mutation trace` puts this folder on PYTHONPATH, so that the suite and all processes that its tests start are
recorded. When functions of the library are imported, a call is inserted before every statement. This costs a few per
cent. A trace function such as coverage.py's costs a third and is not called in TensorFlow's own threads.

A process writes lines of text into its own file in the folder `MUTATION_TRACE`. Each line is written immediately, so
that nothing is lost if the process is killed:

    context "NAME"   the next lines belong to this context: a test, a fixture, a cached function; "" is the import
    spent SECONDS    processor time in this context
    uses "NAME"      this context uses the result of that one
    file N "PATH"    number of a file
    N LINE           a statement of file N that was executed
    test "OUTCOME"   outcome of the test of this context
"""

import ast
import builtins
import functools
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import sys
import uuid

_ROOT = os.environ.get("MUTATION_ROOT")
_PACKAGES = ("keras_vit", "training")
_CACHING = (*_PACKAGES, "tests")
_MOST_LINES = 100_000
"""Largest number of lines of a file, by which the number of a file is multiplied."""
_lines_of = {}
"""{path: (number of the file, its lines)}"""


class Recorder:
    """The file of this process, and its stack of contexts."""

    def __init__(self, contexts):
        name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}.txt"
        self._file = os.open(
            pathlib.Path(os.environ["MUTATION_TRACE"], name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        self._contexts, self._seen, self._since = contexts, set(), _seconds()
        for path, (number, _) in _lines_of.items():
            self.write(f"file {number} {json.dumps(path)}")
        self.write(f"context {json.dumps(contexts[-1])}")

    def write(self, line):
        os.write(self._file, f"{line}\n".encode())

    def executes(self, key):
        if key not in self._seen:
            self._seen.add(key)
            self.write(f"{key // _MOST_LINES} {key % _MOST_LINES}")

    def uses(self, name):
        self.write(f"uses {json.dumps(name)}")

    def enter(self, name):
        self._contexts.append(name)
        self._change()

    def leave(self):
        self._contexts.pop()
        self._change()

    def _change(self):
        now = _seconds()
        self.write(f"spent {now - self._since:.4f}")
        self._seen, self._since = set(), now
        os.environ["MUTATION_CONTEXT"] = self._contexts[-1]
        self.write(f"context {json.dumps(self._contexts[-1])}")

    def in_child(self):
        """The recorder of a forked process."""
        os.close(self._file)
        return Recorder([self._contexts[-1]])


def _seconds():
    """Processor time of this process and of the child processes that it waited for."""
    return sum(os.times()[:4])


def executes(key):
    recorder.executes(key)


def execute_all(function):
    """Records all lines of a function, because AutoGraph runs a converted copy in another file."""
    code = getattr(function, "__code__", None)
    number, lines = _lines_of.get(_relative(code.co_filename) if code else None, (0, []))
    if lines:
        last = max(part for part in _code_lines(code) if part)
        for line in lines:
            if code.co_firstlineno <= line <= last:
                executes(number * _MOST_LINES + line)


def _code_lines(code):
    yield from (line for *_, line in code.co_lines())
    for constant in code.co_consts:
        if hasattr(constant, "co_lines"):
            yield from _code_lines(constant)


def _relative(path):
    return str(pathlib.Path(path).relative_to(_ROOT)) if path.startswith(f"{_ROOT}/") else None


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with the inserted calls, always from its source."""

    def get_code(self, fullname):
        path = _relative(self.path)
        tree = ast.parse(self.get_data(self.path))
        lines = []
        number = len(_lines_of) + 1
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                _prepend(node, number, lines)
        _lines_of[path] = number, sorted(set(lines))
        recorder.write(f"file {number} {json.dumps(path)}")
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _prepend(node, number, lines):
    """Inserts the calls into all bodies of a function once. Nested functions are visited again."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        statements = getattr(node, field, None)
        if not isinstance(statements, list) or getattr(node, f"{field}_has_calls", False):
            continue
        setattr(node, f"{field}_has_calls", True)
        for statement in statements:
            _prepend(statement, number, lines)
        if field not in ("handlers", "cases"):
            setattr(node, field, [part for statement in statements for part in _with_call(statement, number, lines)])


def _with_call(statement, number, lines):
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return [statement]  # A docstring must stay the first statement.
    lines.append(statement.lineno)
    name = ast.Name("__executes__", ast.Load())
    call = ast.Expr(ast.Call(name, [ast.Constant(number * _MOST_LINES + statement.lineno)], []))
    for node in ast.walk(call):
        ast.copy_location(node, statement)
    return [call, statement]


class Finder(importlib.abc.MetaPathFinder):
    """Imports the library from the traced checkout, in any working directory."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in _PACKAGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path or [_ROOT], target)
        if spec and type(spec.loader) is importlib.machinery.SourceFileLoader and _relative(spec.loader.path):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


class Shared:
    """`functools.cache` with a context for the function. All callers use the context of the first call."""

    def __init__(self, function):
        self._name = f"cache {function.__module__}.{function.__qualname__}"
        self._function = function
        self._cached = _cache(self._compute)
        functools.update_wrapper(self, function)

    def _compute(self, *arguments, **keywords):
        recorder.enter(self._name)
        try:
            return self._function(*arguments, **keywords)
        finally:
            recorder.leave()

    def __call__(self, *arguments, **keywords):
        recorder.uses(self._name)
        return self._cached(*arguments, **keywords)

    def __getattr__(self, name):
        return getattr(self._cached, name)


_cache = functools.cache


def cache(function):
    """`functools.cache`, with contexts for functions of the library and the tests."""
    is_ours = str(getattr(function, "__module__", "")).partition(".")[0] in _CACHING
    return Shared(function) if is_ours and hasattr(function, "__qualname__") else _cache(function)


def _begin_child():
    global recorder
    recorder = recorder.in_child()


if _ROOT:
    recorder = Recorder([os.environ.get("MUTATION_CONTEXT", "")])
    os.register_at_fork(after_in_child=_begin_child)
    builtins.__executes__ = executes
    functools.cache = cache
    sys.meta_path.insert(0, Finder)
