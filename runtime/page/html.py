"""HTML made of elements, so that every text is escaped; the look of a page, its script, its file.

A page is one file.  Its policy lets a browser load nothing from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import refusal, write_whole

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; margin: 0 auto;
  max-width: 1060px; padding: 24px 20px 48px; }
h1 { font-size: 24px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 36px 0 6px; padding-top: 12px; border-top: 1px solid #e4e7eb; }
h3 { font-size: 15px; margin: 18px 0 4px; }
p { margin: 6px 0; max-width: 46em; }
.quiet, caption { color: #616e7c; }
.path, code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
.verdict { border-left: 4px solid #7b8794; padding: 6px 12px; margin: 16px 0; font-size: 16px;
  background: #f5f7fa; max-width: none; }
.complete { border-color: #2f8f5b; } .failed, .lost { border-color: #c0392b; }
.running { border-color: #2667a8; } .stopped { border-color: #d48a1c; }
.verdict b { text-transform: capitalize; }
.facts { display: flex; flex-wrap: wrap; gap: 8px 32px; margin: 12px 0; }
.facts div { min-width: 90px; }
.facts dt { color: #616e7c; font-size: 13px; } .facts dd { margin: 0; font-size: 19px; }
.two { display: grid; gap: 4px 20px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.plot { min-width: 0; width: 100%; }
.whole { white-space: nowrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; margin: 8px 0; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: #52606d; font-size: 13px; }
th, td { padding: 4px 18px 4px 0; vertical-align: top; border-bottom: 1px solid #e4e7eb; }
td { overflow-wrap: anywhere; min-width: 3.5em; }
td:first-child { white-space: nowrap; }
.legend { break-after: avoid; display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 4px 0;
  font-size: 13px; }
.number { text-align: right; white-space: nowrap; }
.bar { display: flex; height: 34px; margin: 10px 0; }
.bar div { min-width: 1px; }
.swatch { display: inline-block; width: 11px; height: 11px; margin-right: 7px; }
.bar, .swatch { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
pre { font: 12px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  background: #f5f7fa; padding: 8px; margin: 4px 0; }
summary { cursor: pointer; color: #2667a8; }
@media (max-width: 560px) { body { padding: 14px 12px 32px; } th, td { padding-right: 12px; } }
@media print { body { max-width: none; padding: 0; font-size: 11pt; }
  h2, h3 { break-after: avoid; } .plot, tr, .bar { break-inside: avoid; } }
@page { margin: 14mm; }
"""

_SCRIPT = """
const plots = [...document.querySelectorAll(".plot")];
const options = {responsive: true, displayModeBar: false};
for (const plot of plots) {
  const {data, layout} = JSON.parse(plot.nextElementSibling.textContent);
  Plotly.newPlot(plot, data, layout, options);
}
addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach(one => { one.open = true; });
  plots.forEach(plot => Plotly.relayout(plot, {width: Math.min(plot.clientWidth, 660)}));
});
addEventListener("afterprint", () => {
  plots.forEach(plot => Plotly.relayout(plot, {width: null, autosize: true}));
});
"""


def element(tag: str, *inside: Element | str, **attributes: str) -> Element:
    """Return an element with texts and elements in it; ``class_`` is ``class``."""
    made = Element(tag, {name.rstrip("_"): value for name, value in attributes.items()})
    last: Element | None = None
    for one in inside:
        if isinstance(one, Element):
            made.append(one)
            last = one
        elif last is None:
            made.text = (made.text or "") + one
        else:
            last.tail = (last.tail or "") + one
    return made


def plot(figure: str, label: str) -> Element:
    """Return the place of a plot with its data; ``label`` is read to those who do not see it."""
    return element(
        "div",
        element("div", class_="plot", role="img", **{"aria-label": label}),
        element("script", figure, type="application/json"),
    )


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Element | str]], numbers: Iterable[int] = ()
) -> Element:
    """Return a table; the columns that ``numbers`` names stand to the right."""
    kinds = {index: {"class_": "number"} for index in numbers}

    def row(tag: str, cells: Sequence[Element | str]) -> Element:
        made = (element(tag, cell, **kinds.get(index, {})) for index, cell in enumerate(cells))
        return element("tr", *made)

    head = [element("thead", row("th", heads))] if any(heads) else []
    body = element("tbody", *(row("td", cells) for cells in rows))
    return element("div", element("table", *head, body), class_="scroll")


def document(title: str, body: Sequence[Element], plotly: str) -> str:
    """Return the whole file."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **{"http-equiv": "Content-Security-Policy", "content": _POLICY}),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", _STYLE),
    )
    without = element("p", "The plots need JavaScript; all else is here without it.")
    scripts = (element("script", plotly), element("script", _SCRIPT))
    whole = element(
        "html", head, element("body", *body, element("noscript", without), *scripts), lang="en"
    )
    return "<!DOCTYPE html>\n" + ElementTree.tostring(whole, "unicode", method="html") + "\n"


def write_page(path: Path, text: str) -> None:
    """Write a page, in the place of an older one; no link is followed there.

    A job neither reads nor lists a page, so it may lie in a run directory, without the lease.

    Raises:
        UsageError: the file cannot be written, or its name is that of something else.
    """
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "no regular file"
        raise UsageError(f"{path} is {kind}; give the page another name with --html FILE")
    try:
        write_whole(path, text.encode(), is_synced=True)
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "give the page another place with --html FILE"
        raise refusal(path, error, f"{path} cannot be written: {reason}; {advice}") from error
