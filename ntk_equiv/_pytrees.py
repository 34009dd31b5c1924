"""Dataclasses as pytrees that JAX tells apart.

`jax.tree_util.register_dataclass` registers a class so that its tree structure equals that of every other class with
equally many fields and equal static ones (seen in JAX 0.10.2: the hashes differ, equality does not look at the class).
A compiled function looks up its programs by structure, a hash table that compares a few bits of the hash first, and so
now and then takes the program of another class. Where several classes can stand in the same place, such as the layers
of a network or the filters of an ensemble, that is a wrong result.
"""

import dataclasses
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def dataclass_pytree(cls: type[T]) -> type[T]:
    """`cls`, a dataclass, registered as a pytree of its own kind; fields with metadata `static` are its structure.

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

    def flatten(tree: Any) -> tuple:
        return tuple(getattr(tree, name) for name in leaves), tuple(getattr(tree, name) for name in static)

    def flatten_with_keys(tree: Any) -> tuple:
        return tuple((jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in leaves), flatten(tree)[1]

    def unflatten(structure: tuple, children: Any) -> Any:
        # Not by its own `__init__`, which may check its arguments: JAX also fills trees with placeholders.
        tree = object.__new__(cls)
        for name, value in zip([*leaves, *static], [*children, *structure], strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
