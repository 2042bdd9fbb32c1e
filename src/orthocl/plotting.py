"""One style for all matplotlib figures, in sizes that fit a paper: one column (3.4 inches) or the width of the page.

Figures are made without pyplot, so that nothing depends on global state; labels are text, never mathematics, unless the
code that draws them says so.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orthocl.errors import StoreError, unknown_name
from orthocl.formatting import plain_text
from orthocl.palette import INK
from orthocl.storage import write_output

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = ("svg", "pdf", "png")
COLUMN, PAGE = 3.4, 7.0
"""Width in inches of one column and of the whole text of a two-column paper."""
FONT, SMALL = 8.0, 7.0


def panels(
    count: int, *, columns: int = 3, height: float = 2.4, width: float | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side: one fills a column, several the width of the page.

    Args:
        count: number of panels.
        columns: at most so many to a row.
        height: of a row, in inches.
        width: of the figure, in inches, if it should be another.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = max(1, min(columns, count))
    rows = -(-count // across)
    figure = Figure(figsize=(width or (COLUMN if count == 1 else PAGE), height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, across, number + 1) for number in range(count)]
    for axis in axes:
        axis.grid(True, color="#8884", linewidth=0.5)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=SMALL, colors=INK, width=0.6, length=3)
        for spine in axis.spines.values():
            spine.set(color=INK, linewidth=0.6)
        for name in (axis.xaxis.label, axis.yaxis.label):
            name.set(color=INK, fontsize=FONT)
    return figure, axes


def describe(axis: Axes, title: str = "", across: str = "", up: str = "") -> None:
    """Title of a panel, broken into lines that fit it, and names of its axes."""
    if title:
        size = cast("Figure", axis.figure).get_size_inches()[0] / _columns(axis)
        letters = max(12, int(size * 72 / (0.56 * FONT)))
        axis.set_title("\n".join(textwrap.wrap(title, letters)), fontsize=FONT, color=INK)
    if across:
        axis.set_xlabel(across)
    if up:
        axis.set_ylabel(up)


def _columns(axis: Axes) -> int:
    place = axis.get_subplotspec()
    return 1 if place is None else int(place.get_gridspec().ncols)


def label_text(text: str) -> str:
    r"""A label that matplotlib draws as it is: no mathematics, and no leading underscore, which would hide it.

    >>> print(label_text("$\\frac{$"), label_text("_mine"))
    \$\frac{\$  _mine
    """
    plain = plain_text(text).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def legend_below(figure: Figure, handles: Mapping[str, Artist]) -> None:
    """One legend for all panels, below them, in as many columns as fit the figure; the figure grows by its height.

    Args:
        figure: with its panels.
        handles: label -> what is drawn for it.
    """
    if not handles:
        return
    settings: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "labelcolor": INK}
    settings |= {"columnspacing": 1.2, "handlelength": 2.2, "loc": "outside lower center"}
    room = figure.get_size_inches()[0] * figure.dpi
    for columns in range(min(8, len(handles)), 0, -1):
        legend = figure.legend(list(handles.values()), list(handles), ncols=columns, **settings)
        extent = legend.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
        if extent.width <= 0.98 * room or columns == 1:
            break
        legend.remove()
    wide, tall = figure.get_size_inches()
    figure.set_size_inches(wide, tall + extent.height / figure.dpi)


def legend_inside(axis: Axes, **settings: Any) -> None:
    """A legend of one panel, in the style of all."""
    axis.legend(**({"fontsize": SMALL - 0.5, "frameon": False, "labelcolor": INK} | settings))


def legend_beside(axis: Axes) -> None:
    """A legend to the right of the only panel."""
    axis.legend(fontsize=SMALL, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.0, 0.5))


def handles_of(axes: Sequence[Axes]) -> dict[str, Artist]:
    """Label -> what is drawn for it, over all panels."""
    return {
        text: handle for axis in axes for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
    }


def check_suffix(path: Path) -> str:
    """The format that the suffix of a figure's path asks for; an error if there is none."""
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in SUFFIXES:
        raise unknown_name("figure format", suffix or str(path), SUFFIXES)
    return suffix


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the suffix says how: .svg, .pdf or .png. Its folder is created if needed."""
    path = Path(path)
    suffix = check_suffix(path)
    out = io.BytesIO()
    _save(figure, out, suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"cannot write {str(path)[:200]!r}: {reason}") from error
    write_output(path, out.getvalue())
    return path


def figure_svg(figure: Figure) -> str:
    """A figure as SVG text to put into a page; it takes the page's text colour."""
    out = io.StringIO()
    figure.patch.set_alpha(0.0)
    for axis in figure.axes:
        axis.patch.set_alpha(0.0)
    _save(figure, out, "svg")
    text = out.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")


def _save(figure: Figure, out: io.BytesIO | io.StringIO, suffix: str) -> None:
    """No date or random ids, so that equal figures give equal files; text stays text in SVG, letters in PDF."""
    from matplotlib import rc_context

    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[suffix]
    with rc_context({"svg.hashsalt": "orthocl", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(out, format=suffix, dpi=300 if suffix == "png" else 160, metadata=metadata)
