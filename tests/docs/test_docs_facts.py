"""What the documents state agrees with the code: names, keys, links, versions, the configuration reference."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from documents import DOCUMENTS, ROOT, anchors, links
from pydantic import Field

import fedfeat
from fedfeat.config.config import make_config
from fedfeat.config.presets import PRESETS
from fedfeat.core.settings import Settings
from fedfeat.data import list_datasets
from fedfeat.federation.progress import Progress
from fedfeat.methods import PARTS
from fedfeat.methods.clip2fl.stand_in import teacher_settings
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from reference_pages import configuration_reference, configuration_tables, type_words
from toy import toy_config, toy_dataset, toy_table


def test_local_links_and_files_named_in_code_style_exist() -> None:
    for path in DOCUMENTS:
        for link in links(path):
            if link.startswith(("http://", "https://")):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            assert target.exists(), f"{path.name}: the link {link} leads nowhere"
            assert not anchor or anchor in anchors(target), f"{path.name}: {target.name} has no heading #{anchor}"
        for name in re.findall(r"`((?:src|tests|docs|configs)/[\w./]+)`", path.read_text()):
            assert (ROOT / name).exists(), f"{path.name} names {name}, which does not exist"


def test_the_configuration_reference_is_up_to_date() -> None:
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == configuration_reference(), "run: python -m reference_pages"


def test_every_setting_has_a_description() -> None:
    bare = [
        f"{table}.{key}"
        for table, model in configuration_tables()
        for key, field in model.model_fields.items()
        if not field.description
    ]
    assert not bare


def test_the_reference_names_keys_as_a_file_writes_them() -> None:
    text = configuration_reference()
    assert "| `lambda` | number, at least 0 | `0.1` |" in text
    assert "`weight`" not in text
    assert "`parts`" not in text


def test_the_reference_refuses_a_type_it_has_no_words_for() -> None:
    class Odd(Settings):
        value: complex = Field(0j, description="nobody writes this in TOML")

    with pytest.raises(TypeError, match="no words"):
        type_words(Odd.model_fields["value"].annotation)


def test_the_readme_names_every_method_data_set_and_preset() -> None:
    readme = (ROOT / "README.md").read_text()
    names = {*PARTS, *(info.name for info in list_datasets())}
    assert {name for name in names if f"`{name}`" not in readme} == set()
    assert {name for name in PRESETS if name != "digits" and f"`{name}`" not in readme} == set()


def test_the_architecture_names_every_folder_of_the_code_in_the_order_of_the_layers() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = list(reversed(tables[0]["layers"]))
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", text, re.MULTILINE)
    assert rows == layers
    walk = re.findall(r"^\d+\. \*\*`(\w+)(?:/|\.py)`\*\*", text, re.MULTILINE)
    assert walk == layers


def test_the_files_of_the_walk_exist() -> None:
    walk = (ROOT / "docs" / "architecture.md").read_text().partition("## A walk through one run")[2]
    entries = re.findall(r"^\d+\. \*\*`(\w+)/`\*\*(.*?)(?=^\d+\. |^## )", walk, re.MULTILINE | re.DOTALL)
    assert entries
    for folder, text in entries:
        for name in re.findall(r"`([a-z_]+(?:\.py|/))`", text):
            assert (ROOT / "src" / "fedfeat" / folder / name).exists(), f"{folder}/{name}"
    for name in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()):
        assert (ROOT / "src" / "fedfeat" / name).exists(), name


@pytest.fixture(scope="module")
def run_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("documented") / "run"
    experiment = Experiment(toy_config("herding+feat"), toy_dataset())
    result = experiment.run(RunFolder.create(folder, experiment.config, {}), Progress(), ())
    return folder, result


def test_every_number_of_a_result_is_defined(run_files: tuple[Path, dict[str, Any]]) -> None:
    folder, result = run_files
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert {key for key in result if f"`{key}`" not in text} == set()
    assert {key for key in result["numbers"] if f"`{key}`" not in text} == set()
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    keys = {key for event in events for key in event} - {"event"}
    assert {key for key in keys if f"`{key}`" not in text} == set()


@pytest.mark.docs
@pytest.mark.parametrize("method", ["target", "lander", "herding+fedfsa", "herding+feat+calibrate", "herding+clip2fl"])
def test_numbers_that_only_some_methods_have_are_defined(method: str, tmp_path: Path) -> None:
    table = toy_table(method=method, scenario={"tasks": 2, "budget": 60})
    if method.endswith("clip2fl"):
        table["clip2fl"] = teacher_settings(tmp_path, toy_dataset()).model_dump(by_alias=True, exclude_none=True)
    experiment = Experiment(make_config(table), toy_dataset())
    result = experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), Progress(), ())
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert result["numbers"]
    assert {key for key in [*result["numbers"], *result["accuracy_of_variants"]] if f"`{key}`" not in text} == set()
    runs = (ROOT / "docs" / "runs.md").read_text()
    assert {p.name for p in (tmp_path / "run").iterdir() if f"`{p.name}{'/' * p.is_dir()}`" not in runs} == set()


def test_everything_in_a_run_folder_is_described(run_files: tuple[Path, dict[str, Any]]) -> None:
    runs = (ROOT / "docs" / "runs.md").read_text()
    names = {p.name + "/" * p.is_dir() for p in run_files[0].iterdir()}
    assert {name for name in names if f"`{name}`" not in runs} == set()


def test_versions_agree() -> None:
    assert f'version: "{fedfeat.__version__}"' in (ROOT / "CITATION.cff").read_text()
    assert f"## [{fedfeat.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_citation_file_and_the_readme_name_the_same_paper() -> None:
    citation, readme = ((ROOT / name).read_text() for name in ("CITATION.cff", "README.md"))
    reference = citation.partition("references:")[2]
    families = re.findall(r'family-names: "(.+)"', reference)
    given = re.findall(r'given-names: "(.+)"', reference)
    bibtex = " ".join(readme.partition("@inproceedings")[2].split())
    assert " and ".join(f"{f}, {g}" for f, g in zip(families, given, strict=True)) in bibtex
    title = re.search(r'title: "(.+)"', reference)
    assert title is not None
    assert title[1] in bibtex


def test_the_documents_hold_no_absolute_path() -> None:
    for path in DOCUMENTS:
        assert not re.search(r"(?<![\w.~$>])/(home|root|work|tmp|Users|mnt)/", path.read_text()), path.name
