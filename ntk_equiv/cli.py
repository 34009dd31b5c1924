"""The command line: `ntk-equiv plan`, `train`, `report` and `info`.

Here arguments become calls of `planning`, `planned_runs` and `ensembles`. They are imported only when they are needed,
so that help comes at once. Exit codes are those a shell expects: 0 for success, 2 for what the user has to put
right, 1 for any other error, 130 after an interruption.
"""

import argparse
import contextlib
import dataclasses
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130
_AsWritten = argparse.RawDescriptionHelpFormatter

ABOUT = """\
Deep ensembles for data with a symmetry: plan one by theory, train it, and compare the two.

examples:
  ntk-equiv plan slides/ --size 28 --group C4 --action rot90    what to expect, before anything is trained
  ntk-equiv train slides-plan                                   train the ensemble of this plan
  ntk-equiv report slides-run                                   plan and measurement on one page
  ntk-equiv plan --help                                         the kinds of data, groups, actions and networks

exit codes: 0 for success, 2 for what you have to put right, 1 for any other error, 130 if interrupted
"""
ABOUT_PLAN = """\
Plan an ensemble for your data, by theory: how many members it needs, how long to train them, how large an error
remains, how good class probabilities will be, and on which inputs members will differ. Nothing is trained.

The data are a folder that holds one folder of images for each class, some of which are held out for testing; or an npz
file, as `np.savez("data.npz", x=x, y=y)` writes it, with the arrays
  x        training samples [n, ...]: vectors [n, d], images [n, H, W, channels] or [n, H, W]
  y        labels: whole numbers or text for classes [n], floats for regression [n] or [n, channels]
  x_test   test samples [m, ...] (if missing, some of x are held out)
  y_test   their labels (if missing, nothing is said about errors on test samples)
  class_names   names of the classes 0, 1, … (if missing, classes are called by their numbers)
Other arrays are ignored.

groups:   C4, D4, S3, A4, T, O, I, V4, Q8, SO2:8, O2:4, SO3:D3, and products such as C2xC4
actions:  rot90, rotate (interpolates), translations   on images;  rot90+matrix turns their channels as well
          matrix, permutation, regular, sign, trivial  on the last axis;  nodes  on the first of [nodes, features]
networks: mlp:relu:2, cnn:relu:2, cnn:relu:2:gap; activations relu, erf, gelu, leaky, abs, sin
times:    numbers, inf, log:FIRST:LAST:COUNT, or auto

The cost of a pair of samples is measured first. If all samples would take longer than --minutes, fewer are used, and
the report says so.
"""
EXAMPLES_PLAN = """\
examples:
  ntk-equiv plan images.npz --group C4 --action rot90 --arch cnn:relu:2
  ntk-equiv plan molecules.npz --group O --action matrix --label-action matrix --delta 0.1 --epsilon 0.05
  ntk-equiv plan data.npz --group C8 --action matrix --times log:1:1e5:20 inf --members 100 --out results
  ntk-equiv plan images.npz --group D4 --action rot90 --arch cnn:relu:2:gap --minutes 60
  ntk-equiv plan slides/ --size 28 --group D4 --action rot90
"""
ABOUT_TRAIN = """\
Train the ensemble that was planned, on the data of the plan, and store it with what it predicts.

Group, actions, members and which samples are held out are those of the plan. Members are trained by Adam on all
augmented samples, in batches, and each stops when its own loss on validation samples no longer improves. After an
interruption the same command continues where it stopped.

networks: cnn     three convolutions with batch normalisation, for images
          mlp     two hidden layers of 256
          auto    cnn for images, otherwise mlp
          module:factory   one of your own: `factory(outputs)` in a file module.py in the current folder returns a
                           Linen module, an NNX factory rngs -> module, or a pair (init, apply)

examples:
  ntk-equiv train slides-plan
  ntk-equiv train slides-plan --network my_network:build --epochs 100 --members 20 --out results/slides
"""
ABOUT_REPORT = """\
Write a report: one HTML page with the plan beside the ensemble that `ntk-equiv train` trained. It shows invariance,
errors, calibration, the worst images, training curves, what holds by theory and what is only measured.

examples:
  ntk-equiv report slides-run
"""
ABOUT_INFO = """\
Print versions and devices, and how the members of an ensemble of perceptrons would be laid out over these devices.

examples:
  ntk-equiv info
  ntk-equiv info --members 1000 --width 2048 --layers 3 --features 784 --batch 256
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that these arguments ask for, and return the exit code.

    Example:
        >>> from ntk_equiv.cli import main
        >>> main(["plan", "missing.npz", "--group", "C4", "--action", "rot90"])
        2
    """
    try:
        asked = _build_parser().parse_args(arguments)
        asked.command = shlex.join(["ntk-equiv", *(sys.argv[1:] if arguments is None else arguments)])
    except SystemExit as stop:  # argparse has said what is wrong, or printed the help
        return int(stop.code or 0)
    try:
        asked.run(asked)
    except KeyboardInterrupt:
        again = " The same command continues where it stopped." if asked.run is _run_train else ""
        print(f"\nntk-equiv: interrupted.{again}", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if asked.traceback:
            traceback.print_exc()
        print(f"ntk-equiv: {_explain(error, asked)}", file=sys.stderr)
        return BAD_USAGE if hasattr(error, "argument") else FAILED
    return 0


def _run_plan(asked: argparse.Namespace) -> None:
    from ntk_equiv import datasets, planning

    _check_figures(asked)
    asked.data = _existing(asked.data.expanduser())
    folder = planning.checked_folder(asked.out or f"{asked.data.stem}-plan", overwrite=asked.overwrite)
    with _precision("float32" if asked.float32 else "float64") as dtype:
        given = _read_images(asked) if asked.data.is_dir() else _read_arrays(asked)
        settings = {name: getattr(asked, name) for name in SETTINGS}
        settings["name"] = asked.data.name if asked.name is None else asked.name
        in_file = given.pop("class_names", None)
        settings["class_names"] = in_file if asked.class_names is None else asked.class_names
        say = None if asked.quiet else lambda text: print(f"{text} …", file=sys.stderr, flush=True)
        found = planning.plan(given.pop("x"), given.pop("y"), **given, **settings, dtype=dtype, progress=say)
    source = {"path": str(asked.data.resolve()), "size": asked.size}
    if asked.data.is_dir():
        source["files"] = datasets.image_files(asked.data)
    found = dataclasses.replace(found, origin={**found.origin, "command": asked.command, **source})
    paths = found.write(folder, overwrite=asked.overwrite, figures=asked.figures)
    print(found.table())
    print("\nFiles\n-----")
    for path in paths:
        print(path)


def _existing(data: Path) -> Path:
    """Return the path of the data; that of a folder in full, because its name is needed."""
    from ntk_equiv._check import refusal

    if not data.exists():
        fix = f"Check its name; relative paths start at {Path.cwd()}."
        raise refusal(
            "data", expected="a folder of images or an npz file", got=f"{data}, which does not exist", fix=fix
        )
    return data.resolve() if data.is_dir() else data


def _run_train(asked: argparse.Namespace) -> None:
    import numpy as np

    from ntk_equiv import ensembles, planned_runs

    with contextlib.suppress(RuntimeError):  # JAX is running already, unless this process is ours alone
        ensembles.use_cores()
    plan = planned_runs.load_plan(asked.plan)
    asked.data, asked.size = _data_of_plan(asked.data, plan.origin), plan.origin.get("size")
    # In the precision of the plan, so that the data are the same to the last bit.
    with _precision(plan.settings["dtype"]):
        given = _read_images(asked) if asked.data.is_dir() else _read_arrays(asked)
        given = {name: np.asarray(values) for name, values in given.items() if name != "class_names"}
    folder = asked.out or _folder_of_run(asked.plan)
    settings = {name: getattr(asked, name) for name in TRAINING}
    settings |= {"folder": folder, "command": asked.command, "progress": not asked.quiet}
    run = planned_runs.train(plan, given.pop("x"), given.pop("y"), **given, **settings)
    print(run.table())
    print(f"\n{folder}\n\nNow `ntk-equiv report {shlex.quote(str(folder))}` writes the report.")


def _data_of_plan(given: Path | None, origin: dict[str, Any]) -> Path:
    """Return where the data of a plan are: where the user says, or where they were when it was made."""
    from ntk_equiv._check import refusal

    if given is None and "path" not in origin:
        fix = "The plan was not made by the command line, so name the data with --data."
        raise refusal("data", expected="given", got="nothing", fix=fix)
    path = Path(origin["path"]) if given is None else given.expanduser()
    if not path.exists():
        fix = "Name the place of the data with --data."
        raise refusal("data", expected="the data of the plan", got=f"{path}, which does not exist", fix=fix)
    return path


def _folder_of_run(plan: Path) -> Path:
    """Return the folder of the run of a plan: that of slides-plan is slides-run, beside it."""
    folder = plan if plan.is_dir() else plan.parent
    folder = folder if folder.name else folder.resolve()
    return folder.with_name(f"{folder.name.removesuffix('-plan')}-run")


def _run_report(asked: argparse.Namespace) -> None:
    from ntk_equiv import planned_runs

    _check_figures(asked)
    run = planned_runs.PlannedRun.load(asked.run_folder)
    path = planned_runs.report(run, asked.out, figures=asked.figures)
    print(run.table())
    print(f"\n{path}")


def _check_figures(asked: argparse.Namespace) -> None:
    from ntk_equiv._check import refusal

    if asked.figures and find_spec("matplotlib") is None:
        fix = "Install it (pip install matplotlib), or leave figures out with --no-figures."
        raise refusal("matplotlib", expected="installed to draw figures", got="nothing", fix=fix)


def _read_arrays(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the arrays of a file."""
    from ntk_equiv import datasets
    from ntk_equiv._check import refusal

    if asked.size is not None:
        fix = "Arrays are taken as they are; --size is for a folder of images."
        raise refusal("size", expected="left out for an npz file", got=asked.size, fix=fix)
    return datasets.npz_arrays(asked.data, ("x", "y"), optional=("x_test", "y_test", "class_names"))


def _read_images(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the images of a folder, and the names of its folders as those of the classes."""
    from ntk_equiv import datasets

    images = datasets.image_folder(asked.data, size=asked.size)
    names = sorted(entry.name for entry in asked.data.iterdir() if entry.is_dir())
    return {"x": images.x, "y": images.y, "class_names": names}


def _run_info(asked: argparse.Namespace) -> None:
    import jax

    from ntk_equiv import ensembles, planning
    from ntk_equiv._check import positive_integer
    from ntk_equiv._machine import available_cores

    for argument in ("members", "width", "layers", "features", "batch"):
        positive_integer(getattr(asked, argument), argument)
    for name, number in planning.versions().items():
        print(f"{name:12} {number}")
    devices, cores = jax.devices(), available_cores()
    print(f"{'devices':12} {len(devices)} × {devices[0].device_kind} ({devices[0].platform}), {cores} cores")
    net = ensembles.mlp((asked.width,) * asked.layers, 1, b_std=0.1)
    batch = jax.ShapeDtypeStruct((asked.batch, asked.features), "float32")
    print(f"{'layout':12} {ensembles.expected_layout(net, batch, members=asked.members)}")
    if devices[0].platform == "cpu" and len(devices) < cores:
        print(f"{'':12} `ensembles.use_cores()` at the top of a script would make {cores} devices of these cores.")


@contextlib.contextmanager
def _precision(dtype: str) -> Iterator[str]:
    """Switch double precision on unless single is asked for; restore the setting afterwards."""
    import jax

    before = jax.config.jax_enable_x64  # type: ignore[attr-defined]
    jax.config.update("jax_enable_x64", before or dtype == "float64")
    try:
        yield dtype
    finally:
        jax.config.update("jax_enable_x64", before)


def _explain(error: Exception, asked: argparse.Namespace) -> str:
    """Return what went wrong, with arguments named as on the command line."""
    argument = getattr(error, "argument", None)
    if argument is not None:
        option = f"--{argument.replace('_', '-')}" if hasattr(asked, argument) else argument
        option = getattr(asked, "written", {}).get(argument, option)
        return str(error).replace(f"`{argument}`", option, 1)
    text = f"{type(error).__name__}: {error}"
    if "RESOURCE_EXHAUSTED" in text or isinstance(error, MemoryError):
        advice = "Use fewer samples (--max-points, --max-test-points), or a simpler network (--arch)."
        return f"not enough memory ({text.splitlines()[0]}). {advice}"
    return text if asked.traceback else f"{text}. --traceback shows where this happened."


# Options of `plan` that are settings of `planning.plan`: type, default and meaning, in groups.
OPTIONS: dict[str, dict[str, tuple]] = {
    "the symmetry": {
        "group": (str, None, "the symmetry group"),
        "action": (str, None, "how it acts on samples"),
        "label_action": (str, "trivial", "how it acts on labels: an action, or same"),
    },
    "network and training": {
        "arch": (str, "mlp:relu:2", "the network"),
        "w_std": (float, 2**0.5, "standard deviation of weights, times √fan-in"),
        "b_std": (float, 0.1, "standard deviation of biases"),
        "learning_rate": (float, 1.0, "the unit of time: t steps of full-batch descent at this rate"),
        "reduction": (str, "mean", "the loss is ½ of the mean or of the sum of squares"),
    },
    "what to ask": {
        "members": (int, 10, "size of the ensemble you have in mind"),
        "width": (int, None, "width of the networks you have in mind; asks whether it is enough (default: not asked)"),
        "at": (float, None, "the time for which members and invariance are given (default: the best one)"),
        "delta": (float, None, "tolerated deviation, in units of the labels (default: a tenth of their spread)"),
        "epsilon": (float, 0.05, "probability of a larger deviation"),
        "temperature": (float, None, "T of class probabilities softmax(f/T) (default: fitted to the test samples)"),
        "likelihood_delta": (
            float,
            0.01,
            "how far the negative log-likelihood may be above that of infinitely many members, in nats",
        ),
    },
    "the data": {
        "labels": (str, "auto", "auto, classes or regression"),
        "holdout": (float, 0.2, "fraction of samples held out if there are no test samples"),
        "name": (str, None, "what the data are called in the report (default: the name of the file)"),
    },
    "time and precision": {
        "minutes": (float, 5.0, "how long it may take; fewer samples are used if all take longer; inf for no limit"),
        "max_points": (
            int,
            None,
            "most training samples to use, drawn at random (default: as many as time and memory allow)",
        ),
        "max_test_points": (int, 100, "most test samples to use, drawn at random"),
        "samples": (int, 10_000, "random draws for members over orbits"),
        "seed": (int, 0, "seed of everything that is random"),
    },
}
SETTINGS = (*(name for group in OPTIONS.values() for name in group), "times", "class_names")
# Options of `train` that are settings of `planned_runs.train`.
TRAINING: dict[str, tuple] = {
    "network": (str, "auto", "the network: auto, cnn, mlp or module:factory"),
    "members": (int, None, "how many members (default: as planned)"),
    "epochs": (int, 40, "how often to go through the augmented samples, at most"),
    "batch_size": (int, 32, "samples in a step"),
    "learning_rate": (float, 3e-3, "that of Adam in the first epoch; it falls"),
    "validation": (float, 0.2, "fraction of the training samples that decides when to stop"),
    "patience": (int, 6, "epochs without an improvement after which a member stops"),
    "max_test_points": (int, 1000, "most test samples to use"),
    "seed": (int, None, "seed of members and validation set (default: the plan's)"),
}


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ntk-equiv", description=ABOUT, formatter_class=_AsWritten)
    parser.add_argument("--version", action="version", version=f"ntk-equiv {version('ntk-equiv')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    plan = commands.add_parser("plan", help="plan an ensemble for your data", formatter_class=_AsWritten)
    train = commands.add_parser("train", help="train what was planned", formatter_class=_AsWritten)
    report = commands.add_parser("report", help="plan and measurement on one page", formatter_class=_AsWritten)
    info = commands.add_parser("info", help="versions, devices and layouts", formatter_class=_AsWritten)
    _add_plan_options(plan)
    _add_train_options(train)
    _add_report_options(report)
    _add_info_options(info)
    for command in (plan, train, report, info):
        command.add_argument("--traceback", action="store_true", help="show where an error happened")
    return parser


def _add_plan_options(plan: argparse.ArgumentParser) -> None:
    plan.description, plan.epilog = ABOUT_PLAN, EXAMPLES_PLAN
    plan.usage = "ntk-equiv plan data --group GROUP --action ACTION [options]"
    plan.add_argument(
        "data",
        type=Path,
        help="a folder of images, or an npz file",
    )
    _add_settings(plan, OPTIONS["the symmetry"], "the symmetry", required=("group", "action"))
    network = _add_settings(plan, OPTIONS["network and training"], "network and training")
    network.add_argument("--times", nargs="+", default="auto", metavar="TIME", help="training times (default: auto)")
    _add_settings(plan, OPTIONS["what to ask"], "what to ask")
    data = _add_settings(plan, OPTIONS["the data"], "the data")
    data.add_argument("--size", type=int, help="scale the images of a folder to SIZE × SIZE (default: as they are)")
    data.add_argument("--class-names", nargs="+", metavar="NAME", help="names of the classes 0, 1, …")
    effort = _add_settings(plan, OPTIONS["time and precision"], "time and precision")
    effort.add_argument("--float32", action="store_true", help="single precision, which is faster but often not enough")
    files = plan.add_argument_group("files and messages")
    files.add_argument("--out", type=Path, help="folder for the files (default: the name of the data, and -plan)")
    files.add_argument("--overwrite", action="store_true", help="replace a plan that is already in the folder")
    files.add_argument("--no-figures", dest="figures", action="store_false", help="do without matplotlib")
    files.add_argument("--quiet", action="store_true", help="do not report progress")
    plan.set_defaults(run=_run_plan, written={"data": "data"})


def _add_settings(
    command: argparse.ArgumentParser, options: dict[str, tuple], title: str, required: Sequence[str] = ()
) -> argparse._ArgumentGroup:
    group = command.add_argument_group(title)
    for name, (convert, default, text) in options.items():
        shown = f"{default:.4g}" if isinstance(default, float) else default
        group.add_argument(
            f"--{name.replace('_', '-')}",
            type=convert,
            default=default,
            required=name in required,
            metavar=name.split("_")[-1].upper(),
            help=text if default is None else f"{text} (default: {shown})",
        )
    return group


def _add_train_options(train: argparse.ArgumentParser) -> None:
    train.description = ABOUT_TRAIN
    train.usage = "ntk-equiv train plan [options]"
    train.add_argument("plan", type=Path, help="folder of a plan, or its plan.json")
    train.add_argument("--data", type=Path, help="the data of the plan (default: where they were when it was made)")
    _add_settings(train, TRAINING, "the ensemble and its training")
    train.add_argument("--out", type=Path, help="folder for the run (default: slides-run for the plan slides-plan)")
    train.add_argument("--quiet", action="store_true", help="do not report progress")
    train.set_defaults(run=_run_train, written={"plan": "plan", "folder": "--out"})


def _add_report_options(report: argparse.ArgumentParser) -> None:
    report.description = ABOUT_REPORT
    report.usage = "ntk-equiv report run [options]"
    report.add_argument("run_folder", metavar="run", type=Path, help="folder of a run that `ntk-equiv train` finished")
    report.add_argument("--out", type=Path, help="path of the page (default: report.html in the folder)")
    report.add_argument("--no-figures", dest="figures", action="store_false", help="do without matplotlib")
    report.set_defaults(run=_run_report, written={"folder": "run", "path": "--out"})


def _add_info_options(info: argparse.ArgumentParser) -> None:
    info.description = ABOUT_INFO
    sizes = {
        "members": (100, "of the ensemble"),
        "width": (512, "of the hidden layers"),
        "layers": (2, "hidden layers"),
        "features": (100, "of an input"),
        "batch": (256, "inputs in a step"),
    }
    for name, (default, text) in sizes.items():
        info.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{text} (default: {default})")
    info.set_defaults(run=_run_info)
