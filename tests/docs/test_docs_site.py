"""The documentation site: builds without a warning, leads everywhere, needs no network, and works in a browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from documents import ROOT
from playwright.sync_api import Browser, Page

from report.browsing import chromium

PAGES = sorted(p.relative_to(ROOT / "docs").with_suffix(".html") for p in (ROOT / "docs").rglob("*.md"))
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
LOOKED_AT = [
    "index.html",
    "configuration.html",
    "metrics.html",
    "methods/lander.html",
    "api/geometry.html",
    "reproduction.html",
    "source/configs/digits.toml.html",
]


def build(docs: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build as ``make docs`` does, but for the functions in tables of contents: copying these is half the work."""
    strict = ["--quiet", "--fresh-env", "--fail-on-warning", "--keep-going", "--doctree-dir", f"{out}-doctrees"]
    command = [sys.executable, "-m", "sphinx", *strict, "-D", "toc_object_entries=0", docs, out]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


class Tags(HTMLParser):
    """The tags of a page that name something or lead somewhere: all that two hundred pages are asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if any(name in ("id", "href", "src") for name, _ in attrs):
            self.found.append((tag, dict(attrs)))

    def values(self, key: str, tag: str | None = None) -> set[str]:
        return {str(attrs[key]) for name, attrs in self.found if key in attrs and tag in (None, name)}


@pytest.fixture(scope="module")
def tags(site: Path) -> dict[Path, Tags]:
    return {path: Tags(path) for path in sorted(site.rglob("*.html"))}


def soup_of(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(), "html.parser")


pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("site")]  # built once


def test_the_makefile_builds_the_same_way() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
    for word in ("--fail-on-warning", "--keep-going", "--fresh-env", "docs site"):
        assert word in recipe


def test_every_page_is_in_the_navigation(site: Path) -> None:
    sidebar = soup_of(site / "index.html").select(".sidebar-tree a.reference.internal")
    named = {Path(str(a["href"]).partition("#")[0]) for a in sidebar}
    assert {page for page in PAGES if page not in named} == {Path("index.html")}


def test_links_and_anchors_inside_lead_somewhere(tags: dict[Path, Tags]) -> None:
    anchors = {path: page.values("id") for path, page in tags.items()}
    checked, broken = 0, []
    for path, page in tags.items():
        for href in page.values("href", "a"):
            parts = urlsplit(href)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            checked += 1
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors.get(target, set())):
                broken.append(f"{path.name}: {href}")
    assert checked > 1000
    assert [b for b in broken if not b.endswith((": #", ": #top"))] == []


def test_equations_are_typeset(site: Path) -> None:
    for page in ("metrics", "calibration", "pieces", "methods/egc", "methods/gsa", "methods/lander"):
        soup = soup_of(site / f"{page}.html")
        assert soup.select(".equation math[display=block]"), page
        for code in soup.select("pre, code"):
            code.decompose()
        assert not re.search(r"\$[^$\n]*\$|\\[a-z]{2}", soup.select_one("article").get_text()), page  # type: ignore[union-attr]


def test_an_equation_that_cannot_be_typeset_is_refused(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT / 'docs' / '_site')!r})\n"
        'extensions = ["myst_parser", "mathml"]\n'
        'myst_enable_extensions = ["dollarmath"]\nhtml_math_renderer = "mathml"\n'
    )
    (docs / "index.md").write_text("# Some page\n\n$$\n\\unheardof{x}\n$$\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode == 1
    assert "unheardof" in done.stderr


def test_nothing_is_loaded_from_elsewhere(tags: dict[Path, Tags], site: Path) -> None:
    for path, page in tags.items():
        loaded = [address for name, key in LOADS.items() for address in page.values(key, name) if address]
        assert loaded
        assert [address for address in loaded if urlsplit(address).netloc] == [], path.name
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", style.read_text()), style.name


def test_the_site_names_no_path_of_this_machine(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert str(ROOT) not in path.read_text(), path.name


def test_a_link_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "_site").symlink_to(ROOT / "docs" / "_site")
    (docs / "conf.py").write_text('import sys\nsys.path.insert(0, "docs/_site")\nextensions = ["myst_parser"]\n')
    (docs / "index.md").write_text("# Some page\n\n[nothing](nowhere.md)\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def visit(browser: Browser, address: str, width: int, scheme: str) -> tuple[Page, list[str], list[str]]:
    """Open a page from disk; return it with what it complained about and what it asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.set_default_timeout(120_000)  # machines are busy
    page.goto(address)
    return page, complaints, requests


@pytest.mark.browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1600, "light")])
def test_pages_fit_and_stay_offline(site: Path, browser: Browser, width: int, scheme: str) -> None:
    for name in LOOKED_AT:
        page, complaints, requests = visit(browser, (site / name).as_uri(), width, scheme)
        assert complaints == []
        assert [r for r in requests if not r.startswith(("file:", "data:"))] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width}"
        red, green, blue = map(
            int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]
        )
        assert (red + green + blue < 300) == (scheme == "dark")
        page.close()


@pytest.mark.browser
def test_code_can_be_copied_by_a_button_that_shows(site: Path, browser: Browser) -> None:
    page, complaints, _ = visit(browser, (site / "pieces.html").as_uri(), 1200, "light")
    button = page.locator("button.copybtn").first
    button.wait_for()
    assert float(button.evaluate("b => getComputedStyle(b).opacity")) > 0.5  # no mouse is near
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button.click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("import torch\n")
    assert complaints == []
    page.close()


@pytest.mark.browser
def test_search_works_from_disk(site: Path, browser: Browser) -> None:
    page, complaints, _ = visit(browser, (site / "search.html").as_uri() + "?q=orthonormal_basis", 1200, "light")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results a[href*='api/geometry']").count() > 0
    assert complaints == []
    page.close()
