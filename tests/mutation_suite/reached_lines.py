"""The statements of a module that run: its functions get code that notes the line of each statement.

A trace function would do the same, and be called for every function of the whole process.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType

_NOTE = "_note_line"


def note_lines(path: Path, functions: Mapping[tuple[str, int], FunctionType]) -> set[int]:
    """Change live functions of the module at `path`; return the set that gets the lines that they run.

    `functions` are those of the module by qualified name and first line. The line of a statement is its
    first; a function that is called notes its own line, too.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in list(ast.walk(tree)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            _note_statements(function)
    reached: set[int] = set()
    code = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    for part in _walk_code(code):
        live = functions.get((part.co_qualname, part.co_firstlineno))
        if live is not None and len(live.__code__.co_freevars) == len(part.co_freevars):
            live.__code__ = part
            live.__globals__[_NOTE] = reached.add
    return reached


def _note_statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    """Put a call before each statement of a function that notes its line, nested functions left out."""
    waiting: list[ast.AST] = [function]
    while waiting:
        node = waiting.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            parts = getattr(node, name, None)
            if not isinstance(parts, list):
                continue
            waiting += [part for part in parts if not _is_definition(part)]
            if parts and isinstance(parts[0], ast.stmt):
                setattr(node, name, [new for old in parts for new in (_make_note(old), old)])
    function.body.insert(0, _make_note(function))


def _is_definition(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _make_note(statement: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant(statement.lineno)], [])
    return ast.copy_location(ast.Expr(call), statement)


def _walk_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _walk_code(part)
