"""The comparison of autoscaling rules as a table and a picture."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from jaxserve.autoscale.answer import AutoscaleAnswer, RuleResult
from jaxserve.scaling.setting import named_values
from jaxserve.show.style import STYLE
from jaxserve.show.text_table import TextTable


def rules_table(answer: AutoscaleAnswer) -> TextTable:
    """Every rule with its defaults and tuned, on the part that it was not tuned on."""
    rows = [_row(answer.static, "static", "")]
    rows += [_row(row, row.kind, "tuned" if row.tuned else "default") for row in answer.rules]
    return TextTable(
        title=f"{answer.hours_judged:.1f} h after the {answer.hours_tuned:.1f} h of tuning",
        header=("rule", "", "met %", "replicas", "USD", "changes/h", "below %"),
        rows=tuple(rows),
        caption=f"met: requests inside their objectives, {answer.target:.1%} asked for; replicas: "
        "rented, mean; below: share of the time in which fewer met them",
    )


def _row(row: RuleResult, name: str, numbers: str) -> tuple[str, ...]:
    inside = f"{100 * row.attainment:.1f}"
    if row.attainment_low is not None and row.attainment_high is not None:
        inside += f" ({100 * row.attainment_low:.1f} to {100 * row.attainment_high:.1f})"
    return (
        name,
        numbers,
        inside,
        f"{row.mean_replicas:.2f}",
        f"{row.cost_usd:,.0f}",
        f"{row.changes_per_hour:.1f}",
        f"{100 * row.missed_share:.1f}",
    )


def curves_picture(answer: AutoscaleAnswer, kind: str) -> bytes:
    """Cost and attainment of every rule's settings, and replicas over start-up times.

    Args:
      kind: format of the picture, ``png``, ``svg`` or ``pdf``.
    """
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(3, 2))
        for name, points in answer.curves.items():
            hours, inside = zip(*points, strict=True)
            style = {"color": "black", "lw": 1.6} if name == "static" else {"lw": 1.2}
            left.plot(hours, inside, marker="o", ms=3, label=name, **style)
        left.axhline(answer.target, color="gray", lw=0.8, ls=":")
        bound_hours = answer.lower_bound * answer.hours_judged * answer.group
        left.axvline(bound_hours, color="gray", lw=0.8, ls="--")
        left.set(xlabel="GPU hours rented", ylabel="requests inside their objectives")
        left.set_ylim(max(min(answer.target - 0.15, 0.8), 0.0), 1.003)
        left.yaxis.set_major_formatter(PercentFormatter(1.0))
        left.legend(fontsize=7, ncols=2, loc="lower right")
        if answer.by_start_s:
            start_s, replicas, _ = zip(*answer.by_start_s, strict=True)
            right.plot(start_s, replicas, marker="o", ms=4)
            right.axhline(answer.static.mean_replicas, color="black", lw=1)
            right.set(xlabel="start-up, s", ylabel=f"replicas rented by {answer.winner.kind}")
            right.set_ylim(bottom=0)
        else:
            right.set_axis_off()
        figure.tight_layout()
        out = io.BytesIO()
        figure.savefig(out, format=kind)
        plt.close(figure)
    return out.getvalue()


def sentences(answer: AutoscaleAnswer) -> list[str]:
    """Sentences on the winner, its cost, what a replica bears, and the reference simulator."""
    winner, static = answer.winner, answer.static
    size = f"a fleet of {static.values[0]:g} that is never scaled"
    if winner.kind == static.kind:
        said = [f"No rule is cheaper than {size}: {100 * static.attainment:.1f} % inside."]
    else:
        values = named_values(winner.kind, winner.values)
        numbers = ", ".join(f"{name} {value:g}" for name, value in values.items())
        compared = "fewer" if answer.saved >= 0.0 else "more"
        said = [
            f"{winner.kind} with {numbers}: {100 * abs(answer.saved):.0f} % {compared} GPU hours "
            f"than {size}, {100 * winner.attainment:.1f} % inside against "
            f"{100 * static.attainment:.1f} %."
        ]
    missed = _missed(answer)
    said += [missed] if missed else []
    said.append(
        f"A replica bears {answer.requests_per_s:.3g} requests/s; following the rate exactly would "
        f"take {answer.lower_bound:.2f} replicas on average and {answer.lower_bound_peak} at the "
        "peak."
    )
    if answer.lower_bound_peak > answer.most:
        said.append(f"That is more than the {answer.most} of --max-replicas.")
    reference, fast = (answer.confirmed.get(name) for name in ("reference", "fast"))
    if reference and fast and reference["ended"] >= 1.0:
        said.append(
            f"Reference simulator, {reference['requests']:,.0f} requests in "
            f"{reference['hours']:.1f} h: {100 * reference['attainment']:.1f} % inside with "
            f"{reference['mean_replicas']:.2f} replicas; the fast one said "
            f"{100 * fast['attainment']:.1f} % with {fast['mean_replicas']:.2f}."
        )
    return said


def _missed(answer: AutoscaleAnswer) -> str | None:
    """Why fewer requests than are asked for are inside; None where enough are."""
    winner, wanted = answer.winner, f"{100 * answer.target:.4g} %"
    if not winner.reached:
        return (
            f"No setting was sure to reach {wanted} where rules were tuned; this one came nearest. "
            f"More than {answer.most} replicas, faster start-ups or looser objectives are needed."
        )
    upper = winner.attainment if winner.attainment_high is None else winner.attainment_high
    if upper < answer.target:
        return (
            f"It misses the {wanted} that it reached where it was tuned: the later part of the "
            "trace differs. Ask for more, or tune on more traffic."
        )
    return None
