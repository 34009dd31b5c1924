"""Your own images: from a folder of pictures to a report.

The folder holds one folder of pictures for each class. Then:

1. Pictures are read, and split at random: 60 % for training, 20 % for validation, 20 % for testing.
2. Training pictures are augmented by quarter turns, or with --flips by flips too.
3. An ensemble of convolutional networks with batch normalisation is trained. Each member stops when its own loss on
   the validation set has not improved for some epochs, and keeps its best parameters.
4. On the test set: accuracy, likelihood, calibration and invariance, each with its standard error over pictures.

    python examples/own_images.py pictures --results results/own_images

The preset "test" draws its own pictures. Change the network, the group or the optimizer below, and it is your script.
"""

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from PIL import Image

from ntk_equiv import augment, datasets, ensembles, groups, metrics, plotting


class Settings(NamedTuple):
    """Sizes: channels of convolutions, members, epochs at most, epochs of patience, and bins of the figure."""

    channels: tuple[int, ...]
    members: int
    epochs: int
    patience: int
    batch_size: int
    bins: int


PRESETS = {
    "quick": Settings(channels=(16, 32, 64), members=8, epochs=40, patience=6, batch_size=32, bins=5),
    "test": Settings(channels=(4,), members=2, epochs=2, patience=1, batch_size=8, bins=3),
}


class Net(nn.Module):
    """Convolutions with batch normalisation, two of them followed by a pool, and a mean over all positions."""

    classes: int
    channels: tuple[int, ...]

    @nn.compact
    def __call__(self, x, train):
        """Return logits; `train` says whether to normalise by the batch or by the statistics of training."""
        for number, channels in enumerate(self.channels):
            x = nn.Conv(channels, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
            if number < 2:  # 28 -> 14 -> 7: windows that cover the image treat all quarter turns alike
                x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(self.classes)(x.mean((1, 2)))


def read_and_split(folder, group, key):
    """Return training, validation and test set, whose channels have mean 0 and variance 1 on the first."""
    data = datasets.image_folder(folder, size=28, group=group, dtype="float32")
    first, second = jax.random.split(key)
    train, rest = data.split(first, data.n * 3 // 5)
    validation, test = rest.split(second, rest.n // 2)
    mean, std = train.x.mean((0, 1, 2), keepdims=True), train.x.std((0, 1, 2), keepdims=True)
    return [part._replace(x=(part.x - mean) / std) for part in (train, validation, test)]


def train_ensemble(settings, train, validation, classes, key, folder):
    """Train until all members have stopped, or to the last epoch; the same command continues after an interruption."""
    data, module = augment(*train), Net(classes, settings.channels)
    falling = optax.exponential_decay(3e-3, transition_steps=10, decay_rate=0.3)  # in epochs
    rate = ensembles.by_epoch(falling, module, data, batch_size=settings.batch_size)
    optimizer = optax.inject_hyperparams(optax.adamw)(learning_rate=rate)  # so that the history knows the rate
    return ensembles.train(
        module,
        data,
        members=settings.members,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        loss="cross_entropy",
        label_smoothing=0.05,
        optimizer=optimizer,
        validation=validation,
        early_stopping=ensembles.EarlyStopping(settings.patience),
        key=key,
        checkpoint=folder / "checkpoints",
        resume=True,
        progress=True,
    )


def report(settings, run, validation, test):
    """Return the report as text, and the reliability of the ensemble before and after temperature scaling."""
    order, classes = test.rep_x.group.order, run.predict(test.x[:1]).shape[-1]
    logits = run.predict(test.x)
    try:
        temperature = metrics.fit_temperature(run.predict(validation.x), validation.y)
    except ValueError:  # all validation pictures are classified right, or nothing was learnt
        temperature = 1.0
    scaled = np.log(metrics.ensemble_probabilities(logits, temperature=temperature))[None]
    lines = [f"{'':24}{'ensemble':>18}{'median member':>16}{'worst':>9}{'best':>9}"]
    for name, metric, better in (
        ("accuracy", metrics.accuracy, max),
        ("negative log-likelihood", metrics.negative_log_likelihood, min),
        ("Brier score", metrics.brier_score, min),
        ("calibration error", metrics.calibration_error, min),
    ):
        found, after = metric(logits, test.y), metric(scaled, test.y)
        worst = (min if better is max else max)(found.members)
        row = f"{np.median(found.members):>16.4f}{worst:>9.4f}{better(found.members):>9.4f}"
        lines += [f"{name:24}{shown(*found.probabilities):>18}{row}"]
        if name != "accuracy":
            lines += [f"{f'  at T = {temperature:.2f}':24}{shown(*after.probabilities):>18}"]
    moved = test.rep_x.orbit(test.x).reshape(-1, *test.x.shape[1:])
    p = jax.nn.softmax(run.predict(moved)).reshape(run.members, order, test.n, classes)
    osp = metrics.orbit_same_prediction(p)
    row = f"{np.median(osp.members):>16.4f}{np.min(osp.members):>9.4f}{np.max(osp.members):>9.4f}"
    lines += [f"{f'same class, of {order} images':24}{shown(osp.ensemble, osp.ensemble_error):>18}{row}"]
    curves = [metrics.reliability(given, test.y, bins=settings.bins) for given in (logits, scaled)]
    return "\n".join(lines), curves


def shown(value, error):
    return f"{float(value):.4f} ± {float(error):.4f}"


def reliability_figure(curves):
    """Draw accuracy against confidence, with standard errors over pictures."""
    with plotting.style():
        fig, (ax,) = plotting.panels()
        plotting.predicted(ax, [0, 1], [0, 1], label="calibrated")
        for number, (label, found) in enumerate(zip(("as trained", "temperature fitted"), curves, strict=True)):
            errors = np.nan_to_num(found.error)
            plotting.measured(ax, found.confidence, found.accuracy, errors, label=label, number=number, joined=True)
        ax.set(xlabel="confidence of the ensemble", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.05))
        ax.legend(loc="upper left")
    return fig


def draw_pictures(folder, side=28, count=20):
    """Draw two classes of pictures for the preset "test": a bright bar, or a bright disc, on noise."""
    rng = np.random.default_rng(0)
    down, right = np.indices((side, side)) - side / 2
    for name, shape in (("bars", abs(down) < 3), ("discs", down**2 + right**2 < 80)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 128, (side, side, 3)) + 127 * np.rot90(shape, rng.integers(4))[..., None]
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="one folder of pictures for each class")
    parser.add_argument("--preset", choices=list(PRESETS), default="quick", help="sizes (default: quick)")
    parser.add_argument("--flips", action="store_true", help="augment by flips as well as by quarter turns")
    parser.add_argument("--results", type=Path, default=Path("results/own_images"), help="where to write the report")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split and of all members (default: 0)")
    asked = parser.parse_args()
    ensembles.use_cores()
    with tempfile.TemporaryDirectory() as drawn:
        if asked.folder is None:
            if asked.preset != "test":
                parser.error("name the folder of your pictures")
            asked.folder = Path(drawn) / "pictures"
            draw_pictures(asked.folder)
        group = groups.dihedral(4) if asked.flips else groups.cyclic(4)
        splitting, members = jax.random.split(jax.random.key(asked.seed))
        train, validation, test = read_and_split(asked.folder, group, splitting)
    classes = int(jnp.max(jnp.concatenate([train.y, validation.y, test.y]))) + 1
    print(f"{classes} classes, {train.n} + {validation.n} + {test.n} pictures for training, validation and testing")
    settings = PRESETS[asked.preset]
    run = train_ensemble(settings, train, validation, classes, members, asked.results)
    print(f"{run}; epochs of their parameters: {(run.member_steps / run.history.steps_per_epoch).tolist()}\n")
    print(run.history.table(rows=8), end="\n\n")
    text, curves = report(settings, run, validation, test)
    print(text)
    (asked.results / "report.txt").write_text(f"{text}\n")
    figures = {"training": plotting.training_curves(run.history), "reliability": reliability_figure(curves)}
    print(*(path for name, fig in figures.items() for path in plotting.save(fig, asked.results / name)), sep="\n")


if __name__ == "__main__":
    main()
