"""The documentation builds without a warning, and its command line is that of the parsers."""

import re

import pytest
from pages import ROOT

from fairseq_mm.cli.main import SUBCOMMANDS


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    config = pytest.importorskip("mkdocs.config", reason="needs the extra `docs`")
    for name in ("material", "mkdocstrings"):
        pytest.importorskip(name, reason="needs the extra `docs`")
    from mkdocs.commands.build import build

    folder = tmp_path_factory.mktemp("site")
    build(config.load_config(str(ROOT / "mkdocs.yml"), strict=True, site_dir=str(folder)))
    return folder


def test_every_page_is_built_and_in_the_navigation(site):
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.stem != "index"]
    names = [str(path.relative_to(ROOT / "docs").with_suffix("")) for path in pages]
    assert [name for name in names if not (site / f"{name}.html").is_file()] == []
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert [name for name in names if f"{name}.md" not in navigation] == []


def test_commands_and_the_python_interface_are_described(site):
    page = (site / "command_line.html").read_text("utf-8")
    assert set(re.findall(r'<h2 id="([\w-]+)"', page)) == set(SUBCOMMANDS)
    assert "--tune-temperature" in page
    assert 'id="fairseq_mm.from_pretrained"' in (site / "api.html").read_text("utf-8")


def test_search_needs_no_server_and_no_other_site(site):
    page = (site / "tasks" / "visual_storytelling.html").read_text("utf-8")
    assert (site / "search" / "search_index.js").is_file()
    assert 'src="../javascripts/iframe-worker.js"' in page
    assert re.findall(r'<script[^>]* src="(?:https?:)?//', page) == []
    assert 'data-md-component="source"' not in page
