"""LaTeX becomes MathML when the book is built, so that browsers draw it without any script."""

import html
import re
import unicodedata

from latex2mathml.converter import convert


def letter(match: re.Match) -> str:
    "A script or double-struck capital as the character it is: browsers know no other `mathvariant` than normal."
    kind, capital = match[1].upper(), match[2]
    try:
        return f"<mi>{unicodedata.lookup(f'MATHEMATICAL {kind} CAPITAL {capital}')}</mi>"
    except KeyError:  # the few that Unicode had before the others, such as the R of the real numbers
        return f"<mi>{unicodedata.lookup(f'{kind} CAPITAL {capital}')}</mi>"


def mathml(latex: str, display: str) -> str:
    made = convert(latex, display=display)
    made = re.sub(r'<mi mathvariant="(script|double-struck)">([A-Z])</mi>', letter, made)
    if display == "block":  # the index of a sum stands below it
        made = re.sub(r"<msub>(<mo>&#x02211;</mo><mi>\w</mi>)</msub>", r"<munder>\1</munder>", made)
    return re.sub(r"<mi>(log|exp|max|min)</mi>", r'<mo form="prefix" lspace="0.17em" rspace="0.17em">\1</mo>', made)


def on_page_content(content: str, **_) -> str:
    content = re.sub(r'<span class="arithmatex">\\\((.+?)\\\)</span>', lambda m: mathml(html.unescape(m[1]), "inline"), content, flags=re.DOTALL)
    return re.sub(r'<div class="arithmatex">\\\[(.+?)\\\]</div>', lambda m: mathml(html.unescape(m[1]), "block"), content, flags=re.DOTALL)
