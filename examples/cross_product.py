"""Ensembles learn the cross product of two vectors, which rotates with them: Ra × Rb = R(a × b).

There are three parts. Each measures training, test and out-of-distribution pairs:

    adam      As in the paper: perceptrons with two hidden layers, 100 pairs augmented by 10 random rotations, Adam.
              The theory does not cover Adam, batches, or rotations that do not form a group.
    theory    Infinite ensembles, trained by gradient flow on the same pairs, augmented by the rotations of a
              tetrahedron (T), an octahedron (O) or an icosahedron (I), and by the 10 random rotations. The mean is
              exactly equivariant under the group that augments. The error under all other rotations is computed.
    descent   An ensemble trained by gradient descent on pairs augmented by T, compared with the theory.

The error is the orbit MSE, the mean square of f(gx) − g f(x) over rotations, samples and the three components.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _cross_product_figures import figures, table
from _experiment import Experiment, Results, double_precision
from _orbit_errors import orbit_errors, orbit_products, predicted_parts, products, with_orbit

from ntk_equiv import InfiniteEnsemble, augment, bounds, ensembles, filters, groups, reps, stax
from ntk_equiv.datasets import LabelledSet, Splits, cross_product

SETS = ("train", "test", "ood")
W_STD, B_STD = 2**0.5, 0.1


@dataclasses.dataclass(frozen=True)
class Settings:
    """Sizes. Errors are measured on `orbits` samples of each set, under `turns` rotations."""

    pairs: int = 100
    validation: int = 1000
    rotations: int = 10
    orbits: int = 20
    turns: int = 100
    # adam
    widths: tuple[int, ...] = (32, 128, 512)
    members: int = 16
    rate: float = 0.02
    batch_size: int = 50
    epochs: int = 50
    averaged: int = 5
    # theory
    augmentations: tuple[str, ...] = ("random", "T", "O", "I")
    t: float = 1000.0
    law_samples: int = 4
    law_turns: int = 20
    draws: int = 0  # of other random rotations
    # descent
    descent_pairs: int = 10
    descent_widths: tuple[int, ...] = (128, 512)
    descent_members: int = 24
    descent_rate: float = 4.0
    descent_steps: int = 250
    seed: int = 0


PRESETS = {
    "quick": Settings(),
    "laptop": Settings(
        orbits=100,
        members=32,
        law_samples=10,
        draws=8,
        descent_widths=(128, 512, 1024),
        descent_members=32,
    ),
    "paper": Settings(
        orbits=1000,
        widths=(128, 512, 1024),
        members=100,
        law_samples=100,
        law_turns=100,
        descent_pairs=100,
        descent_widths=(512, 2048),
        descent_members=1000,
    ),
    # Equal shapes, so that little has to be compiled.
    "test": Settings(
        pairs=2,
        validation=2,
        rotations=2,
        orbits=2,
        turns=12,
        widths=(8,),
        members=3,
        batch_size=4,
        epochs=2,
        averaged=1,
        augmentations=("T",),
        law_samples=2,
        law_turns=12,
        draws=1,
        descent_pairs=2,
        descent_widths=(8,),
        descent_members=3,
        descent_steps=3,
    ),
}


class Data(NamedTuple):
    """Pairs of vectors, the rotations that augment them, and those under which errors are measured."""

    pairs: Splits
    rotations: Any
    turns: Any

    def ready(self) -> "Data":
        """Return the same data in the current precision: single for training, double for theory."""
        return jax.tree.map(jnp.asarray, self)

    def under(self, group: groups.FiniteGroup) -> Splits:
        """Return the pairs with a finite group of rotations acting on them."""
        actions = {"rep_x": reps.matrix(group, np.kron(np.eye(2), group.matrices)), "rep_y": reps.matrix(group)}
        return Splits(*(one._replace(**actions) for one in self.pairs))


def load(settings: Settings, data_dir: Any) -> Data:
    """Draw pairs and rotations, in double precision."""
    keys = jax.random.split(jax.random.key(settings.seed), 3)
    sizes = {"train": settings.pairs, "test": settings.validation, "ood": settings.orbits}
    with double_precision():
        pairs = cross_product(keys[0], **sizes)
        rotations, turns = (
            groups.SO3.sample(key, count)
            for key, count in zip(keys[1:], (settings.rotations, settings.turns), strict=True)
        )
        return jax.tree.map(np.asarray, Data(pairs, rotations, turns))


def compute(settings: Settings, data: Data, results: Results) -> None:
    """Compute all three parts."""
    for width in settings.widths:
        results.part(f"adam-{width}", adam, settings, data.ready(), results, width)
    with double_precision():
        for name in settings.augmentations:
            results.part(f"theory-{name}", theory, settings, data.ready(), name)
        if settings.draws:
            results.part("theory-draws", other_rotations, settings, data.ready())
    for width in settings.descent_widths:
        results.part(f"descent-{width}", descent, settings, data.ready(), results, width)
    with double_precision():
        results.part("descent-theory", descent_theory, settings, data.ready())


def adam(settings: Settings, data: Data, results: Results, width: int) -> dict[str, Any]:
    """Train by Adam. Return products of the errors of members, averaged over the last epochs."""
    train, y = augment(*data.pairs.train, elements=data.rotations), data.pairs.test.y
    few = {name: getattr(data.pairs, name).take(slice(settings.orbits)) for name in SETS}
    record: dict[str, Any] = {name: _record(samples, data.turns) for name, samples in few.items()}
    record["validation"] = data.pairs.test.x, lambda predictions: products(predictions - y[None])
    per_epoch = -(-train.size // settings.batch_size)
    run = results.train(
        f"adam-{width}",
        ensembles.mlp((width, width), 3, W_std=W_STD, b_std=B_STD),
        train,
        members=settings.members,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        optimizer=optax.adam(settings.rate),
        key=jax.random.key(settings.seed + 1),
        record=record,
        record_at=[per_epoch * (settings.epochs - i) for i in range(settings.averaged)],
    )
    return {name: values.mean(axis=0) for name, values in run.records.items()}


def theory(settings: Settings, data: Data, name: str) -> dict[str, Any]:
    """Compute the infinite ensemble on data augmented by a group, or by random rotations."""
    if name == "random":
        own, elements, train = data.pairs, data.rotations, augment(*data.pairs.train, elements=data.rotations)
    else:
        own = data.under(groups.polyhedral(name))
        elements, train = None, augment(*own.train)
    ens = _flow(train, "dense" if name == "random" else "reduced")
    found = {"order": train.order, "rmse": _rmse(ens, data, settings.t)}
    for which in SETS:
        few, same = (getattr(sets, which).take(slice(settings.orbits)) for sets in (data.pairs, own))
        found[f"own-{which}"] = _errors_of_mean(ens, same, settings.t, elements).mean()
        errors = _errors_of_mean(ens, few, settings.t, data.turns)
        found[f"all-{which}"] = errors.mean()
        found[f"all-{which}.error"] = errors.std(ddof=1) / len(errors) ** 0.5
        law = _law(ens, few.take(slice(settings.law_samples)), settings.t, data.turns[: settings.law_turns])
        found[f"law-{which}"] = predicted_parts(law)
    return found


def other_rotations(settings: Settings, data: Data) -> dict[str, Any]:
    """Compute the orbit MSE of the mean for other draws of random rotations, [draws] for each set."""
    found: dict[str, list[Any]] = {f"all-{which}": [] for which in SETS}
    for number in range(settings.draws):
        key = jax.random.fold_in(jax.random.key(settings.seed), 1 + number)
        rotations = groups.SO3.sample(key, settings.rotations)
        ens = _flow(augment(*data.pairs.train, elements=rotations), "dense")
        for which in SETS:
            few = getattr(data.pairs, which).take(slice(settings.orbits))
            found[f"all-{which}"].append(_errors_of_mean(ens, few, settings.t, data.turns).mean())
    return found


def descent(settings: Settings, data: Data, results: Results, width: int) -> dict[str, Any]:
    """Train by gradient descent on data augmented by T. Return products of errors under T and random rotations."""
    problems = _problems(settings, data)
    run = results.train(
        f"descent-{width}",
        ensembles.mlp((width, width), 3, W_std=W_STD, b_std=B_STD),
        augment(*problems["T"][0].train),
        members=settings.descent_members,
        steps=settings.descent_steps,
        optimizer=optax.sgd(settings.descent_rate),
        key=jax.random.key(settings.seed + 2),
        record={
            f"{group}-{name}": _record(getattr(sets, name), elements)
            for group, (sets, elements) in problems.items()
            for name in SETS
        },
    )
    return {name: values[-1] for name, values in run.records.items()}


def descent_theory(settings: Settings, data: Data) -> dict[str, Any]:
    """Compute the theory of `descent`."""
    problems, t = _problems(settings, data), settings.descent_steps
    train, rule = augment(*problems["T"][0].train), filters.gradient_descent(settings.descent_rate)
    ens = InfiniteEnsemble(_kernel_fn(), train, rule, reduction="mean", method="reduced")
    laws = {
        f"{group}-{name}": predicted_parts(_law(ens, getattr(sets, name), t, elements))
        for group, (sets, elements) in problems.items()
        for name in SETS
    }
    return laws | {"rmse": _rmse(ens, data, t)}


def _problems(settings: Settings, data: Data) -> dict[str, tuple[Splits, Any]]:
    """Return some of the pairs under the group T, and under some rotations of SO(3)."""
    T, few = groups.polyhedral("T"), slice(settings.descent_pairs)
    problems = {"T": (data.under(T), np.arange(T.order)), "SO(3)": (data.pairs, data.turns[: settings.law_turns])}
    return {group: (Splits(*(one.take(few) for one in sets)), g) for group, (sets, g) in problems.items()}


def _kernel_fn() -> Any:
    """Return the kernel function of the network that `ensembles.mlp` builds with finite width."""
    hidden = (stax.Dense(1, W_STD, B_STD), stax.Relu())
    return stax.serial(*hidden, *hidden, stax.Dense(3, 1.0, B_STD)).kernel_fn


def _record(samples: LabelledSet, elements: Any) -> tuple[Any, Any]:
    return with_orbit(samples.x, samples.rep_x, elements), orbit_products(samples.rep_y, elements)


def _flow(train: Any, method: Any) -> InfiniteEnsemble:
    return InfiniteEnsemble(_kernel_fn(), train, filters.gradient_flow(1.0), reduction="mean", method=method)


def _errors_of_mean(ens: InfiniteEnsemble, samples: LabelledSet, t: float, elements: Any) -> Any:
    """Return the orbit MSE of the mean prediction at each sample."""
    inputs = with_orbit(samples.x, samples.rep_x, elements)
    D = orbit_errors(samples.rep_y, elements)(ens.mean(inputs, t)[None])
    return jnp.mean(D[0] ** 2, axis=(0, 2))


def _law(ens: InfiniteEnsemble, samples: LabelledSet, t: float, elements: Any) -> bounds.OrbitDeviation:
    return bounds.orbit_deviation(ens, samples.x, t, rep_x=samples.rep_x, rep_y=samples.rep_y, elements=elements)


def _rmse(ens: InfiniteEnsemble, data: Data, t: float) -> Any:
    """Return the root mean square error of the mean prediction on the validation set."""
    return jnp.sqrt(jnp.mean((ens.mean(data.pairs.test.x, t) - data.pairs.test.y) ** 2))


CROSS_PRODUCT = Experiment("cross_product", __doc__, PRESETS, load, compute, table, figures)

if __name__ == "__main__":
    raise SystemExit(CROSS_PRODUCT.main())
