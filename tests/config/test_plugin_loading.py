"""Plugins: loaded before a configuration is checked, refused in one sentence that names file and line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from fedfeat import cli
from fedfeat.config import plugins
from fedfeat.config.config import load_config, make_config
from fedfeat.core.errors import ConfigError
from fedfeat.methods import PARTS, all_methods
from toy import toy_table

GOOD = """\
from dataclasses import dataclass, replace

from pydantic import Field

from fedfeat.api import LossTerm, Method, Settings, addon, base


@dataclass
class Note:
    text: "str"


class ShrinkSettings(Settings):
    rate: float = Field(0.5, gt=0, description="how much")


@addon("shrink", ShrinkSettings, examples=("replay+shrink",))
def shrink(method: Method, settings: ShrinkSettings) -> Method:
    term = LossTerm("shrink", lambda step: step.features.square().mean(), settings.rate)
    return replace(method, terms=(*method.terms, term))
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path / "good.py"


def config_file(folder: Path, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "toy.toml").write_text(tomli_w.dumps(toy_table(**changes)))
    return folder / "toy.toml"


def test_names_and_tables_of_a_plugin_are_known_when_the_configuration_is_checked(good: Path) -> None:
    config = make_config({"plugins": [str(good)], "method": "replay+shrink", "shrink": {"rate": 2.0}})
    assert [(t.name, t.weight) for t in config.build_method().terms] == [("shrink", 2.0)]
    assert config.to_table()["shrink"] == {"rate": 2.0}
    assert "replay+shrink" in all_methods()
    with pytest.raises(ConfigError, match=r"shrink.rate: input should be greater than 0, got -1"):
        make_config({"plugins": [str(good)], "shrink": {"rate": -1}})
    with pytest.raises(ConfigError, match=r"unknown key 'shrink.rat'; did you mean 'rate'"):
        make_config({"plugins": [str(good)], "shrink": {"rat": 1}})


def test_a_relative_path_counts_from_the_configuration_file(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config_file(tmp_path / "sub", plugins=["../good.py"], method="replay+shrink")
    monkeypatch.chdir("/")
    assert load_config(path).build_method().terms[0].name == "shrink"


def test_a_path_on_the_command_line_counts_from_here_and_adds_to_the_file(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = GOOD.replace("shrink", "squeeze").replace("Shrink", "Squeeze")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "second.py").write_text(second)
    path = config_file(tmp_path / "sub", plugins=["../good.py"], method="replay+shrink+squeeze")
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(path, (), [Path("second.py")])
    assert [t.name for t in config.build_method().terms] == ["shrink", "squeeze"]
    assert [e.partition("@")[0] for e in config.plugins] == [
        str(good),
        str(tmp_path / "here" / "second.py"),
    ]
    assert load_config(Path("digits"), ["method=joint+squeeze"], [Path("second.py")]).method == "joint+squeeze"


def test_the_resolved_configuration_pins_the_file_and_reads_back_the_same(good: Path) -> None:
    config = make_config({"plugins": [str(good), str(good)], "method": "replay+shrink"})
    assert len(config.plugins) == 1
    assert re.fullmatch(re.escape(str(good)) + "@sha256:[0-9a-f]{64}", config.plugins[0])
    assert make_config(config.to_table()).to_table() == config.to_table()
    assert "plugins" not in make_config({}).to_table()


def test_a_pinned_file_that_changed_is_refused(good: Path) -> None:
    table = make_config({"plugins": [str(good)], "method": "replay+shrink"}).to_table()
    good.write_text(GOOD + "\n# a remark\n")
    with pytest.raises(ConfigError, match=r"good.py changed since the run began; restore it, or start a new run"):
        make_config(table)
    good.write_text(GOOD)
    make_config(table)


def test_a_pinned_file_that_is_gone_may_lie_beside_the_configuration(good: Path, tmp_path: Path) -> None:
    config = make_config({"plugins": [str(good)], "method": "replay+shrink"})
    path = config_file(tmp_path / "run", plugins=list(config.plugins), method="replay+shrink")
    good.rename(tmp_path / "run" / "good.py")
    assert load_config(path).plugins == config.plugins, "the entry stays: it is part of the run's identity"
    (tmp_path / "run" / "good.py").unlink()
    with pytest.raises(ConfigError, match=r"good.py cannot be read \(No such file or directory\).*copy beside"):
        load_config(path)


def test_an_edited_file_is_read_again_in_the_same_process(good: Path) -> None:
    make_config({"plugins": [str(good)], "method": "replay+shrink"})
    good.write_text(GOOD.replace('"shrink"', '"wither"'))
    config = make_config({"plugins": [str(good)], "method": "replay+wither"})
    assert config.build_method().terms[0].name == "wither"
    assert "shrink" not in PARTS


def test_a_file_is_run_once_in_a_process(good: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    good.write_text(GOOD + f"\nwith open({str(log)!r}, 'a') as file:\n    file.write('x')\n")
    for _ in range(3):
        make_config({"plugins": [str(good)]})
    assert log.read_text() == "x"


HEAD = "from fedfeat.api import Method, addon, base\n"


def registering(name: str, body: str = "return Method('f')") -> str:
    return f"{HEAD}@base({name!r})\ndef f(settings):\n    {body}\n"


MISTAKES = {  # text of the file, method to build (none: the file itself is refused), the sentence's end
    "syntax": ("x = 1\ndef broken(:\n", None, r", line 2: SyntaxError: "),
    "name": ("x = 1\n\nnobody\n", None, r", line 3: NameError: name 'nobody' is not defined$"),
    "inner": ("def f():\n    return 1 / 0\n\nf()\n", None, r", line 2: ZeroDivisionError: division by zero$"),
    "library": ("import json\n\njson.loads('{')\n", None, r", line 3: JSONDecodeError: "),
    "import": ("import no_such_module\n", None, r", line 1: ModuleNotFoundError: No module named 'no_such_module'$"),
    "two lines": ("raise ValueError('one\\n  two')\n", None, r", line 1: ValueError: one two$"),
    "null byte": ("x = '\0'\n", None, r"null byte"),
    "nothing": ("x = 1\n", None, r" registers nothing; put @base or @addon in front of a function$"),
    "empty": ("", None, r" registers nothing"),
    "taken": (registering("finetune"), None, r" registers 'finetune', which exists already; choose another name$"),
    "reserved": (registering("train"), None, r": the table 'train' of 'train' exists already; choose another name$"),
    "plus": (registering("a+b"), None, r" registers 'a\+b'; a name is a letter, then"),
    "builder": (registering("mine", "return settings.no"), "mine", r", line 4: AttributeError: "),
    "none": (registering("mine", "pass"), "mine", r": 'mine' returned NoneType; it should return a Method$"),
    "arguments": (registering("mine").replace("settings", ""), "mine", r", line \d+: TypeError: .*positional argument"),
}


@pytest.mark.parametrize(("text", "method", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_the_file_is_one_sentence_with_its_line(
    tmp_path: Path, text: str, method: str | None, words: str
) -> None:
    before = dict(PARTS)
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        make_config({"plugins": [str(tmp_path / "bad.py")], "method": method or "finetune"})
    message = str(caught.value)
    assert message.startswith(f"plugin {tmp_path / 'bad.py'}")
    assert "\n" not in message
    if method is None:
        assert before == PARTS, "a refused plugin leaves nothing behind"


def test_a_table_of_another_method_cannot_be_taken(tmp_path: Path) -> None:
    text = GOOD.replace('"shrink", ShrinkSettings', '"shrink", ShrinkSettings, table="feat"')
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(ConfigError, match="the table 'feat' of 'shrink' exists already"):
        make_config({"plugins": [str(tmp_path / "bad.py")]})
    assert "shrink" not in PARTS


def test_a_refusal_by_the_plugin_itself_stays_as_it_is(tmp_path: Path) -> None:
    text = (
        HEAD
        + "from fedfeat.core.errors import ConfigError\n@base('mine')\ndef f(s):\n    raise ConfigError('not today')\n"
    )
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=r"^not today$"):
        make_config({"plugins": [str(tmp_path / "mine.py")], "method": "mine"})


def test_paths_and_values_that_are_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.py cannot be read \(No such file or directory\); check the path"):
        make_config({"plugins": [str(tmp_path / "nowhere.py")]})
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\)"):
        make_config({"plugins": [str(tmp_path)]})
    with pytest.raises(ConfigError, match=r"plugins: input should be a list, got 'x.py'"):
        make_config({"plugins": "x.py"})
    with pytest.raises(ConfigError, match=r"plugins.0: input should be a valid string, got 3"):
        make_config({"plugins": [3]})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package with an entry point."""
    info = tmp_path / "shrinkage-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shrinkage\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedfeat.methods]\nshrinking = shrinkage_methods\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins._entry_points.cache_clear()
    yield tmp_path / "shrinkage_methods.py"
    sys.modules.pop("shrinkage_methods", None)
    plugins._entry_points.cache_clear()


def test_methods_of_installed_packages_are_listed(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package.write_text(GOOD)
    cli.app(["list", "methods", "--json"], standalone_mode=False)
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert {"fedcbdr", "shrink"} <= names


def test_an_installed_package_is_found(package: Path) -> None:
    package.write_text(GOOD)
    assert make_config({"method": "replay+shrink"}).build_method().terms[0].name == "shrink"
    del PARTS["shrink"]
    assert make_config({"method": "replay+shrink"}), "known, though the module is not imported a second time"


def test_a_mistake_in_an_installed_package_names_it(package: Path) -> None:
    package.write_text("x = 1\nnobody\n")
    with pytest.raises(ConfigError) as caught:
        make_config({})
    assert str(caught.value) == (
        f"plugin 'shrinking' of the package 'shrinkage' ({package}), line 2: NameError: name 'nobody' is not defined"
    )


def test_an_installed_package_cannot_replace_a_method(package: Path) -> None:
    package.write_text(GOOD.replace('"shrink"', '"feat"'))
    feat = PARTS["feat"]
    with pytest.raises(ConfigError, match="'shrinking' of the package 'shrinkage' registers 'feat', which exists"):
        make_config({})
    assert PARTS["feat"] is feat
