"""Is a network of a given width wide enough for what a plan says about it? An estimate from a few random networks.

The plan is about infinite width. Here some networks of the given width are followed to the time of the plan in a few
long steps (`empirical.laziness`), which predicts by how much the mean is shifted. Wide enough is a network whose shift
is below two standard errors s/√M of the mean of M members. Kernels of all outputs at once are needed, so that only some
of the training samples are taken, with a theory of their own.
"""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import empirical
from ntk_equiv.infinite import InfiniteEnsemble
from ntk_equiv.orbits import augment
from ntk_equiv.planning._names import named_network
from ntk_equiv.planning._plan import Width
from ntk_equiv.planning._problem import Notes, Problem, Settings

if TYPE_CHECKING:
    from ntk_equiv.filters import Filter
    from ntk_equiv.reps import Representation

# So that it stays cheap: the largest side of the kernel of all outputs, and numbers of networks, test samples, times.
LARGEST_SIDE, NETWORKS, TEST_SAMPLES, TIMES = 128, 8, 16, 4
# What half as many steps change is part of the range that decides the answer.
STEPS_PER_OCTAVE = 3
STANDARD_ERRORS = 2


def answer_width(
    settings: Settings,
    problem: Problem,
    reps: "tuple[Representation, Representation]",
    order: int,
    flow: "Filter",
    times: np.ndarray,
    t: float,
) -> tuple[Width, Notes]:
    """Return what the width does up to time t, or up to the last finite time, and notes on how far to trust it.

    Args:
        settings: what is asked; the network has a name.
        problem: the data.
        reps: how the group acts on samples and on labels.
        order: of the group.
        flow: how the network is trained.
        times: the training times of the plan.
        t: the time for which members and invariance are given.
    """
    assert settings.width is not None, "it is asked for"
    finite = times[np.isfinite(times) & (times > 0)]
    last = t if np.isfinite(t) and t > 0 else float(finite.max()) if finite.size else 1.0
    looked_at = last * 4.0 ** np.arange(1 - TIMES, 1)
    outputs = problem.channels
    count = max(1, min(len(problem.x), LARGEST_SIDE // (order * outputs)))
    # Spread over all, because data may come sorted by class.
    chosen = np.linspace(0, len(problem.x) - 1, count).round().astype(int)
    train = augment(problem.x[chosen], problem.y[chosen], *reps)
    scale = {"w_std": settings.w_std, "b_std": settings.b_std}
    shape = problem.x.shape[1:]
    network = named_network(settings.arch, shape, width=settings.width, outputs=outputs, **scale)
    theory = InfiniteEnsemble(network.kernel_fn, train, flow, reduction=settings.reduction)
    keys = jax.random.split(jax.random.key(settings.seed), NETWORKS)
    params = jax.vmap(lambda key: network.init_fn(key, (1, *shape))[1])(keys)
    test = jnp.asarray(problem.x_test[:TEST_SAMPLES])
    found = empirical.laziness(
        network,
        params,
        train,
        test,
        looked_at,
        flow,
        reduction=settings.reduction,
        theory=theory,
        steps_per_octave=STEPS_PER_OCTAVE,
    )
    until = found.holds_until(settings.members, standard_errors=STANDARD_ERRORS)
    chance = found.spreads / np.sqrt(settings.members)
    needed = empirical.required_width({settings.width: found}, max(STANDARD_ERRORS * float(chance[-1]), 1e-300))
    answer = Width(
        width=settings.width,
        networks=NETWORKS,
        samples=count,
        times=looked_at,
        change=found.average("kernel_change").value,
        shift=found.sizes,
        chance=chance,
        until=np.array(until[:3]),
        needed=np.array(needed[:3], float),
        power=needed.exponent,
    )
    wrong = dict.fromkeys((*until.doubts, *needed.doubts))
    return answer, [f"The estimate of what a width of {settings.width} does is doubtful: {doubt}." for doubt in wrong]
