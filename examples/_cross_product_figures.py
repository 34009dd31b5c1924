"""Table and figures of the cross product."""

from typing import Any

import numpy as np
from _orbit_errors import expected_of_ensembles, of_ensembles, parts, powers
from matplotlib.figure import Figure

from ntk_equiv import plotting

TITLES = {"train": "training pairs", "test": "test pairs", "ood": "out of distribution (Poisson)"}


def table(settings: Any, found: Any) -> str:
    """Format the numbers of all three parts."""
    blocks = (_adam_lines, _theory_lines, _descent_lines)
    return "\n\n".join("\n".join(block(settings, found)) for block in blocks)


def _adam_lines(settings: Any, found: Any) -> list[str]:
    lines = [
        f"Adam (rate {settings.rate:g}, batches of {settings.batch_size}, {settings.epochs} epochs), "
        f"{settings.pairs} pairs under {settings.rotations} random rotations,",
        f"averaged over the last {settings.averaged} epochs; ± standard errors over {settings.members} members",
        "width   validation RMSE       orbit MSE under SO(3)",
        f"        member  ensemble      set    member               ensemble of {settings.members}"
        "   of infinitely many, estimated",
    ]
    for width in settings.widths:
        own = found[f"adam-{width}"]
        rmse = np.sqrt([np.trace(own["validation"]) / settings.members, own["validation"].mean()])
        for name in TITLES:
            (member, _, b), (error, _, b_error) = parts(own[name])
            left = f"{width:5d}   {rmse[0]:.3f}   {rmse[1]:.3f}    " if name == "train" else " " * 25
            lines.append(
                f"{left}     {name:5s}  {member:.4f} ± {error:.4f}      {own[name].mean():.5f}"
                f"          {b:.5f} ± {b_error:.5f}"
            )
    return lines


def _theory_lines(settings: Any, found: Any) -> list[str]:
    lines = [
        f"Infinite ensembles (gradient flow, mean loss, t = {settings.t:g}, float64), {settings.pairs} pairs;",
        f"the mean at {settings.orbits} samples under {settings.turns} rotations, what members add to it at "
        f"{settings.law_samples} samples under {settings.law_turns}; ± standard errors over samples",
        "augmented by           validation  set    orbit MSE of the mean                  of a member",
        "                       RMSE               under these   under SO(3)              under SO(3)",
    ]
    for name in settings.augmentations:
        own = found[f"theory-{name}"]
        label = f"{int(own['order'])} {'random rotations' if name == 'random' else f'rotations ({name})'}"
        for which in TITLES:
            left = f"{label:22s} {own['rmse']:.3f}    " if which == "train" else " " * 32
            member = own[f"all-{which}"] + own[f"law-{which}"][1]
            lines.append(
                f"{left}    {which:5s}  {own[f'own-{which}']:.1e}       {own[f'all-{which}']:.5f} ± "
                f"{own[f'all-{which}.error']:.5f}      {member:.4f}"
            )
    if settings.draws:
        lines.append(f"The same for {settings.draws} other draws of {settings.rotations} random rotations, under SO(3)")
        for which in TITLES:
            values = found["theory-draws"][f"all-{which}"]
            shown = f"mean {values.mean():.5f}, from {values.min():.5f} to {values.max():.5f}"
            lines.append(f"{'':36}{which:5s}  {shown}")
    return lines


def _descent_lines(settings: Any, found: Any) -> list[str]:
    predicted = found["descent-theory"]
    lines = [
        f"Gradient descent (rate {settings.descent_rate:g}, {settings.descent_steps} steps, mean loss, full batches), "
        f"{settings.descent_pairs} pairs under T;",
        f"validation RMSE of the infinite ensemble {predicted['rmse']:.3f}; "
        f"± standard errors over {settings.descent_members} members",
        "error    set    width    orbit MSE of a member   of infinitely many, extrapolated",
        "under",
    ]
    for group in ("T", "SO(3)"):
        for name in TITLES:
            for width in settings.descent_widths:
                (member, _, b), (error, _, b_error) = parts(found[f"descent-{width}"][f"{group}-{name}"])
                lines.append(
                    f"{group:7s}  {name:5s}  {width:6d}   {member:.4f} ± {error:.4f}         {b:8.5f} ± {b_error:.5f}"
                )
            says, _, floor = predicted[f"{group}-{name}"]
            lines.append(f"{group:7s}  {name:5s}  theory   {says:.4f}                  {floor:8.5f}")
    return lines


def figures(settings: Any, found: Any) -> dict[str, Figure]:
    """Draw the figure of the paper, and those of theory."""
    return {
        "cross_product_adam": _adam_figure(settings, found),
        "cross_product_groups": _groups_figure(settings, found),
        "cross_product_theory": _descent_figure(settings, found),
    }


def _adam_figure(settings: Any, found: Any) -> Figure:
    """Draw the orbit MSE against the size of the ensemble: members and ensembles above, ensembles alone below."""
    fig, axes = plotting.panels(3, 2, sharex=True, width=3.0, height=2.4)
    sizes = powers(settings.members)
    for column, (name, title) in enumerate(TITLES.items()):
        above, below = axes[column], axes[3 + column]
        for number, width in enumerate(settings.widths):
            P, colour = found[f"adam-{width}"][name], plotting.COLOURS[number]
            means, errors = of_ensembles(P, sizes)
            member, spread = np.diag(P).mean(), np.diag(P).std(ddof=1)
            above.plot(sizes, np.full(len(sizes), member), color=colour, label=f"members, width {width}")
            above.fill_between(sizes, member - spread, member + spread, color=colour, alpha=0.15, linewidth=0)
            label = f"ensembles, width {width}"
            plotting.measured(above, sizes, means, number=number)
            above.plot(sizes, means, "--", color=colour)
            plotting.measured(below, sizes[1:], means[1:], errors[1:], number=number, label=label, joined=True)
        above.set(title=title)
        below.set(xlabel="members of the ensemble", xscale="log")
        for ax in (above, below):
            ax.set_ylim(0, 1.05 * ax.get_ylim()[1])
        below.set_xticks(sizes, [str(size) for size in sizes])
        below.minorticks_off()
    axes[0].set_ylabel("orbit MSE, SO(3)")
    axes[3].set_ylabel("orbit MSE, zoom")
    shown = zip(*(ax.get_legend_handles_labels() for ax in (axes[0], axes[3])), strict=True)
    handles, labels = ([one for pair in zip(*kind, strict=True) for one in pair] for kind in shown)
    title = "shaded: ± one standard deviation of members; bars: ± standard error over members"
    fig.legend(handles, labels, loc="outside lower center", ncols=len(settings.widths), title=title)
    return fig


def _groups_figure(settings: Any, found: Any) -> Figure:
    """Draw the error under all rotations, for each augmentation group."""
    fig, (ax,) = plotting.panels(width=4.2, height=3.0)
    names = settings.augmentations
    orders = [f"{int(found[f'theory-{name}']['order'])}" for name in names]
    places = np.arange(len(names))
    for number, (which, title) in enumerate(TITLES.items()):
        values = [found[f"theory-{name}"][f"all-{which}"] for name in names]
        plotting.measured(ax, places, values, number=number, label=title, joined=True)
    labels = [f"{order}\n{'random' if name == 'random' else name}" for name, order in zip(names, orders, strict=True)]
    ax.set_xticks(places, labels)
    ax.set(ylabel="orbit MSE, SO(3)", yscale="log", title="theory: infinite ensembles, all rotations")
    ax.set_xlabel("rotations that augment")
    ax.legend()
    return fig


def _descent_figure(settings: Any, found: Any) -> Figure:
    """Draw the trained and predicted orbit MSE against the size of the ensemble, under T and under all rotations."""
    fig, axes = plotting.panels(3, sharey=True, width=3.0, height=2.8)
    sizes, widest = powers(settings.descent_members), settings.descent_widths[-1]
    for ax, (name, title) in zip(axes, TITLES.items(), strict=True):
        for number, (group, label) in enumerate({"T": "T, which augments", "SO(3)": "all rotations"}.items()):
            means, errors = of_ensembles(found[f"descent-{widest}"][f"{group}-{name}"], sizes)
            says = expected_of_ensembles(found["descent-theory"][f"{group}-{name}"], sizes)
            plotting.measured(ax, sizes, means, errors, number=number, label=f"measured, {label}")
            plotting.predicted(ax, sizes, says, number=number, label=f"theory, {label}")
        ax.set(title=title, xlabel="members of the ensemble", xscale="log", yscale="log")
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.minorticks_off()
    axes[0].set_ylabel("orbit MSE")
    axes[1].legend(title="± standard error over members", title_fontsize=7, loc="lower left")
    return fig
