"""Break a module on purpose, one small change at a time, to see whether a test notices.

A mutant changes one comparison, condition, number, status or step inside a function, or one number
at the top of the module. The functions of the module get the changed code in place, so that whoever
has imported them runs it too.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_STATUS = {"FAIL": "PASS", "WARN": "PASS", "UNKNOWN": "PASS", "SKIP": "PASS", "PASS": "FAIL"}


@dataclass(frozen=True)
class Mutant:
    """One change: where, what, and the whole changed module."""

    line: int
    what: str
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module's source."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        for what, change in _changes(node):
            changed = copy.deepcopy(tree)
            target = next(n for i, n in enumerate(ast.walk(changed)) if i == number)
            change(target)
            ast.fix_missing_locations(changed)
            yield Mutant(getattr(node, "lineno", 0), what, changed)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[..., None]]]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            other = _COMPARE[type(operator)]
            yield f"{type(operator).__name__} is {other.__name__}", _set_operator(index, other)
    elif isinstance(node, ast.BoolOp):
        other_bool = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield f"{type(node.op).__name__} is {other_bool.__name__}", _set("op", other_bool)
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield "the condition is turned round", _negate
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield f"{node.value} is {node.value + 1}", _add(1)
    elif isinstance(node, ast.Constant) and node.value in _STATUS:
        yield f"{node.value} is {_STATUS[node.value]}", _value(_STATUS[node.value])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        opposite = ast.Sub if isinstance(node.op, ast.Add) else ast.Add
        yield f"{type(node.op).__name__} is {opposite.__name__}", _set("op", opposite)


def _set(field: str, kind: type[ast.AST]) -> Callable[[ast.AST], None]:
    return lambda node: setattr(node, field, kind())


def _set_operator(index: int, kind: type[ast.cmpop]) -> Callable[[ast.Compare], None]:
    return lambda node: node.ops.__setitem__(index, kind())


def _negate(node: ast.If | ast.IfExp) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _add(more: int) -> Callable[[ast.Constant], None]:
    def change(node: ast.Constant) -> None:
        assert isinstance(node.value, int)
        node.value += more

    return change


def _value(value: str) -> Callable[[ast.Constant], None]:
    return lambda node: setattr(node, "value", value)


@contextlib.contextmanager
def broken(module: types.ModuleType, mutant: Mutant) -> Iterator[None]:
    """The module runs the mutant's code inside this block."""
    code = compile(mutant.tree, module.__file__ or "", "exec")
    changed = dict(_codes(code))
    numbers = dict(_numbers(mutant.tree))
    before: list[tuple[types.FunctionType, types.CodeType]] = []
    old = {name: module.__dict__[name] for name in numbers if name in module.__dict__}
    try:
        for function in _functions(module):
            name = function.__qualname__
            if name in changed:
                before.append((function, function.__code__))
                function.__code__ = changed[name]
        module.__dict__.update(numbers)
        yield
    finally:
        for function, original in before:
            function.__code__ = original
        module.__dict__.update(old)


def _codes(code: types.CodeType, prefix: str = "") -> Iterator[tuple[str, types.CodeType]]:
    """Code of functions and methods by qualified name; nested functions are inside theirs."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            name = f"{prefix}{constant.co_name}"
            yield name, constant
            if not constant.co_flags & 0x2 or constant.co_name[:1].isupper():  # a class's body
                yield from _codes(constant, f"{name}.")


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    for value in list(module.__dict__.values()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            for member in vars(value).values():
                function = member.fget if isinstance(member, property) else member
                if isinstance(function, types.FunctionType):
                    yield function
        elif isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            yield value


def _numbers(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Constants of the module that are plain numbers, texts, or tables of them."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                yield node.targets[0].id, ast.literal_eval(node.value)
