"""Every public function and class has an example in its docstring that is run and whose output is checked."""

import doctest
import importlib
import inspect
import pkgutil
from types import ModuleType

import ntk_equiv

# No test can run these: the first works only before JAX is used, the others read files that may be missing.
EXEMPT = {"use_cores", "cifar10", "fashion_mnist", "mnist", "nct_crc_he", "pathmnist"}


def public_modules() -> list[ModuleType]:
    names = [name for _, name, _ in pkgutil.iter_modules(ntk_equiv.__path__) if not name.startswith("_")]
    return [ntk_equiv, *(importlib.import_module(f"ntk_equiv.{name}") for name in names)]


def public_names(module: ModuleType) -> dict[str, object]:
    """Return the public functions and classes of a module: those in `__all__`, or else those it defines."""
    if hasattr(module, "__all__"):
        found = {name: getattr(module, name) for name in module.__all__}
    else:
        found = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        found = {name: value for name, value in found.items() if getattr(value, "__module__", "") == module.__name__}
    return {name: value for name, value in found.items() if inspect.isroutine(value) or inspect.isclass(value)}


def shows_something(value: object) -> bool:
    """Return whether the docstring has an example that is run and whose output is checked."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
    return any(example.want and not example.options.get(doctest.SKIP) for example in examples)


def without_example(modules: list[ModuleType]) -> list[str]:
    return [
        f"{module.__name__}.{name}"
        for module in modules
        for name, value in public_names(module).items()
        if name not in EXEMPT and not shows_something(value)
    ]


def test_every_public_name_has_an_example():
    assert without_example(public_modules()) == []


def test_names_are_found_in_modules_with_and_without_a_list():
    found = {module.__name__: public_names(module) for module in public_modules()}
    assert len(found["ntk_equiv.stax"]) > 40
    assert {"augment", "AugmentedSet"} <= set(found["ntk_equiv.orbits"])


def test_a_name_without_example_is_named():
    module = ModuleType("made_up")

    def silent():
        """Without any."""

    def mute():
        """Prints nothing.

        >>> mute()
        """

    def skipped():
        """Is not run.

        >>> 1 + 1  # doctest: +SKIP
        2
        """

    def fine():
        """Prints.

        >>> 1 + 1
        2
        """

    for function in (silent, mute, skipped, fine):
        function.__module__ = module.__name__
        setattr(module, function.__name__, function)
    assert without_example([module]) == ["made_up.silent", "made_up.mute", "made_up.skipped"]
