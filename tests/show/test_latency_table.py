"""Looking into a table: the rows asked for, in the terminal's width."""

import io

import pytest
from rich.console import Console

from jaxserve.errors import InputError
from jaxserve.show.latency_table import pick_rows, render_rows
from jaxserve.sim.table.file import COLUMNS, read_table_file

FILE = read_table_file("llama-3.1-8b__h100-sxm-80gb")


def test_filters_pick_rows() -> None:
    """Each filter narrows the grid to one value of its axis."""
    assert len(pick_rows(FILE, {})) == 5400
    rows = pick_rows(FILE, {"batch_size": 32, "kv_budget": 0.25, "prompt_len": 1024})
    assert len(rows) == 15
    assert {(row["batch_size"], row["kv_budget"], row["prompt_len_bucket"]) for row in rows} == {
        (32.0, 0.25, 4.0)
    }
    assert rows == pick_rows(FILE, {"batch_size": 32, "kv_budget": 0.25, "prompt_len_bucket": 4})
    assert rows[0]["itl_ms"] == pytest.approx(FILE.columns["itl_ms"][4, 1, 0, 0, 4])
    assert set(rows[0]) == set(COLUMNS) - {"output_len"}


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"batch": 4}, r"filter is 'batch'; it must be one of batch_size, .*, prompt_len"),
        ({"batch_size": 5}, r"filter batch_size is 5; it must be one of 1, 4, 8, 16"),
        ({"prompt_len": 100}, r"filter prompt_len is 100; it must be one of 64, 128"),
        ({"kv_budget": float("nan")}, r"filter kv_budget is nan; it must be one of 0.1, 0.25"),
    ],
)
def test_unknown_filters(filters: dict[str, float], message: str) -> None:
    """A filter that can not match anything is named."""
    with pytest.raises(InputError, match=message):
        pick_rows(FILE, filters)


def test_rendered_rows_fit_the_terminal() -> None:
    """Every number of the longest rows is readable at 80 characters."""
    rows = pick_rows(FILE, {"batch_size": 512, "kv_budget": 0.1, "prompt_len": 8192})
    output = io.StringIO()
    Console(file=output, width=80).print(render_rows(FILE, rows))
    text = output.getvalue()
    assert "llama-3.1-8b on 1 x h100-sxm-80gb" in text
    assert "held-out error not measured" in " ".join(text.split())
    assert f"{rows[0]['ttft_p99_ms']:.0f}" in text
    assert "…" not in text
    assert text.count("8192") == len(rows)
