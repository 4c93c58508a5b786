"""One HTML page of a plan: self-contained, light and dark."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np

from jaxserve.plan.answer import certainty, headline, measurement, scaling, unknown
from jaxserve.plan.plan import Plan
from jaxserve.plan.search import Tried
from jaxserve.plan.start import checkpoint_notes

_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1c1f23; --soft: #5d6570;
  --line: #d5dae0; --panel: #f5f7f9; --blue: #0072b2; --orange: #b96d00; --green: #007a5a; }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --text: #e6e9ed;
  --soft: #9aa4b0; --line: #363c44; --panel: #1e2228; --blue: #56b4e9; --orange: #e69f00;
  --green: #2fc595; } }
body { background: var(--ground); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; }
.figures div { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; }
.figures b { display: block; font-size: 1.35rem; } .figures span, caption, .soft {
  color: var(--soft); font-size: .85rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--panel); padding: .8rem; border-radius: .5rem; overflow-x: auto;
  font-size: .85rem; }
.wide { overflow-x: auto; } svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
"""
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 44


def report_html(plan: Plan, commands: dict[str, str]) -> str:
    """The page.

    Args:
      commands: texts of the files that start the deployment, by name.
    """
    by, result = plan.best.deployment, plan.best.result
    low, high = plan.attainment
    fewest, most = plan.gpus
    factor, largest = plan.bears
    span = f"{fewest} to {'more' if most is None else most}" if most != fewest else f"{fewest}"
    figures = [
        (f"{by.usd_per_hour:,.2f} USD/h", "rent"),
        (f"{by.gpus} x {by.option.gpu}", "GPUs"),
        (f"{result.attainment:.2%}", f"within the objectives ({low:.1%} to {high:.1%})"),
        (span, "GPUs that may be needed (95 %)"),
        (f"{'at least ' if largest else ''}{factor:g} x", "traffic that it bears"),
    ]
    parts = [
        f"<h1>{_text(plan.inputs.model)}: deployment for {_text(plan.inputs.traffic)}</h1>",
        f"<p>{_text(headline(plan))}.</p>",
        '<div class="figures">',
        *(f"<div><b>{_text(value)}</b><span>{_text(name)}</span></div>" for value, name in figures),
        "</div>",
        "<h2>How sure</h2>",
        _list(certainty(plan)),
        *_measurements(plan),
        *([] if plan.check is None else ["<h2>Checked</h2>", _list(plan.check["sentences"])]),
        "<h2>Cost and attainment</h2>",
        front_svg(plan),
        '<p class="soft">Filled: the whole traffic was played, or the sample that stands for it. '
        "Hollow: the busiest parts were, which gives an upper bound. Line: the Pareto front.</p>",
        "<h2>GPUs over time</h2>",
        demand_svg(plan),
        f'<p class="soft">Fewest GPUs that could serve each minute, ceil(rate / '
        f"{plan.requests_per_s:.2f} requests/s of a replica): at most {plan.least_gpus.max()}, "
        f"{plan.least_gpus.mean():.2f} on average. A fleet that follows the traffic without delay "
        "would need no more; bursts within a minute may."
        f"{_text(''.join(f' {sentence}' for sentence in scaling(plan)))}</p>",
        "<h2>Latency</h2>",
        _table(
            ("", "p50", "p99", "objective"),
            [
                ("TTFT, s", *_numbers(result.ttft_p50_s, result.ttft_p99_s),
                 f"{plan.inputs.objective.ttft_s:g}"),
                ("TPOT, ms", *_numbers(1e3 * result.tpot_p50_s, 1e3 * result.tpot_p99_s),
                 f"{1e3 * plan.inputs.objective.tpot_s:g}"),
            ],
        ),
        "<h2>Neighbours</h2>",
        _table(
            ("difference", "USD/h", "attainment", "objectives", "bound by"),
            [
                (each.difference, f"{each.tried.deployment.usd_per_hour:,.2f}",
                 _share(each.tried), "met" if each.meets else "missed", each.binds or "")
                for each in plan.neighbours
            ],
        ),
        *_kinds(plan),
        "<h2>Start it</h2>",
        f"<p>{'One replica of each role' if by.prefill else 'One replica'}:</p>"
        + "\n".join(
            f"<pre>{_text(text)}</pre>"
            for name, text in commands.items()
            if name.startswith(("vllm", "sglang")) and name != "sglang_all.sh"
        ),
        *(f"<p>{_text(note)}.</p>" for note in checkpoint_notes(by, plan.inputs.model)),
        "<p>All replicas with what leads requests to them: <code>compose.yaml</code>, "
        "<code>kubernetes.yaml</code>, "
        f"<code>{'sglang_all.sh' if by.prefill else 'gateway.sh'}</code>.</p>",
        "<h2>What the plan cannot know</h2>",
        _list(unknown(plan)),
        f"<h2>Engines that cannot serve</h2>{_excluded(plan)}",
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Plan: {_text(plan.inputs.model)}</title><style>{_STYLE}</style></head>"
        f"<body>\n{chr(10).join(part for part in parts if part)}\n</body></html>\n"
    )


def front_svg(plan: Plan) -> str:
    """Price and attainment of everything that was played, and the Pareto front."""
    target = plan.inputs.objective.attainment
    low = max(min(0.9, 1 - 4 * (1 - target)), 0.0)
    shown = [each for each in plan.tried if each.result.attainment >= low]
    prices = [each.deployment.usd_per_hour for each in shown]
    most = 1.1 * max(prices)
    axes = _Axes((0.0, most), (low, 1.0 + 0.02 * (1 - low)))
    front = [each for each in plan.front if each in shown]
    line = " ".join(
        f"{axes.x(each.deployment.usd_per_hour):.1f},{axes.y(each.result.attainment):.1f}"
        for each in front
    )
    dots = []
    for each in sorted(shown, key=lambda one: one is plan.best):
        colour = "var(--green)" if each is plan.best else "var(--blue)"
        fill = colour if each.whole else "none"
        dots.append(
            f'<circle cx="{axes.x(each.deployment.usd_per_hour):.1f}" '
            f'cy="{axes.y(each.result.attainment):.1f}" r="{7 if each is plan.best else 4.5}" '
            f'fill="{fill}" stroke="{colour}" stroke-width="1.5">'
            f"<title>{_text(each.deployment.name)}: {_share(each)}</title></circle>"
        )
    wanted = axes.y(target)
    best = plan.best.deployment
    return axes.svg(
        "USD per hour and attainment",
        [
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{wanted:.1f}" y2="{wanted:.1f}" '
            'stroke="var(--orange)" stroke-dasharray="5 4"/>',
            f'<text x="{_WIDTH - _RIGHT}" y="{wanted + 15:.1f}" text-anchor="end">wanted '
            f"{target:.1%}</text>",
            f'<polyline points="{line}" fill="none" stroke="var(--blue)" opacity=".5"/>',
            *dots,
            f'<text x="{axes.x(best.usd_per_hour) + 12:.1f}" '
            f'y="{axes.y(plan.best.result.attainment) + 4:.1f}">named</text>',
        ],
        "USD per hour",
        _percent,
    )


def demand_svg(plan: Plan) -> str:
    """GPUs over time at the least, and those of the named deployment."""
    gpus, own = plan.least_gpus, plan.best.deployment.gpus
    minutes = np.linspace(0.0, plan.inputs.trace.duration_s / 60, len(gpus) + 1)
    axes = _Axes((0.0, float(minutes[-1])), (0.0, 1.15 * max(own, int(gpus.max()))))
    points = []
    for start, end, count in zip(minutes[:-1], minutes[1:], gpus, strict=True):
        points += [
            f"{axes.x(start):.1f},{axes.y(count):.1f}",
            f"{axes.x(end):.1f},{axes.y(count):.1f}",
        ]
    return axes.svg(
        "GPUs over time",
        [
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{axes.y(own):.1f}" '
            f'y2="{axes.y(own):.1f}" stroke="var(--green)" stroke-width="2"/>',
            f'<text x="{_WIDTH - _RIGHT}" y="{axes.y(own) - 6:.1f}" text-anchor="end">named: '
            f"{own}</text>",
            f'<polyline points="{" ".join(points)}" fill="none" stroke="var(--blue)" '
            'stroke-width="1.5"/>',
        ],
        "minutes",
        lambda value: f"{value:g}" if value == int(value) else "",
    )


class _Axes:
    """Scales and frame of a picture."""

    def __init__(self, across: tuple[float, float], up: tuple[float, float]) -> None:
        self._across, self._up = across, up

    def x(self, value: float) -> float:
        """Place of a value from left to right."""
        low, high = self._across
        return _LEFT + (value - low) / max(high - low, 1e-12) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Place of a value from top to bottom."""
        low, high = self._up
        return (
            _HEIGHT - _BOTTOM - (value - low) / max(high - low, 1e-12) * (_HEIGHT - _TOP - _BOTTOM)
        )

    def svg(self, name: str, inside: Iterable[str], across: str, text) -> str:
        """The picture with its ticks."""
        marks = [
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{self.y(at):.1f}" '
            f'y2="{self.y(at):.1f}" stroke="var(--line)"/><text x="{_LEFT - 8}" '
            f'y="{self.y(at) + 4:.1f}" text-anchor="end">{text(at)}</text>'
            for at in _ticks(*self._up)
        ]
        marks += [
            f'<text x="{self.x(at):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{at:g}'
            "</text>"
            for at in _ticks(*self._across)
        ]
        return (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">'
            f"{''.join(marks)}{''.join(inside)}<text "
            f'x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{across}'
            "</text></svg>"
        )


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers."""
    step = 10 ** np.floor(np.log10((high - low) / 4))
    step = next(step * each for each in (1, 2, 2.5, 5, 10) if (high - low) / (step * each) <= 6)
    first = np.ceil(low / step - 1e-9)
    return [round(float(step * at), 10) + 0.0 for at in np.arange(first, high / step + 1e-9)]


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def _measurements(plan: Plan) -> list[str]:
    found = []
    for option in plan.uncertain_options:
        commands = "\n".join(measurement(plan, option))
        found.append(
            f"<details><summary>Load test of {_text(option.name)}</summary>"
            f"<pre>{_text(commands)}</pre></details>"
        )
    return found


def _kinds(plan: Plan) -> list[str]:
    if not plan.cheapest_of_kind:
        return []
    rows = [(gpu, name, f"{price:,.2f}") for gpu, name, price in plan.cheapest_of_kind]
    return [
        "<h2>Other GPUs</h2>",
        _table(("GPU", "cheapest at the busiest minute, in closed form", "USD/h"), rows),
    ]


def _excluded(plan: Plan) -> str:
    if not plan.excluded:
        return "<p>None.</p>"
    rows = [(each.name, each.reason) for each in plan.excluded]
    table = _table(("engine", "reason"), rows)
    return f"<details><summary>{len(rows)} engines</summary>{table}</details>"


def _share(tried: Tried) -> str:
    bound = "" if tried.whole else "at most "
    return f"{bound}{tried.result.attainment:.2%}"


def _numbers(*values: float) -> list[str]:
    return [f"{value:.3g}" for value in values]


def _list(sentences: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_text(each)}</li>' for each in sentences)}</ul>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{_text(each)}</th>" for each in head)
    body = "".join(f"<tr>{''.join(f'<td>{_text(each)}</td>' for each in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{cells}</tr>{body}</table></div>'


def _text(value: str) -> str:
    return html.escape(str(value))
