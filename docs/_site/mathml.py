"""A Sphinx extension: equations become MathML while the site is built, so a page needs no script and no network.

Docutils, which Sphinx is built on, brings the converter from TeX.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def mathml(node: nodes.math | nodes.math_block) -> str:
    """Return an equation as MathML; TeX that cannot be converted is a warning of the build."""
    tex = node.astext()
    try:
        return tex2mathml(tex, as_block=isinstance(node, nodes.math_block))
    except MathError as error:
        logger.warning("the equation %r cannot be typeset: %s", tex, error, location=node)
        return ""


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write an equation inside a line."""
    self.body.append(mathml(node))
    raise nodes.SkipNode


def visit_displaymath(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write an equation on lines of its own; a wide one scrolls in its box."""
    self.body.append(f'<div class="equation">{mathml(node)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
