"""Dataclasses as pytrees that JAX tells apart.

`jax.tree_util.register_dataclass` does not keep classes apart: two classes have equal tree structures if they have
equally many fields and equal static ones. (Seen in JAX 0.10.2: the hashes differ, but equality ignores the class.) A
compiled function looks up its programs by structure, in a hash table that compares a few bits of the hash first. Now
and then it takes the program of the other class. Where several classes can stand in the same place, such as the layers
of a network or the filters of an ensemble, the result is then wrong.
"""

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

import jax

T = TypeVar("T")


def dataclass_pytree(cls: type[T]) -> type[T]:
    """Register a dataclass as a pytree of its own kind; fields with metadata `static` are part of its structure.

    >>> @dataclass_pytree
    ... @dataclasses.dataclass
    ... class Width:
    ...     value: float
    >>> @dataclass_pytree
    ... @dataclasses.dataclass
    ... class Height:
    ...     value: float
    >>> jax.tree.structure(Width(1.0)) == jax.tree.structure(Height(1.0))
    False
    >>> jax.tree.map(lambda x: 2 * x, Width(1.0))
    Width(value=2.0)
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    static = [field.name for field in fields if field.metadata.get("static")]
    leaves = [field.name for field in fields if not field.metadata.get("static")]

    def flatten(tree: T) -> tuple:
        return tuple(getattr(tree, name) for name in leaves), tuple(getattr(tree, name) for name in static)

    def flatten_with_keys(tree: T) -> tuple:
        return tuple((jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in leaves), flatten(tree)[1]

    def unflatten(structure: tuple, children: Iterable) -> T:
        # `__init__` is not called, because it may check its arguments, and JAX also fills trees with placeholders.
        tree = object.__new__(cls)
        for name, value in zip([*leaves, *static], [*children, *structure], strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
