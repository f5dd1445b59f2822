"""Style of the page, and the script of its galleries; the page can be read without the script."""

# ruff: noqa: E501

LIGHT = {
    "paper": "#fcfcfa",
    "raised": "#f3f3ef",
    "ink": "#1b1e22",
    "soft": "#5a616a",
    "line": "#dcdcd5",
    "accent": "#b23a12",
    "tint": "#f9e9e2",
}
"""Colours of the page in light mode, by the names of its variables; charts are drawn in them."""

STYLE = f":root {{ {' '.join(f'--{name}:{colour};' for name, colour in LIGHT.items())} color-scheme: light dark; }}\n"
STYLE += """\
@media (prefers-color-scheme: dark) { :root { --paper:#15171a; --raised:#1e2125; --ink:#e9e8e4; --soft:#a3a9b1; --line:#34383e; --accent:#ff9468; --tint:#33211a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; scroll-padding-top: 1rem; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.6 -apple-system, "Segoe UI", Inter, Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: break-word; }
main, header, footer { max-width: 70rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2.25rem; }
h1 { font-size: clamp(1.45rem, 1.15rem + 1.3vw, 2.05rem); line-height: 1.28; font-weight: 500; letter-spacing: -.012em; margin: 1.4rem 0 .75rem; max-width: 54rem; text-wrap: pretty; }
h2 { font-size: 1.45rem; line-height: 1.25; letter-spacing: -.01em; font-weight: 600; margin: 0 0 .5rem; }
h3 { font-size: 1.05rem; font-weight: 600; margin: 2.25rem 0 .5rem; }
h4 { font-size: .9rem; font-weight: 600; margin: 1.5rem 0 .4rem; }
p { margin: 0 0 .9rem; max-width: 42rem; }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: .2em; }
a:hover { text-decoration-color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; border-radius: 2px; }
code, pre { font: .88em/1.6 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
pre { background: var(--raised); padding: .9rem 1.1rem; border-radius: 6px; white-space: pre-wrap; overflow-wrap: anywhere; margin: .4rem 0 1rem; }
section { border-top: 1px solid var(--line); padding: 2.75rem 0 2.25rem; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; top: 1rem; background: var(--paper); padding: .5rem 1rem; z-index: 1; }
.eyebrow, .soft, figcaption, small { color: var(--soft); } .eyebrow, .soft, figcaption, small { font-size: .875rem; line-height: 1.5; }
.eyebrow { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0; max-width: none; } .eyebrow b { color: var(--ink); font-weight: 600; }
nav { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin-left: auto; }
.verdict { font-weight: 700; } .measure { color: var(--soft); } .verdict.leaks { color: var(--accent); } .accent-text { color: var(--accent); font-weight: 600; }
.first { display: grid; grid-template-columns: minmax(0, 31rem) minmax(0, 1fr); gap: 1rem 2.75rem; align-items: start; margin: 1.25rem 0 0; } .first.alone { grid-template-columns: minmax(0, 1fr); }
figure { margin: 0; } figcaption { margin-top: .6rem; max-width: 40rem; }
.chart svg { display: block; max-width: 100%; height: auto; overflow: visible; } .chart.narrow { display: none; }
.worst, .gallery { list-style: none; margin: 0; padding: 0; display: grid; gap: 1.1rem; } .worst { grid-template-columns: repeat(4, minmax(0, 1fr)); } .gallery { grid-template-columns: repeat(auto-fill, minmax(10.25rem, 1fr)); gap: 1.5rem 1.25rem; }
.worst .pair { display: grid; gap: 4px; } .gallery .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 4px; } .worst.tabular, .gallery.tabular { grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); } .gallery.tabular:has(.texts) { grid-template-columns: repeat(auto-fill, minmax(min(18rem, 100%), 1fr)); } .gallery .pair.tabular, .worst .pair.tabular { display: block; }
.pair img, .absent { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 3px; background: var(--raised); } .pair img { image-rendering: pixelated; } .absent { display: grid; place-items: center; color: var(--soft); font-size: .8rem; border: 1px dashed var(--line); }
.texts { padding: .35rem .5rem; } .texts .line { font: .8rem/1.5 ui-monospace, "DejaVu Sans Mono", monospace; white-space: break-spaces; word-break: break-all; color: var(--ink); } .texts .line + .line { border-top: 1px solid var(--line); } .texts mark { background: none; color: var(--accent); text-decoration: underline; } .strip { display: block; width: 100%; background: var(--raised); height: auto; border-radius: 4px; } .under { font-size: .8125rem; line-height: 1.45; margin-top: .4rem; color: var(--soft); } .under b { color: var(--ink); font-weight: 600; font-size: .9rem; } .recovered .under b { color: var(--accent); }
.asked { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); gap: 1rem 2.5rem; margin: 1.25rem 0 1.5rem; padding: 1.1rem 0; border: 1px solid var(--line); border-width: 1px 0; } .asked dt { font-weight: 600; line-height: 1.4; } .asked dt small { font-weight: 400; } .asked dd { margin: .3rem 0 0; } .asked b { font-size: 1.15rem; font-weight: 600; } .asked small { display: block; }
.keyfacts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1.25rem 2rem; margin: 0 0 2.75rem; padding-top: 1.5rem; border-top: 1px solid var(--line); } .keyfacts dt { color: var(--soft); font-size: .875rem; line-height: 1.4; } .keyfacts dd { margin: 0 0 .15rem; font-size: 1.4rem; line-height: 1.3; font-weight: 500; letter-spacing: -.01em; } .keyfacts div { display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.scroll { overflow-x: auto; margin: .5rem 0 1.25rem; } .scroll.long { max-height: 30rem; border-bottom: 1px solid var(--line); } .long thead th { position: sticky; top: 0; background: var(--paper); } table { border-collapse: collapse; font-size: .875rem; line-height: 1.45; }
th, td { text-align: right; padding: .45rem 0 .45rem 1.25rem; border-bottom: 1px solid var(--line); vertical-align: baseline; white-space: nowrap; } thead th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { padding-left: 0; } .text, th[scope=row] { text-align: left; } th[scope=row] { font-weight: 500; } th.wrap { white-space: normal; min-width: 9.5rem; } .controls th.wrap { min-width: 12rem; max-width: 20rem; } .controls td.wrap { white-space: normal; min-width: 16rem; max-width: 30rem; } tr.answer td, tr.answer th { background: var(--raised); }
h3 + .columns h4:first-child { margin-top: .5rem; } .columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 0 3.5rem; } .columns > * { min-width: 0; } .plainlist { padding-left: 1.1rem; margin: .4rem 0 1rem; max-width: 42rem; } .plainlist li { margin-bottom: .4rem; } .plainlist li::marker { color: var(--soft); }
.facts { margin: .4rem 0 1rem; font-size: .9rem; max-width: 42rem; } .facts div { display: grid; grid-template-columns: 9rem minmax(0, 1fr); gap: 1rem; padding: .35rem 0; border-bottom: 1px solid var(--line); } .facts dt { color: var(--soft); } .facts dd { margin: 0; overflow-wrap: anywhere; }
.notice { background: var(--tint); border-left: 3px solid var(--accent); padding: .65rem 1.1rem; border-radius: 0 6px 6px 0; margin: 0 0 1.5rem; max-width: 54rem; font-size: .9rem; line-height: 1.5; } .notice ul { margin: .15rem 0 0; padding-left: 1.1rem; } .notice b { color: var(--accent); }
details { margin: .5rem 0 1rem; } summary { cursor: pointer; font-size: .9375rem; padding: .35rem 0; } summary:hover { color: var(--accent); }
footer { padding-bottom: 3rem; }
.decision .strip { max-height: 18rem; overflow: auto; } .share { position: relative; height: .6rem; margin: .35rem 0 1.9rem; max-width: 26rem; background: var(--raised); border-radius: .3rem; } .share i, .share b { position: absolute; top: 0; height: 100%; background: var(--soft); opacity: .55; border-radius: .3rem; } .share b { width: .6rem; margin-left: -.3rem; background: var(--accent); opacity: 1; } .share small { position: absolute; top: .75rem; } .share small:last-child { right: 0; }
.decision { border-top: 0; padding-top: .5rem; } .decision h1 { margin-top: .6rem; } .decision h2 { font-size: 1.15rem; margin-top: .5rem; } .decision .columns { grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); } .meaning p { margin-bottom: .5rem; max-width: 54rem; } .asks { padding-left: 1.3rem; } .asks b { font-weight: 600; display: block; } .flag { white-space: nowrap; } .finding { font-size: 1.15rem; line-height: 1.45; max-width: 54rem; } dfn { font-style: normal; font-weight: 600; }
.stacked { width: 100%; } .stacked td, .stacked th { white-space: normal; vertical-align: top; } .sentences.two { columns: 22rem 2; column-gap: 3.5rem; } .sentences.two div { break-inside: avoid; }
.caption { font-size: .875rem; } .keyfacts small { display: block; } .fails { font-size: .9rem; } .printed { display: none; }
.worst a { display: block; text-decoration: none; } .sample { margin: 0; } .sample > summary { list-style: none; padding: 0; border-radius: 4px; } .sample > summary::-webkit-details-marker { display: none; } .sample > summary:hover { color: inherit; } .sample > summary:hover .under b { text-decoration: underline; text-underline-offset: .2em; } li:has(> .sample[open]) { grid-column: 1 / -1; } .sample[open] .pair { max-width: 22rem; }
.gallery.bare { grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)); gap: .25rem 1.25rem; } .gallery.bare li { border-bottom: 1px solid var(--line); padding-bottom: .5rem; }
dialog { width: min(46rem, calc(100vw - 2rem)); max-height: calc(100dvh - 2rem); padding: 1.25rem 1.5rem 1.5rem; border: 1px solid var(--line); border-radius: 8px; background: var(--paper); color: var(--ink); overflow: auto; } dialog::backdrop { background: rgb(0 0 0 / .55); } dialog .bar { display: flex; align-items: center; gap: .5rem; margin-bottom: 1rem; position: sticky; top: -1.25rem; background: var(--paper); padding: .25rem 0; } dialog .bar p { margin: 0 auto 0 0; font-size: .875rem; color: var(--soft); }
dialog button { font: inherit; font-size: .875rem; min-height: 2.5rem; padding: .25rem .9rem; color: inherit; background: var(--raised); border: 1px solid var(--line); border-radius: 6px; cursor: pointer; } dialog button:hover { border-color: var(--accent); } dialog .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 8px; } dialog .pair.tabular { display: block; } dialog .under { margin: .75rem 0 1rem; } dialog .facts { max-width: none; font-size: .875rem; }
.sentences dt { font-weight: 600; margin-top: .6rem; } .sentences dd { margin: 0; max-width: 42rem; }
@media screen and (max-width: 62rem) { .first { grid-template-columns: minmax(0, 1fr); } nav { margin-left: 0; width: 100%; } }
@media screen and (max-width: 42rem) { .stacked thead { display: none; } .stacked tr { display: block; border-bottom: 1px solid var(--line); padding: .4rem 0; } .stacked th, .stacked td { display: block; border: 0; padding: .15rem 0; } .stacked td::before { content: attr(data-name) ": "; color: var(--soft); } .chart.wide { display: none; } .chart.narrow { display: block; } .gallery { grid-template-columns: repeat(2, minmax(0, 1fr)); } .gallery.tabular, .gallery.bare { grid-template-columns: 1fr; } th, td { padding-left: 1rem; } .columns th[scope=row] { white-space: normal; min-width: 8rem; } .worst:not(.tabular) { grid-template-columns: repeat(2, minmax(0, 8rem)); } .worst li:nth-child(n+3) { display: none; } header { padding-top: 1.5rem; } section { padding: 2rem 0 1.5rem; } dialog { padding: .75rem 1rem 1rem; } dialog .bar { top: -.75rem; } dialog .bar p { flex-basis: 100%; } dialog .bar { flex-wrap: wrap; } dialog .bar button { flex: 1; } }
@page { size: A4; margin: 15mm 15mm 16mm; }
@media print {
html { font-size: 12px; } :root { --paper:#fff; --raised:#f4f4f4; --ink:#000; --soft:#555; --line:#ccc; --accent:#a33410; --tint:#fff; color-scheme: light; }
nav, .skip, dialog, .onscreen { display: none !important; } .printed { display: block; } body { font-size: 9pt; line-height: 1.45; print-color-adjust: exact; -webkit-print-color-adjust: exact; } main, header, footer { max-width: none; padding: 0; } header { padding: 0; } h1 { font-size: 15pt; margin: .6rem 0; max-width: none; } h2 { font-size: 13pt; } p, .plainlist, .facts, .sentences dd, figcaption { max-width: none; } section { padding: .9rem 0 .6rem; } h3 { margin: 1.1rem 0 .3rem; } .scroll { margin: .3rem 0 .6rem; }
.chart.wide { display: block; } .chart.narrow { display: none; } .decision .strip { max-height: none; overflow: visible; } .first { grid-template-columns: 44% minmax(0, 1fr); gap: 0 1.2rem; margin: .4rem 0; } #figures .chart svg { width: 75%; } #results .chart svg { width: 55%; } .scroll:not(.long) { break-inside: avoid; } #training .chart svg { width: 75%; } .first figcaption { font-size: .8rem; } .worst:not(.tabular) { grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .4rem; } .worst.tabular { grid-template-columns: minmax(0, 1fr); gap: .4rem; } .asked { grid-template-columns: repeat(3, minmax(0, 1fr)); gap: .3rem 1.2rem; margin: .5rem 0; padding: .4rem 0; } .asked dt { font-size: .85rem; line-height: 1.25; } .asked dd { margin: 0; line-height: 1.25; } .asked b { font-size: .95rem; } .asked small { display: none; } .keyfacts { margin: 0 0 .6rem; padding-top: .7rem; gap: .5rem 1.2rem; grid-template-columns: repeat(auto-fit, minmax(6.5rem, 1fr)); } .keyfacts dd { font-size: 1.05rem; } .keyfacts dt, .keyfacts small { font-size: .75rem; line-height: 1.3; }
.scroll, .scroll.long { overflow: visible; max-height: none; border: 0; } .long thead th { position: static; } table { font-size: 7.6pt; max-width: 100%; } th, td { padding: .25rem 0 .25rem .55rem; white-space: normal; } th.wrap, .controls th.wrap, .controls td.wrap { min-width: 0; max-width: none; } pre, code { overflow-wrap: anywhere; } .columns { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 1.5rem; }
.gallery { grid-template-columns: repeat(4, minmax(0, 1fr)); gap: .7rem; } .gallery.tabular { grid-template-columns: repeat(2, minmax(0, 1fr)); } .gallery > li:nth-child(n+9), details:not([open]):not(.sample), .sample > :not(summary) { display: none; }
.decision { font-size: 8.6pt; line-height: 1.38; padding: .2rem 0; } .decision h1 { margin: .3rem 0; font-size: 14pt; } .decision h2 { font-size: 11pt; margin: .5rem 0 .2rem; } .decision p, .decision .plainlist { margin: 0 0 .3rem; } .decision .plainlist li { margin-bottom: .12rem; } .decision .asked { margin: .3rem 0; } .decision .asked small { display: block; font-size: .72rem; } .decision .soft { font-size: 7.6pt; line-height: 1.35; }
@supports selector(::details-content) { details.paper:not([open]) { display: block !important; } details.paper::details-content { content-visibility: visible; display: block; height: auto; } } details.paper > summary { font-weight: 600; list-style: none; }
#gallery { break-before: page; border-top: 0; } #training > p, #gallery p, summary, details > p { break-after: avoid; }
.whole { break-before: page; break-after: page; border-top: 0; } .whole + section { border-top: 0; } .whole .facts, .whole p, .whole li, .whole dl { font-size: 9.5pt; } .whole h3 { margin: .8rem 0 .25rem; font-size: 11pt; } .whole p, .whole .plainlist { margin: 0 0 .35rem; } .whole .plainlist li { margin-bottom: .15rem; } .sentences dt { margin-top: .25rem; }
li, tr, figure, .notice { break-inside: avoid; } h2, h3, h4 { break-after: avoid; } thead { display: table-header-group; } a { text-decoration: none; }
}
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
"""

SCRIPT = """\
let folded = [];
addEventListener("beforeprint", () => { folded = [...document.querySelectorAll("details.paper:not([open])")]; folded.forEach((one) => (one.open = true)); });
addEventListener("afterprint", () => folded.forEach((one) => (one.open = false)));
addEventListener("hashchange", () => { const aim = document.getElementById(location.hash.slice(1)); const one = aim && aim.closest("details"); if (one) one.open = true; });
const box = document.querySelector("dialog"), body = box && box.querySelector(".body"), place = box && box.querySelector(".place");
let row = [], at = 0;
const samplesOf = (one) => [...one.closest("[data-gallery]").querySelectorAll(".sample > summary")];
function uncover(one) {
  const folded = one.closest("details.rest");
  if (folded) folded.open = true;
}
function show(index) {
  at = (index + row.length) % row.length;
  const card = row[at].parentElement;
  body.replaceChildren(...[...row[at].children, ...card.querySelectorAll(".facts")].map((part) => part.cloneNode(true)));
  place.textContent = `${at + 1} of ${row.length}: ${row[at].closest("[data-gallery]").dataset.gallery}`;
  box.scrollTop = 0;
}
function columnsOf(list) {
  const top = list[0].getBoundingClientRect().top;
  return Math.max(1, list.findIndex((one) => one.getBoundingClientRect().top > top + 4));
}
document.addEventListener("click", (event) => {
  const summary = event.target.closest(".sample > summary");
  if (!summary || !box) return;
  event.preventDefault();
  row = samplesOf(summary);
  show(row.indexOf(summary));
  box.showModal();
});
document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || !box) return;
  const step = { ArrowLeft: -1, k: -1, ArrowRight: 1, j: 1 }[event.key] || 0;
  if (box.open) {
    if (step) show(at + step);
    if (step) event.preventDefault();
    return;
  }
  const summary = event.target.closest(".sample > summary");
  const list = summary ? samplesOf(summary).filter((one) => one.checkVisibility()) : [];
  const rows = { ArrowUp: -1, ArrowDown: 1 }[event.key] || 0;
  const next = list[list.indexOf(summary) + (step || rows * (rows && columnsOf(list)))];
  if (!summary || !(step || rows)) return;
  event.preventDefault();
  if (next) next.focus();
});
if (box) {
  box.querySelector(".previous").addEventListener("click", () => show(at - 1));
  box.querySelector(".next").addEventListener("click", () => show(at + 1));
  box.querySelector(".close").addEventListener("click", () => box.close());
  box.addEventListener("click", (event) => event.target === box && box.close());
  box.addEventListener("close", () => {
    uncover(row[at]);
    row[at].focus();
    body.replaceChildren();
  });
}
"""
