"""The report's style sheet: one column, light and dark, no font or picture from elsewhere."""

CSS = """
:root { color-scheme: light dark; --paper: #fcfcfb; --card: #ffffff; --ink: #1c1f23; --soft: #5c646e; --line: #dfe2e6;
  --train: #1f6feb; --val: #c2570c; --good: #1a7f37; --warn: #9a6700; --bad: #cf222e; --stretch: #cf222e22;
  --cell: 31 111 235; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --card: #1c2024; --ink: #e4e7ea; --soft: #9aa3ad;
  --line: #333a42; --train: #6ea8fe; --val: #f0a35e; --good: #56d364; --warn: #e3b341; --bad: #ff7b72;
  --stretch: #ff7b7226; --cell: 110 168 254; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 1180px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.4rem 0 .7rem; }
h3 { font-size: 1rem; margin: 0; } p { margin: .4rem 0; max-width: 80ch; }
.soft, .nothing { color: var(--soft); } code { font: .9em ui-monospace, "Cascadia Mono", Menlo, monospace;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: .87rem; } th.name, td.name { text-align: left; }
td.wrap { white-space: normal; text-align: left; } tr.last td { font-weight: 600; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem 1.2rem; margin: .9rem 0; }
.head { display: flex; gap: .7rem; align-items: baseline; flex-wrap: wrap; }
.badge { border: 1px solid currentColor; border-radius: 999px; padding: .05rem .6rem;
  font-size: .82rem; font-weight: 600; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.charts { display: grid; gap: .6rem; margin-top: .7rem;
  grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); }
svg { width: 100%; height: auto; display: block; } svg path { fill: none; }
svg .train { stroke: var(--train); stroke-width: 2; } svg .val { stroke: var(--val); stroke-width: 2; }
svg .faint { stroke: var(--train); stroke-width: 1; opacity: .35; } svg .grid { stroke: var(--line); }
svg .stretch { fill: var(--stretch); } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .title { fill: var(--ink); font-size: 12.5px; font-weight: 600; }
.finding { border-left: 3px solid var(--line); padding-left: .9rem; margin: .8rem 0; }
.confusion td { padding: .25rem .5rem; text-align: center; border: 1px solid var(--line); min-width: 2.6rem; }
.confusion th { border: 0; text-align: center; padding: .25rem .5rem; } .confusion th.name { text-align: right; }
.confusion td { background: rgb(var(--cell) / calc(var(--share) * .75)); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .4rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
details summary { cursor: pointer; color: var(--soft); margin-top: .6rem; }
"""
