"""The retention certificate as HTML: pure functions of its dict, no script, nothing fetched."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from orthocl.formatting import size_text

HEADINGS = (
    "samples",
    "number",
    "accuracy",
    "lost",
    "lost at most",
    "change of outputs",
    "first order",
    "curvature",
    "remainder",
)
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    ".certificate table{border-collapse:collapse}.certificate td,.certificate th{padding:.2rem .6rem;text-align:right}"
    ".certificate td:first-child,.certificate th:first-child{text-align:left}"
)


def certificate_card(certificate: Mapping[str, Any]) -> str:
    """A section of a page, from `Certificate.to_dict()`."""
    rows = "".join(_row(probe) for probe in certificate["probes"])
    heads = "".join(f'<th scope="col">{name}</th>' for name in HEADINGS)
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(certificate))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return (
        f'<section class="certificate"><h2>What was lost: {escape(str(certificate["method"]))}</h2>'
        f"<p><strong>{escape(str(certificate['sentence']))}</strong></p>{table}<ul>{facts}</ul></section>"
    )


def certificate_page(certificate: Mapping[str, Any]) -> str:
    """A page that holds nothing but the card."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Retention certificate</title>'
        f"<style>{STYLE}</style></head><body>{certificate_card(certificate)}</body></html>"
    )


def _row(probe: Mapping[str, Any]) -> str:
    change = probe["protected"] or probe["change"]
    what = " (remembered)" if probe["remembered"] else ""
    accuracy = (
        ""
        if probe["accuracy_before"] is None
        else f"{probe['accuracy_before']:.1%} → {probe['accuracy_after']:.1%}"
    )
    limit = "" if probe["lost_at_most"] is None else f"{probe['lost_at_most']:.1%}"
    cells = (
        f"{probe['name']}{what}",
        f"{probe['samples']:,}",
        accuracy,
        "" if probe["lost"] is None else str(probe["lost"]),
        limit,
        f"{change['measured']:.2%}",
        f"{change['first_order']:.1e}",
        f"{change['curvature']:.1e}",
        f"{change['remainder']:.1e}",
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _facts(certificate: Mapping[str, Any]) -> list[str]:
    found = [f"The weights moved by {certificate['moved']:.2%}."]
    if certificate["limits"]:
        found.insert(0, f"{certificate['limits'].capitalize()}.")
    if certificate["stored"]:
        found.append(f"The method stores {size_text(certificate['stored'])}.")
    if certificate["leak"] is not None:
        against = f", measured against {certificate['protects']}" if certificate["protects"] else ""
        found.append(f"Share of the change inside the protected space: {certificate['leak']:.1e}{against}.")
    if certificate["drift"]:
        numbers = ", ".join(f"{name} {value:.3f}" for name, value in certificate["drift"].items())
        found.append(f"Stored tangents against current ones: {numbers}.")
    if certificate["unprotected"]:
        found.append(f"{len(certificate['unprotected'])} parameters that moved are not protected.")
    return [*found, *(str(note) for note in certificate["notes"])]
