"""How fast is a drawn ensemble trained with the cross-entropy, against neural-tangents called once per member?

64 members, C4 × 256 samples in 10 classes, two hidden ReLU layers, float64, gradient flow. The peer is
`predict.gradient_descent` on the kernels of the augmented set, with the initial functions that were drawn here. It is
called for 4 of the 64 members, and its time multiplied by 16; it integrates to its own fixed tolerance of 1e-8, we to
our default of 1e-4. The time of both begins with given kernels and initial functions.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from bench_ensemble import FEATURES, network, rotations
from measuring import NEURAL_TANGENTS, Found, relative_difference, report, time_in_turn

from ntk_equiv import augment, gram, interop, stax
from ntk_equiv.infinite import SampledEnsemble

nt = interop.neural_tangents()
MEMBERS, PART, SAMPLES, CLASSES, TESTS, TIME, SMOOTHING = 64, 4, 256, 10, 50, 300.0, 0.1


def problem():
    """Return the drawn ensemble, test samples, and what the peer needs."""
    rng = np.random.default_rng(0)
    x, x_test = (jnp.asarray(rng.normal(size=(count, FEATURES))) for count in (SAMPLES, TESTS))
    planes = x.reshape(SAMPLES, -1, 2)
    classes = jnp.argmax(jnp.sum(planes[:, :CLASSES] ** 2, axis=2), axis=1)
    kernel_fn, train = network(stax)[2], augment(x, classes, rotations(4))
    ens = SampledEnsemble(
        kernel_fn,
        train,
        "cross_entropy",
        key=jax.random.key(0),
        members=MEMBERS,
        outputs=CLASSES,
        label_smoothing=SMOOTHING,
        reduction="mean",
    )
    both = jnp.concatenate([train.x, x_test])
    return ens, train, x_test, gram(kernel_fn, both, train.x, "ntk"), np.asarray(ens.outputs(both, 0.0))


def peer(train, theta, start):
    """Let neural-tangents follow some members, one by one."""
    n = train.size
    y = (1 - SMOOTHING) * jax.nn.one_hot(train.y, CLASSES) + SMOOTHING / CLASSES

    def loss(f, y):
        return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(f), axis=-1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predict = nt.predict.gradient_descent(loss, theta[:n], y)
        return jnp.stack([predict(TIME, one[:n], one[n:], theta[n:])[1] for one in start])


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    ens, train, x_test, theta, start = problem()

    def follow_drawn():
        """Train all members from given initial functions, which are told apart by the number of samples."""
        initial = {
            count: jnp.asarray(values)
            for count, values in zip((train.size, TESTS), np.split(start, [train.size], axis=1), strict=True)
        }
        return ens.trajectory(lambda x: initial[len(x)], x_test, TIME)

    first = jnp.asarray(start[:PART])
    difference = relative_difference(follow_drawn()[:PART], peer(train, theta, first))
    assert difference < 1e-3, f"neural-tangents answers differently, by {difference:.3g}"
    seconds = time_in_turn({"ours": follow_drawn, NEURAL_TANGENTS: lambda: peer(train, theta, first)}, patience=30)
    theirs = {NEURAL_TANGENTS: seconds[NEURAL_TANGENTS] * MEMBERS / PART}
    report(
        f"cross-entropy, {MEMBERS} members, C4 × {SAMPLES}, {CLASSES} classes",
        target=10,
        peer=NEURAL_TANGENTS,
        found=Found(seconds["ours"], theirs, difference),
    )
