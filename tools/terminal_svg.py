#!/usr/bin/env python3
"""Draws what a program printed as a terminal window in SVG.

    CLICOLOR_FORCE=1 python3 tools/demo.py | python3 tools/terminal_svg.py --command './dev demo' docs/images/demo.svg

Standard input is the output as it came; bold and the eight colours of SGR sequences are kept, other escapes dropped.
Every piece of a line has its width written down, so columns stand whatever monospaced font the viewer has."""
import argparse
import re
import sys
from html import escape

ADVANCE, LINE, SIZE, MARGIN, BAR = 8.4, 19, 14, 20, 38  # pixels: of a character, a line, the font, the sides, the title
COLOURS = {30: "#5c6773", 31: "#ff6b68", 32: "#7fd962", 33: "#ffb454", 34: "#59c2ff", 35: "#d2a6ff", 36: "#95e6cb",
           37: "#e6e1cf"}
BACK, FRONT, DIM, TITLE = "#0f1419", "#d9d7ce", "#8a9199", "#1b222b"
SGR = re.compile(r"\x1b\[([0-9;]*)m")
OTHER = re.compile(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]|\r")


def pieces(line):
    """(text, colour, bold) of a line, by its SGR sequences."""
    colour, bold, at = FRONT, False, 0
    for m in SGR.finditer(line):
        if m.start() > at:
            yield line[at:m.start()], colour, bold
        for code in map(int, (m.group(1) or "0").split(";")):
            if code == 0:
                colour, bold = FRONT, False
            elif code == 1:
                bold = True
            elif code == 2:
                colour = DIM
            elif code in COLOURS:
                colour = COLOURS[code]
        at = m.end()
    if at < len(line):
        yield line[at:], colour, bold


def draw_line(line, y):
    out, x = [], 0
    for text, colour, bold in pieces(line):
        lead = len(text) - len(text.lstrip(" "))
        body = text.strip(" ")
        if body:
            left = MARGIN + (x + lead) * ADVANCE
            weight = ' font-weight="bold"' if bold else ""
            shown = escape(body).replace("  ", "\u00a0\u00a0")
            out.append(f'<text x="{left:.1f}" y="{y}" fill="{colour}"{weight} textLength="{len(body) * ADVANCE:.1f}" '
                       f'lengthAdjust="spacing">{shown}</text>')
        x += len(text)
    return "\n".join(out)


def draw(lines, title):
    columns = max(len(SGR.sub("", line)) for line in lines)
    width, height = int(columns * ADVANCE + 2 * MARGIN), BAR + len(lines) * LINE + 2 * MARGIN - 6
    dots = "".join(f'<circle cx="{20 + 20 * i}" cy="{BAR / 2}" r="6" fill="{c}"/>'
                   for i, c in enumerate(("#ff5f56", "#ffbd2e", "#27c93f")))
    body = "\n".join(filter(None, (draw_line(line, BAR + MARGIN + 10 + i * LINE) for i, line in enumerate(lines))))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">
<title>{escape(title)}</title>
<rect width="{width}" height="{height}" rx="8" fill="{BACK}"/>
<path d="M0 {BAR}V8a8 8 0 0 1 8-8H{width - 8}a8 8 0 0 1 8 8V{BAR}z" fill="{TITLE}"/>{dots}
<text x="{width / 2}" y="{BAR / 2 + 5}" fill="{DIM}" text-anchor="middle" font-family="sans-serif" font-size="13">{escape(title)}</text>
<g font-family="'DejaVu Sans Mono','Menlo','Consolas',monospace" font-size="{SIZE}">
{body}
</g>
</svg>
"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", help="file to write")
    p.add_argument("--command", default="", help="shown as typed, before the output")
    p.add_argument("--title", default="SparseEngine", help="of the window")
    args = p.parse_args()
    lines = [OTHER.sub("", line) for line in sys.stdin.read().expandtabs().rstrip("\n").split("\n")]
    if args.command:
        lines.insert(0, f"\x1b[32m$\x1b[0m \x1b[1m{args.command}\x1b[0m")
    with open(args.out, "w", encoding="utf-8") as f:
        f.write(draw(lines, args.title))


if __name__ == "__main__":
    main()
