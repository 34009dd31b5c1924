"""Wrong calls of `ensembles`, the trainer, and the argument that the answer must name."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from ntk_equiv import InfiniteEnsemble, augment, ensembles, filters, groups, reps, stax

KEY = jax.random.key(0)
X, Y = jnp.array([[1.0, 2.0, 4.0], [0.0, 1.0, 5.0]]), jnp.array([1.0, -1.0])
REGULAR = reps.regular(groups.cyclic(3))
DATA, AUGMENTED = (X, Y), augment(X, Y, REGULAR)
CLASSES = (X, jnp.array([0, 1]))
STOPPING = ensembles.EarlyStopping(patience=2)
NET = stax.serial(stax.Dense(4), stax.Relu(), stax.Dense(1))
TWO = stax.serial(stax.Dense(4), stax.Relu(), stax.Dense(2))
SETTINGS = {"members": 2, "steps": 1, "optimizer": optax.sgd(0.1), "key": KEY}
RUN = ensembles.untrained(NET, X, members=2, key=KEY)
NOISY = nn.Sequential([nn.Dense(4), nn.Dropout(0.5, deterministic=False), nn.Dense(1)])
ENS = InfiniteEnsemble(NET.kernel_fn, DATA, filters.gradient_descent(0.1), reduction="mean")


def train(module=NET, data=DATA, **settings):
    """`ensembles.train` with a mistake in one place."""
    return ensembles.train(module, data, **{**SETTINGS, **settings})


CALLS = {
    "train('mlp')": "module",
    "train(DATA, NET)": "train",
    "train(NET.kernel_fn)": "module",
    "train(stax.serial(stax.Dense(4), stax.Dense(3)))": "module",
    "train(NOISY)": "module",
    "train(data=X)": "train",
    "train(data=(None, Y))": "x",
    "train(data=(X, Y[:1]))": "y",
    "train(data=(X[:0], Y[:0]))": "train",
    "train(data=(X[:, :0], Y))": "input_shape",
    "train(data=(X, jnp.array([0, 1])))": "y",
    "train(data=(X * float('nan'), Y))": "x",
    "train(data=(X, Y * float('nan')))": "y",
    "train(members=0)": "members",
    "train(steps=None)": "steps, epochs",
    "train(steps=1, epochs=1)": "steps, epochs",
    "train(steps=0)": "steps",
    "train(steps=None, epochs=0)": "epochs",
    "train(optimizer=0.1)": "optimizer",
    "train(optimizer=optax.sgd)": "optimizer",
    "train(optimizer=optax.lookahead(optax.sgd(0.1), 5, 0.5))": "optimizer",
    "train(optimizer=optax.masked(optax.sgd(0.1), {'weights': True}))": "optimizer",
    "train(key=0)": "key",
    "train(key=jax.random.split(KEY, 2))": "key",
    "train(loss='huber')": "loss",
    "train(loss='cross_entropy')": "y",
    "train(loss=lambda f, y: 0.0)": "loss",
    "train(TWO, (X, jnp.array([-1, 1])), loss='cross_entropy')": "y",
    "train(TWO, (X, jnp.array([1, 2])), loss='cross_entropy')": "y",
    "train(TWO, (X, jnp.array([[-1.0, 1.0], [1.0, -1.0]])), loss='cross_entropy')": "y",
    "train(data=(X, 1e30 * Y.astype('float32')))": "y",
    "train(reduction='max')": "reduction",
    "train(TWO, (X, jnp.array([[0.5, 0.6], [1.0, 0.0]])), loss='cross_entropy')": "y",
    "train(TWO, CLASSES, loss='cross_entropy', class_weights=[1.0])": "class_weights",
    "train(TWO, CLASSES, loss='cross_entropy', class_weights=[1.0, -1.0])": "class_weights",
    "train(TWO, CLASSES, loss='cross_entropy', class_weights='even')": "class_weights",
    "train(TWO, CLASSES, loss='cross_entropy', class_weights=['a', 'b'])": "class_weights",
    "train(TWO, CLASSES, loss='cross_entropy', label_smoothing=1.0)": "label_smoothing",
    "train(TWO, CLASSES, loss='cross_entropy', label_smoothing='much')": "label_smoothing",
    "train(label_smoothing=0.1)": "label_smoothing",
    "train(class_weights=[1.0])": "class_weights",
    "train(validation=X)": "validation",
    "train(validation=(X[:, :2], Y))": "validation",
    "train(validation=(X.astype(int), Y))": "validation",
    "train(validation=(X, Y[:1]))": "validation",
    "train(validation=(X, Y[:, None]))": "validation",
    "train(validation=(X, Y.astype(int)))": "validation",
    "train(TWO, CLASSES, loss='cross_entropy', validation=(X, jnp.array([1, 2])))": "validation",
    "train(validation=DATA, validate_every=0)": "validate_every",
    "train(validate_every=1)": "validation",
    "train(early_stopping=STOPPING)": "validation",
    "train(validation=DATA, early_stopping=3)": "early_stopping",
    "train(validation=DATA, metrics=[max])": "metrics",
    "train(validation=DATA, metrics={'largest': 'max'})": "metrics",
    "train(validation=DATA, metrics={'loss': max})": "metrics",
    "train(validation=DATA, metrics={'all': lambda p, y: p})": "metrics",
    "train(callbacks='print')": "callbacks",
    "train(callbacks=[1])": "callbacks",
    "train(validation=DATA, callbacks=lambda event: 'stop')": "callbacks",
    "ensembles.EarlyStopping(0)": "patience",
    "ensembles.EarlyStopping(2, min_delta=-1.0)": "min_delta",
    "ensembles.EarlyStopping(2, restore_best='yes')": "restore_best",
    "ensembles.by_epoch(0.1, NET, DATA)": "schedule",
    "ensembles.by_epoch(optax.constant_schedule(0.1), NET, X)": "train",
    "ensembles.by_epoch(optax.constant_schedule(0.1), DATA, NET)": "module",
    "ensembles.History().table(rows=0)": "rows",
    "train(batch_size=0)": "batch_size",
    "train(batch_size=100)": "batch_size",
    "train(augmentation='half')": "augmentation",
    "train(augmentation='random')": "train",
    "train(record=X)": "record",
    "train(record={'test': 'x'})": "record",
    "train(record={'test': X[:, :2]})": "record",
    "train(record={'test': X}, record_at=5)": "record_at",
    "train(record={'test': X}, record_at=[9])": "record_at",
    "train(layout='fast')": "layout",
    "train(chunk=0)": "chunk",
    "train(layout='map', chunk=2)": "chunk",
    "train(devices='cpu')": "devices",
    "train(progress='bar')": "progress",
    "train(resume=True)": "checkpoint",
    "train(resume='yes')": "resume",
    "train(checkpoint=3)": "checkpoint",
    "train(checkpoint='unused', checkpoint_every=0)": "checkpoint_every",
    "ensembles.untrained(NET, None, members=2, key=KEY)": "x",
    "ensembles.untrained(NET, X, members=2, key=1)": "key",
    "ensembles.expected_layout(NET, X, members=0)": "members",
    "ensembles.expected_layout(NET, 'x', members=2)": "x",
    "ensembles.to_flax(stax.Relu)": "net",
    "ensembles.as_pair('net')": "module",
    "ensembles.mlp(64, 1)": "widths",
    "ensembles.mlp((64,), 0)": "outputs",
    "ensembles.mlp((64,), 1, W_std='a')": "W_std",
    "ensembles.mlp((64,), 1, activation='relu')": "activation",
    "ensembles.fashion_cnn(0)": "outputs",
    "ensembles.histology_cnn(9, pools=7)": "pools",
    "ensembles.log_steps(0, 3)": "steps",
    "ensembles.log_steps(10, 0)": "count",
    "ensembles.use_cores(0)": "count",
    "ensembles.bootstrapped('p', sizes=[1], draws=2, key=KEY)": "predictions",
    "ensembles.bootstrapped(X, sizes=1, draws=2, key=KEY)": "sizes",
    "ensembles.bootstrapped(X, sizes=[1], draws=0, key=KEY)": "draws",
    "ensembles.bootstrapped(X[:0], sizes=[1], draws=2, key=KEY)": "predictions",
    # what was trained
    "RUN.predict(X[:, :2])": "x",
    "RUN.predict('x')": "x",
    "RUN.predict(X[0])": "x",
    "RUN.predict([*X])": "x",
    "RUN.predict(X.astype('uint8'))": "x",
    "RUN.bootstrap(X[0], sizes=[1], draws=2, key=KEY)": "x",
    "RUN.predict(X, batch_size=0)": "batch_size",
    "RUN.subset([5])": "members",
    "RUN.kernel_fn(7)": "member",
    "RUN.save(3)": "folder",
    "ensembles.Run.load('no such folder', NET)": "folder",
    "ensembles.compare_with_theory(ENS, RUN, X)": "ens",
    "ensembles.compare_with_theory(None, ENS, X)": "run",
    "ensembles.compare_with_theory({'a': RUN}, ENS, X)": "run",
    "ensembles.compare_with_theory(RUN, ENS, X, 'end')": "t",
    "ensembles.compare_with_theory(RUN, ENS, 'x')": "x",
}
