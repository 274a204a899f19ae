"""Tables for people: HTML in a notebook, Markdown in a README, columns of text elsewhere. Numbers have three digits."""

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text under a header. A cell may have several lines, and a row fewer cells than the header.

    folded: a title; the notebook and the README show only that until the reader unfolds the table.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: str = ""

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self._whole_rows()]
        cells = [[str(cell).replace("|", r"\|").replace("\n", "<br>") for cell in line] for line in lines]
        text = "\n".join("| " + " | ".join(line) + " |" for line in cells)
        return f"<details>\n<summary>{self.folded}</summary>\n\n{text}\n\n</details>" if self.folded else text

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="text-align:left">{_escaped(cell)}</th>' for cell in self.header)
        body = "".join(
            "<tr>" + "".join(f'<td style="text-align:left">{_escaped(cell)}</td>' for cell in row) + "</tr>"
            for row in self._whole_rows()
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<details><summary>{_escaped(self.folded)}</summary>{table}</details>" if self.folded else table

    def __repr__(self) -> str:
        if self.folded:
            return f"{self.folded}: {len(self.rows)} rows"
        lines = [[str(cell).replace("\n", "; ") for cell in line] for line in (self.header, *self._whole_rows())]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join(line.rstrip() for line in padded)

    def _whole_rows(self) -> list[list[str]]:
        return [[*row, *[""] * (len(self.header) - len(row))] for row in self.rows]


def number(value: float | str | None, digits: int = 3) -> str:
    """A number to `digits` significant digits without an exponent, None as a dash, text as it is."""
    if value is None:
        return "–"
    if isinstance(value, str | bool):
        return " ".join(str(value).split())
    size = abs(value)
    if size == float("inf"):
        return f"{value:g}"
    if size >= 1e6:
        return f"{number(value / 1e6, digits) if size < 1e12 else f'{value / 1e6:,.0f}'} million"
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    if 0 < size < 1e-5:
        return "under 0.00001"
    text = f"{value:.{digits}g}"
    return f"{value:.{digits + 4}f}".rstrip("0") if "e" in text else text


def _escaped(text: str) -> str:
    return html.escape(str(text)).replace("\n", "<br>")
