"""Labels and reasons inside Markdown, LaTeX and CSV: what users wrote must not become markup or a formula."""

from __future__ import annotations

import re

from orthocl.formatting import plain_text

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}


def markdown_text(text: str) -> str:
    r"""A text inside a cell of a Markdown table.

    >>> print(markdown_text("a|b *c* <i> my_net"))
    a\|b \*c\* &lt;i> my_net
    """
    escaped = re.sub(r"([\\`*|\[\]~])", r"\\\1", plain_text(text)).replace("<", "&lt;")
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\_", escaped)


def latex_text(text: str) -> str:
    r"""A text inside LaTeX.

    >>> print(latex_text("50% of $x_1$ ~ a\\b^2"))
    50\% of \$x\_1\$ \textasciitilde{} a\textbackslash{}b\textasciicircum{}2
    """
    return "".join(_LATEX.get(letter, letter) for letter in plain_text(text))


def csv_text(text: str) -> str:
    """A text inside CSV that no spreadsheet takes for a formula.

    >>> csv_text("=cmd|' /C calc'!A0"), csv_text("ogd+"), csv_text("-1 step")
    ("'=cmd|' /C calc'!A0", 'ogd+', "'-1 step")
    """
    plain = plain_text(text)
    return f"'{plain}" if plain.lstrip().startswith(("=", "+", "-", "@", "|", "%")) else plain
