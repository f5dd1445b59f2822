"""Trees of sources, parsed and walked once for all rules of a test file; no rule changes them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache

import pytest


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a source's tree; to walk it takes longer than to parse it, and each rule needs them."""
    return tuple(ast.walk(parsed(text)))


@pytest.fixture(scope="module", autouse=True)
def trees_are_given_back() -> Iterator[None]:
    """Trees have no circles, and the garbage collector would look at millions of nodes, here and in later tests."""
    gc.disable()
    yield
    nodes.cache_clear()
    parsed.cache_clear()
    gc.enable()
