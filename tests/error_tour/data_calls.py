"""Wrong calls of `datasets`, `planning`, `planned_runs` and `plotting`, and the argument that the answer must name."""

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np

from ntk_equiv import datasets, groups, metrics, planned_runs, planning, plotting, reps

mpl.use("Agg")
KEY = jax.random.key(0)
NAN = float("nan")
C4 = groups.cyclic(4)
X, Y = np.arange(24.0).reshape(6, 4), np.arange(6.0)
LABELLED = datasets.LabelledSet(jnp.asarray(X), jnp.asarray(Y), reps.regular(C4), reps.trivial(C4))
FIGURE, (AXES,) = plotting.panels()
DIAGRAM = metrics.Reliability(np.ones(2), np.ones(2), np.ones(2), np.ones(2))


def plan(x=X, y=Y, **settings):
    """`planning.plan` with a mistake in one place."""
    return planning.plan(x, y, **{"group": "C4", "action": "regular", **settings})


PLAN = plan(arch="mlp:relu:1", times=[1], samples=500)


def train(x=X, y=Y, plan=PLAN, **settings):
    """`planned_runs.train` with a mistake in one place."""
    return planned_runs.train(plan, x, y, **settings)


CALLS = {
    # data sets
    "datasets.ising(0)": "key",
    "datasets.ising(KEY, train=0)": "train",
    "datasets.ising(KEY, side=0)": "side",
    "datasets.ising(KEY, periodic='yes')": "periodic",
    "datasets.ising(KEY, ood_variance=-1.0)": "ood_variance",
    "datasets.ising(KEY, group='C4')": "group",
    "datasets.ising(KEY, group=groups.cyclic(3))": "group",
    "datasets.ising_std(0)": "side",
    "datasets.ising_std(5, spin_variance=-1.0)": "spin_variance",
    "datasets.local_energies(np.ones(5))": "spins",
    "datasets.local_energies(None)": "spins",
    "datasets.total_energy(3.0)": "local",
    "datasets.cross_product(1)": "key",
    "datasets.cross_product(KEY, group='SO3')": "group",
    "datasets.cross_product(KEY, group=C4)": "group",
    "datasets.noise_images(0, 3)": "key",
    "datasets.noise_images(KEY, 0)": "n",
    "datasets.noise_images(KEY, 2, shape=(28, 28))": "shape",
    "datasets.noise_images(KEY, 2, dtype=int)": "dtype",
    "datasets.mnist('validation')": "part",
    "datasets.mnist('train', 3)": "data_dir",
    "datasets.mnist('train', 'no such folder')": "data_dir",
    "datasets.fashion_mnist('all')": "part",
    "datasets.cifar10('all')": "part",
    "datasets.cifar10('test', size=0)": "size",
    "datasets.cifar10('test', colour='yes')": "colour",
    "datasets.pathmnist('all')": "part",
    "datasets.nct_crc_he('no such folder', key=KEY)": "data_dir",
    "datasets.nct_crc_he(key=0)": "key",
    "datasets.image_folder('no such folder')": "no such folder",
    "datasets.image_folder(3)": "path",
    "datasets.image_files(3)": "path",
    "datasets.image_folder('.', size=-1)": "size",
    "datasets.idx_bytes('array')": "array",
    "datasets.read_idx('no such file')": "path",
    "datasets.npz_arrays('no such file.npz', ('x',))": "no such file.npz",
    "LABELLED.take([9])": "indices",
    "LABELLED.split(0, 2)": "key",
    "LABELLED.split(KEY, 9)": "count",
    # planning
    "plan(x=None)": "x",
    "plan(x=X[0])": "x",
    "plan(x=X * NAN)": "x",
    "plan(x=X + 1j)": "x",
    "plan(y=Y[:3])": "y",
    "plan(y=Y * NAN)": "y",
    "plan(group=None)": "group",
    "plan(group=groups.SO2)": "group",
    "plan(action='spin')": "action",
    "plan(action='rot90')": "action",
    "plan(group='C3')": "action",
    "plan(action=reps.regular(groups.cyclic(3)))": "action",
    "plan(label_action='spin')": "label_action",
    "plan(arch='transformer')": "arch",
    "plan(arch='cnn:relu:2')": "arch",
    "plan(arch=3)": "arch",
    "plan(x_test=X[:, :2])": "x_test",
    "plan(y_test=Y)": "x_test",
    "plan(x_test=X, y_test=Y[:2])": "y_test",
    "plan(labels='ordinal')": "labels",
    "plan(w_std=-1.0)": "w_std",
    "plan(b_std=NAN)": "b_std",
    "plan(times='soon')": "times",
    "plan(times=[[1, 2]])": "times",
    "plan(times=[-1.0])": "times",
    "plan(at=-1.0)": "at",
    "plan(learning_rate=0.0)": "learning_rate",
    "plan(reduction='max')": "reduction",
    "plan(members=0)": "members",
    "plan(width=0)": "width",
    "plan(width=8, arch=planning.named_network('mlp:relu:1', (4,)))": "width",
    "planning.named_network('mlp:relu:1', (4,), width=0)": "width",
    "planning.named_network('mlp:relu:1', (4,), outputs=0)": "outputs",
    "plan(delta=0.0)": "delta",
    "plan(epsilon=1.5)": "epsilon",
    "plan(holdout=1.0)": "holdout",
    "plan(max_points=0)": "max_points",
    "plan(max_test_points='all')": "max_test_points",
    "plan(minutes='long')": "minutes",
    "plan(class_names=['a'])": "class_names",
    "plan(samples=20)": "samples",
    "plan(seed=-1)": "seed",
    "plan(dtype='float16')": "dtype",
    "plan(progress='yes')": "progress",
    "planning.named_group('Z4')": "group",
    "planning.named_action('spin', C4, (4,))": "action",
    "planning.named_network('mlp', (4,))": "arch",
    "planning.named_times('soon')": "times",
    "planning.checked_folder(3)": "folder",
    "planning.Plan.load('no such file')": "path",
    # planned runs
    "planned_runs.train('no such plan', X, Y)": "plan",
    "planned_runs.train(3, X, Y)": "plan",
    "train(x=X + 1)": "data",
    "train(y=Y + 1)": "data",
    "train(x=X[:, :3])": "data",
    "train(x=X[:4], y=Y[:4])": "data",
    "train(y=np.arange(6))": "data",
    "train(x=X * NAN)": "x",
    "train(x_test=X)": "data",
    "train(network='rnn')": "network",
    "train(network='cnn')": "network",
    "train(network='no_such_module:build')": "network",
    "train(network='json:no_such_function')": "network",
    "train(network='json:dumps')": "network",
    "train(network=3)": "network",
    "train(members=0)": "members",
    "train(epochs=2.5)": "epochs",
    "train(batch_size=0)": "batch_size",
    "train(learning_rate=-1.0)": "learning_rate",
    "train(validation=1.0)": "validation",
    "train(patience=0)": "patience",
    "train(max_test_points=0)": "max_test_points",
    "train(seed=-1)": "seed",
    "train(folder=3)": "folder",
    "train(folder='ntk_equiv')": "folder",
    "train(progress='yes')": "progress",
    "planned_runs.named_module('rnn', (4,), 1)": "network",
    "planned_runs.named_module('mlp', (4,), 0)": "outputs",
    "planned_runs.report('no such folder')": "folder",
    "planned_runs.report('ntk_equiv')": "folder",
    "planned_runs.PlannedRun.load('ntk_equiv')": "folder",
    # plotting
    "plotting.panels(0)": "columns",
    "plotting.panels(width=0.0)": "width",
    "plotting.training_curves([0.5, 0.4])": "history",
    "plotting.orbit_curve(None, [1.0], [1.0], np.ones((1, 2)))": "ax",
    "plotting.orbit_curve(AXES, [1.0, 2.0], [1.0], np.ones((2, 2)))": "members",
    "plotting.measured(AXES, [1.0, 2.0], [1.0])": "values",
    "plotting.measured(AXES, [1.0], [1.0], [1.0, 2.0])": "errors",
    "plotting.measured(AXES, [1.0], [1.0], number='a')": "number",
    "plotting.predicted(AXES, [1.0, 2.0], [1.0])": "values",
    "plotting.uncertain(AXES, [1.0, 2.0], [1.0], [1.0])": "mean",
    "plotting.uncertain(AXES, [1.0], [1.0], [-1.0])": "std",
    "plotting.predicted(AXES, [1.0], [1.0], errors=[1.0, 2.0])": "errors",
    "plotting.reliability(AXES, None)": "diagram",
    "plotting.reliability(None, DIAGRAM)": "ax",
    "plotting.reliability(AXES, DIAGRAM, theory='yes')": "theory",
    "plotting.save('figure', 'path')": "fig",
    "plotting.save(FIGURE, 3)": "path",
}
