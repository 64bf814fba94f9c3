# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation: what its hook makes of links and pictures, and that every page can be found."""

from __future__ import annotations

import re

import pytest

from docs.site.definitions import is_name, line_of
from docs.site.links import Link, links, replace_links, replace_pictures
from docs.site.sources import ROOT, page_of, page_text


def test_navigation_lists_every_page():
    """The other way round, a page in the navigation that does not exist, fails the build."""
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r"(\S+\.md)$", navigation, re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert not pages - listed, "add these to nav in mkdocs.yml"


def test_links_are_found_outside_code():
    text = "[a](b.md#c) and `[no](x)`\n\n```sh\n[no](y)\n```\n\n![i](img/p.png) [`f`](../m.py)\n[over\nlines](z.md)\n"
    assert [(link.text, link.target) for link in links(text)] == [
        ("a", "b.md#c"),
        ("i", "img/p.png"),
        ("`f`", "../m.py"),
        ("over\nlines", "z.md"),
    ]
    assert replace_links(text, lambda link: "new)" if link.path == "b.md" else None) == text.replace(
        "b.md#c", "new"
    )


@pytest.mark.parametrize("target", ["https://a.example/b", "#anchor", "mailto:a@b.example", "/absolute"])
def test_links_to_elsewhere_are_not_relative(target: str):
    assert not Link("text", target).is_relative


def test_picture_for_light_and_dark_becomes_two_images_that_follow_the_switch_of_the_site():
    picture = (
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="img/a-dark.svg">\n'
        '  <img src="img/a.svg" alt="speed-up">\n</picture>'
    )
    made = replace_pictures(picture)
    assert re.findall(r'src="([^"]+)"', made) == ["img/a.svg#only-light", "img/a-dark.svg#only-dark"]
    assert made.count('alt="speed-up"') == 2


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("docs/profiling.md", "profiling.md"),
        ("CONTRIBUTING.md", "contributing.md"),
        ("README.md", "index.md"),
        ("SECURITY.md", "source/SECURITY.md"),
        ("protos/fused_mlp.proto", "source/protos/fused_mlp.proto.md"),
        ("protos/descriptors.binpb", "source/protos/descriptors.binpb"),
        ("kernels/csrc", "source/kernels/csrc/index.md"),
        ("kernels/no_such_file.py", None),
        ("docs/no_such_page.md", None),
    ],
)
def test_every_file_of_the_repository_has_a_place_on_the_site(path: str, page: str | None):
    assert page_of(path) == page


def test_page_of_a_file_has_its_text_and_that_of_a_folder_its_files():
    assert (ROOT / "protos/admin.proto").read_text().strip() in page_text("protos/admin.proto")
    assert "* [`engine`](engine)" in page_text("service/csrc")
    assert "* [`kernel_api.h`](kernel_api.h)" in page_text("kernels/csrc")


PYTHON = "x = 1\n\n\nclass Client:\n    async def predict(self) -> None: ...\n\n\ndef helper() -> None:\n    other()\n"
CPP = """\
// Engine::submit is called by loops.
class Ticket;
class Ticket {
 public:
  bool done() const { return done_; }
};

void Engine::submit(Ticket ticket,
                    int rows) {
  push(ticket);
  return finish(rows);
}

int finish(int rows) { return rows; }
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [("x", 1), ("Client", 4), ("Client.predict", 5), ("helper()", 8), ("other", None), ("Client.no", None)],
)
def test_definitions_in_python(name: str, line: int | None):
    assert line_of(name, "a.py", PYTHON) == line


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Ticket", 3),
        ("Ticket::done", 5),
        ("Engine::submit", 8),
        ("finish", 14),
        ("push", None),
        ("Engine::no", None),
    ],
)
def test_definitions_in_cpp(name: str, line: int | None):
    assert line_of(name, "a.cpp", CPP) == line


def test_text_of_a_link_is_a_name_unless_it_is_the_file():
    assert is_name("Engine::submit", "service/csrc/engine/engine.cpp")
    assert not is_name("engine.cpp", "service/csrc/engine/engine.cpp")
    assert not is_name("the engine", "service/csrc/engine/engine.cpp")
    assert not is_name("alerts", "deploy/prometheus/alerts.yaml")
