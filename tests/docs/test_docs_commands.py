"""Every command of the documents is run, page by page; what cannot be run here says why and is at least parsed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from documents import DOCUMENTS, NOT_RUN, NOT_RUN_HERE, REASONS, ROOT, SHELL, Command, blocks_of, commands, excuses
from shell import GIVEN, Reader, finished_run

from fedfeat.cli import app
from fedfeat.cli import run as cli_run
from fedfeat.config.config import load_config
from fedfeat.runs import sweep
from fedfeat.runs.sweep import in_turn
from few_digits import few_digits

TUTORIAL = ROOT / "docs" / "tutorial"
CHAPTERS = [
    TUTORIAL / name for name in re.findall(r"^\d+\. \[.+?\]\((\S+)\)", (TUTORIAL / "index.md").read_text(), re.M)
]
ALL = commands()
RUN = [c for c in ALL if c.excuse is None]
EXCUSED = [c for c in ALL if c.excuse is not None]
PAGES = [path for path in DOCUMENTS if path not in CHAPTERS and any(c.path == path for c in RUN)]


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Few digits, and one worker, which is this process: tests of sweeps start others."""
    import sklearn.datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.datasets, "load_digits", few_digits(sklearn.datasets.load_digits))
        for module in (cli_run, sweep):
            patch.setattr(module, "processes", lambda workers, gpus=(): in_turn)
        yield


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run, for all pages that talk about using one."""
    folder = tmp_path_factory.mktemp("shared")
    finished_run(folder / "run")
    return folder


@pytest.fixture
def reader(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDFEAT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDFEAT_DATA", raising=False)
    return Reader(tmp_path, shared)


@pytest.mark.docs
@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_commands_of_a_page_run(path: Path, reader: Reader) -> None:
    reader.read(blocks_of(path))
    assert reader.typed == sum(c.path == path for c in RUN)


@pytest.mark.docs
def test_the_tutorial_runs_from_beginning_to_end(reader: Reader) -> None:
    for chapter in CHAPTERS:
        reader.read(blocks_of(chapter))
    assert reader.typed == sum(c.path in CHAPTERS for c in RUN)
    assert (reader.folder / "shapes.onnx").stat().st_size > 10_000


def test_the_tutorial_lists_all_its_chapters() -> None:
    assert {*CHAPTERS, TUTORIAL / "index.md"} == set(TUTORIAL.glob("*.md"))


@pytest.mark.docs
def test_a_failing_command_fails_the_page(reader: Reader) -> None:
    for line in ("fedfeat run configs/digits.toml --set train.lr=-1", "fedfeat run nowhere.toml", "python nothing.py"):
        with pytest.raises(AssertionError, match=r"README\.md:1: "):
            reader.type(Command(ROOT / "README.md", 1, line, None))


def test_excuses_fit_their_commands() -> None:
    for command in EXCUSED:
        reason = command.excuse or ""
        assert reason in REASONS, f"{command}: {reason!r} is not one of {', '.join(REASONS)}"
        text = " ".join(command.text.partition("#")[0].split())
        assert re.search(REASONS[reason], text), f"{command}: {reason!r} is no reason; let the tests run it"
        if reason == "another page does":
            assert any(c.words == command.words for c in RUN), f"{command}: no page runs the same line"


def test_pages_with_a_test_of_their_own_have_one() -> None:
    for path in {c.path for c in EXCUSED if c.excuse == "a test of its own"}:
        assert (Path(__file__).parent / f"test_docs_{path.stem}.py").exists(), path


def test_no_excuse_is_left_over() -> None:
    for path in DOCUMENTS:
        text, shell = path.read_text(), [block for block in blocks_of(path) if block.language in SHELL]
        in_front = [excuse for block in shell for excuse in excuses(block.comments, NOT_RUN)]
        assert sorted(in_front) == sorted(excuses(text, NOT_RUN)), f"{path}: a marker without a shell block behind it"
        scopes = [(block.text, excuses(block.comments, NOT_RUN)) for block in shell]
        scopes.append(("".join(block.text for block in shell), excuses(text, NOT_RUN_HERE)))
        for lines, found in scopes:
            for reason, begin in found:
                assert re.search(rf"^{re.escape(begin)}", lines, re.MULTILINE), f"{path}: no line {begin!r} ({reason})"


def test_most_commands_are_run() -> None:
    elsewhere = ("a test of its own", "another page does", "tests of federations do")
    assert len(RUN) > 2 * sum(c.excuse not in elsewhere for c in EXCUSED)


def test_what_readers_are_given_is_used() -> None:
    words = {word.rpartition("=")[2].rstrip("/") for c in RUN for word in c.words}
    assert set(GIVEN) <= words


def test_saved_files_are_used_later_on_the_page() -> None:
    for found in map(blocks_of, DOCUMENTS):
        for place, block in enumerate(found):
            if block.file:
                named = f"`{block.file}`" in block.path.read_text()
                assert named, f"{block}: the page does not tell the reader the name"
                later = [b.text for b in found[place + 1 :] if b.language in SHELL]
                assert any(block.file in text for text in later), str(block)


def parse(arguments: list[str]) -> click.Context:
    """Parse a command line without running it and return the innermost context."""
    command: click.Command = typer.main.get_command(app)
    context, rest = click.Context(command), list(arguments)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.parse_args(context, rest)
    return context


def test_commands_that_are_not_run_parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for command in (c for c in EXCUSED if c.words[0] == "fedfeat"):
        for block in blocks_of(command.path):
            if block.file:
                (tmp_path / block.file).write_text(block.text)
        try:
            values = parse(command.words[1:]).params
            if "config" in values and "sweep" not in command.words:
                load_config(Path(values["config"]), values.get("set") or values.get("overrides") or ())
        except Exception as error:
            error.add_note(f"{command}: {command.text}")
            raise


def test_the_parser_of_these_tests_refuses_mistakes() -> None:
    for arguments in (["run"], ["run", "x.toml", "--sett", "a=1"], ["list", "colours"], ["fly"]):
        with pytest.raises(click.UsageError):
            parse(arguments)


def test_every_command_is_shown() -> None:
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert known == {c.words[1] for c in ALL if c.words[0] == "fedfeat"}


def test_installations_name_what_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for command in (c for c in ALL if c.excuse == "installs"):
        match command.words:
            case ["make", target]:
                assert target in targets, f"{command}: make has no target {target}"
            case ["pip", "install", "-e", what]:
                assert set(re.findall(r"\w+", what)) <= extras, command
            case _:
                pytest.fail(f"{command}: nobody checks this form of installation")
