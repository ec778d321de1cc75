# SPDX-License-Identifier: MIT
"""What our HTML pages share: one file with everything in it, no script, no request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from slurm_pal.base.errors import MissingPackageError
from slurm_pal.report.drawing import INK, LINE, PAPER, SOFT, Picture

try:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
except ImportError as error:
    raise MissingPackageError("the page needs Jinja2: apt-get install python3-jinja2, or pip install jinja2") from error

STYLE = "style.css"
FOLLOWING = {INK: "var(--ink)", SOFT: "var(--soft)", LINE: "var(--line)", PAPER: "var(--paper)"}
"""Colours of a picture that follow the page's scheme, light or dark."""


def rendered(package: str, template: str, content: Mapping[str, Any]) -> str:
    """The page of a template beside the modules of `package`; all content is escaped.

    The template gets our style sheet as `style`. Raises jinja2's errors for a name that is not in `content`.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    style = Markup(_data(__package__ or "", STYLE))  # safe unescaped: our own file
    return environment.from_string(_data(package, template)).render(style=style, **content) + "\n"


def _data(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def inline(picture: Picture) -> Markup:
    """The SVG as part of a page: no prologue, comments, metadata or namespaces, ids of its own.

    matplotlib numbers ids anew in every picture; two pictures on one page would share clip
    paths. HTML implies the namespaces, so the page holds no address at all.
    """
    text = picture.images["svg"].decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\sid="', rf' id="{picture.name}-', text)
    text = re.sub(r'href="#', f'href="#{picture.name}-', text).replace("url(#", f"url(#{picture.name}-")
    for colour, variable in FOLLOWING.items():
        text = text.replace(f": {colour}", f": {variable}")
    # The width is the page's; the viewBox keeps the proportions.
    text = re.sub(r'<svg\b([^>]*?)\swidth="[^"]*"', r"<svg\1", text, count=1)
    text = re.sub(r'<svg\b([^>]*?)\sheight="[^"]*"', r"<svg\1", text, count=1)
    label = Markup('<svg role="img" aria-label="{}"').format(f"{picture.title}. {picture.caption}")
    # Safe unescaped: our own drawing, in which names are outlines.
    return Markup(text.strip().replace("<svg", label, 1))
