# SPDX-License-Identifier: Apache-2.0
"""Scanning a repository: names, versions, what is broken, and what lies outside."""

import logging

import pytest

from fused_mlp import models
from fused_mlp.models import ModelLoadError, Repository


@pytest.fixture
def root(small_mlp, tmp_path):
    root = tmp_path / "repository"
    for path in ("b/1", "b/2", "b/10", "a.x-Y_z/3"):
        models.save(small_mlp.annotated(description=path), root / path)
    return root


def test_models_and_versions_are_found_in_order_and_the_highest_is_the_default(root):
    (root / "README.md").touch()
    (root / "__pycache__").mkdir()
    (root / ".git").mkdir()
    first, second = Repository(root).scan()
    assert (first.name, [v.version for v in first.versions]) == ("a.x-Y_z", [3])
    assert (second.name, [v.version for v in second.versions]) == ("b", [1, 2, 10])
    assert second.default is not None
    assert second.default.version == 10
    assert second.default.spec is not None
    assert Repository(root).load("b").spec.description == "b/10"
    assert Repository(root).load("b", 2).spec.description == "b/2"


def test_a_broken_version_is_reported_and_the_others_are_served(root):
    (root / "b" / "10" / "model.safetensors").write_bytes(b"junk")
    model = Repository(root).find("b")
    assert [v.version for v in model.usable] == [1, 2]
    assert model.versions[-1].problem is not None
    assert "not a readable safetensors file" in model.versions[-1].problem
    assert Repository(root).load("b").spec.description == "b/2"
    with pytest.raises(ModelLoadError, match=r"model 'b' version 10: .*not a readable"):
        Repository(root).load("b", 10)


def test_what_is_not_a_version_is_reported(root):
    for name in ("latest", "0", "01", "-1", "\u0661"):  # the last is a one, but not an ASCII one
        (root / "b" / name).mkdir()
    (root / "b" / ".2.draft").mkdir()
    (root / "b" / "model.json").touch()
    model = Repository(root).find("b")
    assert [v.version for v in model.versions] == [1, 2, 10]
    assert len(model.problems) == 6
    assert any("belongs into a version directory" in problem for problem in model.problems)


def test_a_model_without_usable_versions_is_listed_with_the_reason(root):
    (root / "empty").mkdir()
    model = next(m for m in Repository(root).scan() if m.name == "empty")
    assert model.default is None
    with pytest.raises(ModelLoadError, match="model 'empty' has no usable version: there is none"):
        Repository(root).load("empty")


def test_a_directory_whose_name_cannot_be_a_model_is_passed_over_loudly(root, caplog):
    (root / "not a name").mkdir()
    with caplog.at_level(logging.WARNING):
        assert len(Repository(root).scan()) == 2
    assert "not a name" in caplog.text


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../b", "b/1", "/etc", "b\n", "_b", "-b", "é", "a" * 129, "b\0"]
)
def test_names_with_path_tricks_are_refused(root, name):
    with pytest.raises(ModelLoadError, match="model name"):
        Repository(root).load(name)


def test_links_are_followed_inside_the_repository_only(root, small_mlp, tmp_path):
    models.save(small_mlp, tmp_path / "outside" / "1")
    (root / "c").mkdir()
    (root / "c" / "1").symlink_to(root / "b" / "1")
    (root / "c" / "2").symlink_to(tmp_path / "outside" / "1")
    (root / "d").symlink_to(tmp_path / "outside")
    (root / "e" / "1").mkdir(parents=True)
    for name in ("model.json", "model.safetensors"):
        (root / "e" / "1" / name).symlink_to(tmp_path / "outside" / "1" / name)
    found = {model.name: model for model in Repository(root).scan()}
    assert [v.version for v in found["c"].usable] == [1]
    assert "leads out of the repository" in (found["c"].versions[1].problem or "")
    assert found["d"].versions == ()
    assert "leads out of the repository" in found["d"].problems[0]
    assert found["e"].usable == ()


def test_a_link_to_no_folder_is_a_version_with_a_problem(root):
    (root / "b" / "11").symlink_to("11")
    repository = Repository(root)
    last = next(model for model in repository.scan() if model.name == "b").versions[-1]
    assert (last.version, last.problem) == (
        11,
        f"{root / 'b' / '11'}: a symbolic link that leads to no folder",
    )
    assert repository.look()["b"][11] == last.signature


def test_a_model_folder_that_cannot_be_read_is_a_problem_until_it_can(root, tmp_path, caplog):
    (tmp_path / "outside").mkdir()
    (root / "d").symlink_to(tmp_path / "outside")
    repository = Repository(root)
    repository.scan()
    assert repository.unreadable == {"d"}
    repository.look()
    (problem,) = repository.problems
    assert problem.endswith("a symbolic link that leads out of the repository is not followed")
    assert not caplog.records  # the scan's caller has told
    (root / "d").unlink()
    (root / "d").mkdir()
    repository.find("d")
    assert (repository.unreadable, repository.problems) == (set(), [])


def test_a_repository_behind_a_link_is_fine(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    assert Repository(tmp_path / "link").load("b", 1).spec.description == "b/1"


def test_missing_empty_and_odd_repositories_are_one_readable_line(root, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, text in (("absent", "does not exist"), ("empty", "is empty"), ("file", "is not a directory")):
        with pytest.raises(ModelLoadError, match=text):
            Repository(tmp_path / name).scan()
    with pytest.raises(ModelLoadError, match="model 'zz' is not in repository"):
        Repository(root).load("zz")
    with pytest.raises(ModelLoadError, match="has no version 7; it has 1, 2, 10"):
        Repository(root).load("b", 7)
