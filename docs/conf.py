"""The documentation site: Sphinx reads the Markdown in this folder. `make docs` builds it into site/."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_site"), str(HERE.parent / "src")]

from fedfeat import __version__  # noqa: E402

project = "fedfeat"
author = "the fedfeat authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
extensions += ["repository", "quiet_autodoc", "mathml"]  # our own, in _site
exclude_patterns = ["_site"]

# Page -> caption -> pages below it. Kept here and not in the pages, which are also read on a code host.
navigation = {
    "index": {
        "Learn": ["tutorial/index", "pieces"],
        "Guides": [
            "commands",
            "data",
            "scenarios",
            "models",
            "runs",
            "report",
            "sweeps",
            "write-your-own-method",
            "predict",
            "trackers",
            "engines",
            "flower",
            "privacy",
            "secure-aggregation",
            "robust",
            "hospital",
            "attacks",
        ],
        "Reference": ["metrics", "configuration", "methods/index", "communication", "calibration", "api/index"],
        "Results": ["recipe", "digits", "reproduction", "figures"],
        "Project": ["peers", "architecture", "contributing", "changelog"],
    },
    "tutorial/index": {
        "": [
            "install",
            "first-run",
            "read-the-report",
            "compare-and-sweep",
            "your-own-images",
            "your-own-method",
            "use-the-model",
            "on-a-gpu",
            "in-a-federation",
        ]
    },
    "methods/index": {"": ["*"]},
    "api/index": {"": ["geometry", "replay", "methods", "experiment", "trained", "data", "scenario", "evaluate"]},
}

myst_enable_extensions = ["dollarmath"]  # $...$ and $$...$$, as a code host reads them
myst_dmath_double_inline = False
html_math_renderer = "mathml"
myst_heading_anchors = 4  # the same anchors as on a code host, so links work in both places
suppress_warnings = ["myst.header"]  # a page may begin with a heading of any level

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "fedfeat"
html_logo = html_favicon = "images/logo.svg"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_copy_source = False  # the Markdown is in the repository
html_show_copyright = False
html_show_search_summary = False  # they are fetched, which a page opened from disk may not do
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b5c8c", "color-brand-content": "#0b5c8c"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f0", "color-brand-content": "#7cc4f0"},
}
