"""``fedfeat check`` finds what is wrong with methods that are wrong on purpose, and names the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.config import plugins
from fedfeat.methods import PARTS
from fedfeat.runs.contract.hold import PROMISES, keep
from fedfeat.runs.contract.promise import Broken
from fedfeat.runs.contract.trial import Trial
from fedfeat.runs.contract.waiting import Waiting

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"
WRONG = Path(__file__).parent / "wrong"
# The promise that each breaks, and the line of the file, as it is written there.
FAULTS = {
    "state_lost_on_resume.py": ("resume", "self.velocity = 0.5 * self.velocity + moved"),
    "undeclared_entry.py": ("sends", 'return {"told.histogram": '),
    "item_in_a_term.py": ("device", "if size.item() < 0.01:"),
    "shared_random_stream.py": ("random", "noise = 0.1 * torch.randn_like(step.features)"),
    "exemplars_over_budget.py": ("budget", "def keep_five("),
    "choice_that_cannot_wait.py": ("by address", "def keep_by_round("),
    "order_of_clients_matters.py": ("client order", "self.place, self.most = (client.task, client.round), 0"),
}
TRIED = ",".join(["blurry", *(promise for promise, _ in FAULTS.values())])


@pytest.fixture(autouse=True)
def _leave_no_trace() -> None:
    yield
    plugins.forget()


def check(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def told(output: str) -> dict[str, list[str]]:
    """Return, by promise, what failed and what was said about it."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output.splitlines():
        if line.startswith("FAILS"):
            lines = found[line[8:21].strip()] = []
        elif line.startswith(" "):
            lines.append(line.strip())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_method_is_found_and_its_line_is_named(name: str) -> None:
    promise, text = FAULTS[name]
    status, output = check(str(WRONG / name), "--only", TRIED)
    assert status == 1
    failed = told(output)
    assert list(failed) == [promise], output
    (number,) = (n for n, line in enumerate((WRONG / name).read_text().splitlines(), 1) if text in line)
    assert f"{name}:{number}: " in failed[promise][0]
    assert len(failed[promise]) >= 2, "it says what to do"
    assert "1 failed" in output.splitlines()[-1]


def test_a_loss_that_is_no_number_is_named(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace("keepdim=True)).square().mean()", "keepdim=True)).square()")
    (tmp_path / "many.py").write_text(text)
    _, output = check(str(tmp_path / "many.py"), "--method", "replay+compact", "--only", "runs")
    assert told(output)["runs"][0].startswith("the loss term 'compact' returned a tensor of shape [")


def test_an_error_outside_of_the_authors_file_is_told_once_with_its_place(tmp_path: Path) -> None:
    text = EXAMPLE.read_text().replace('Method("unsure", ', 'Method("unsure", loss=LossTerm("flat", flat), ')
    (tmp_path / "flat.py").write_text(f"{text}\n\ndef flat(step):\n    return step.logits.detach().mean()\n")
    _, output = check(str(tmp_path / "flat.py"), "--method", "unsure", "--only", "runs")
    (line,) = told(output)["runs"]
    assert ".py:" in line.split(": RuntimeError: ")[0]
    assert line.count("does not require grad") == 1


def test_every_wrong_file_is_tried() -> None:
    assert {path.name for path in WRONG.glob("*.py")} == set(FAULTS)


@pytest.mark.slow
def test_a_new_base_passes_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new add-on does so in the tests of the documents."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", "method", "calm", "--kind", "base"]).exit_code == 0
    status, output = check("calm.py")
    assert status == 0, output
    assert f"{len(PROMISES)} passed, 0 failed, 0 not checked" in output


@pytest.mark.slow
def test_the_example_passes_all_of_it() -> None:
    status, output = check(str(EXAMPLE))
    assert status == 0, output
    assert output.startswith("unsure+compact on a toy problem")
    assert f"{len(PROMISES)} passed, 0 failed, 0 not checked" in output


def test_an_error_in_the_authors_code_is_a_failure_with_its_line(tmp_path: Path) -> None:
    source = (WRONG / "item_in_a_term.py").read_text()
    (tmp_path / "broken.py").write_text(source.replace("size.item() < 0.01", "size.no_such_thing"))
    status, output = check(str(tmp_path / "broken.py"), "--only", "device")
    assert status == 1
    assert "broken.py:12: AttributeError: 'Tensor' object has no attribute 'no_such_thing'" in told(output)["runs"][0]
    assert "(while client 0 ran 'train' in task 1, round 1)" in output
    assert "first 'runs' has to pass" in output


def test_a_setting_that_nothing_reads_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["new", "method", "calm"])
    source = (tmp_path / "calm.py").read_text()
    (tmp_path / "calm.py").write_text(source.replace("from_task=settings.from_task", "from_task=1"))
    status, output = check("calm.py", "--only", "settings")
    assert status == 1
    assert "calm.py:43: 'calm.from_task': declared in the settings and never read" in told(output)["settings"][0]


@pytest.mark.parametrize(
    ("place", "fault", "promise"),
    [
        ("fedfeat.engines.stack.sgd", lambda weights, *_, **__: weights.zero_(), "vectorised"),
        ("fedfeat.engines.cuda.simulated.Graph.replay", lambda graph: None, "captured"),
    ],
)
def test_an_engine_that_trains_otherwise_is_found(
    place: str, fault: Callable[..., object], promise: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, fault)
    if torch.cuda.is_available() and promise == "captured":
        pytest.skip("nothing is simulated where there is a GPU")
    with pytest.raises(Broken, match=r"in task 1, round 1, 'weights' of client 0 differs by"):
        keep(PROMISES[promise], Trial("finetune", tmp_path))


BY_BATCH = """
from dataclasses import replace

from fedfeat.api import Capturable, LossTerm, Reference, Settings, addon


class Mean(Reference):
    def start(self, client, request):
        return Capturable(lambda images: {"mean": images - images.mean(dim=0)}, by_image=True)


class PullSettings(Settings):
    pass


@addon("pull", PullSettings, examples=("replay+pull",))
def pull(method, settings):
    term = LossTerm("pull", lambda step: (step.logits.mean(1) * step.references["mean"].abs().mean((1, 2, 3))).mean())
    return replace(method, references=(*method.references, Mean()), terms=(*method.terms, term))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("declared", "status"), [("by_image=True", 1), ("by_image=False", 0)])
def test_a_reference_that_needs_its_batch_and_says_otherwise_is_found(
    declared: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "pull.py").write_text(BY_BATCH.replace("by_image=True", declared))
    found, output = check(str(tmp_path / "pull.py"), "--only", "captured")
    assert found == status, output
    if status:
        assert "a reference that says by_image may not depend on the rest" in " ".join(told(output)["captured"])


def test_a_value_outside_its_declaration_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["new", "method", "calm"])
    (tmp_path / "calm.py").write_text((tmp_path / "calm.py").read_text().replace("low=0)", "high=0)"))
    status, output = check("calm.py", "--only", "sends")
    assert status == 1
    assert "calm.length: expected values of at most 0, got " in told(output)["sends"][0]


@pytest.mark.parametrize(
    ("how", "found"),
    [("", "calm.more: missing"), (", optional=True", "'up/train/calm.more' is declared and never sent")],
)
def test_a_declaration_that_nothing_answers_to_is_found(
    how: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["new", "method", "calm"])
    more = f'sends=(Sent("up/train/calm.more", "more"{how}), Sent('
    (tmp_path / "calm.py").write_text((tmp_path / "calm.py").read_text().replace("sends=(Sent(", more))
    status, output = check("calm.py", "--only", "sends")
    assert status == 1
    assert found in told(output)["sends"][0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.py"], "nowhere.py cannot be read"),
        (["{wrong}", "--only", "resum"], "the contract has no promise 'resum'; did you mean 'resume'?"),
        (["{wrong}", "--method", "five+gs"], "no method or add-on is called 'gs'"),
        (["{wrong}", "--set", "train.lr=-1"], "train.lr"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    path = str(WRONG / "exemplars_over_budget.py")
    done = CliRunner().invoke(app, ["check", *(path if a == "{wrong}" else a for a in arguments)])
    assert sentence in str(done.exception)
    assert done.output == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["FedAvg"], "'FedAvg' cannot be the name of a method"),
        (["fedavg"], "'fedavg' is the name of a method or of a table of settings already"),
        (["train"], "'train' is the name of a method or of a table of settings already"),
        (["class"], "'class' cannot be the name of a method"),
        (["spread"], "'spread' means something else inside the file"),
        (["calm", "--out", "there.py"], "there.py: a file of that name is there already"),
    ],
)
def test_names_and_files_that_are_taken_are_refused(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine")
    done = CliRunner().invoke(app, ["new", "method", *arguments])
    assert sentence in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["there.py"]
    assert (tmp_path / "there.py").read_text() == "mine"


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(6.0)


WAITING: dict[str, Callable[[torch.Tensor], object]] = {
    "item() asks for a tensor's value": lambda x: x.sum().item(),
    "float() asks for a tensor's value": lambda x: float(x.sum()),
    "a branch asks for a tensor's value": lambda x: 1 if x.sum() > 0 else 2,
    "one_hot() asks for a tensor's value": lambda x: F.one_hot(x.long()),
    "equal() asks for a tensor's value": lambda x: torch.equal(x, x),
    "indexing with a mask makes a shape that depends on a tensor's values": lambda x: x[x > 2],
    "unique() makes a shape that depends on a tensor's values": lambda x: x.unique(),
    "nonzero() makes a shape that depends on a tensor's values": lambda x: (x > 2).nonzero(),
    ".cpu() copies a tensor to the host": lambda x: x.cpu(),
    ".to() copies a tensor to the host": lambda x: x.to("cpu"),
    ".numpy() copies a tensor to the host": lambda x: x.numpy(),
    ".tolist() copies a tensor to the host": lambda x: x.tolist(),
    "torch.zeros() without device= makes a tensor on the host": lambda x: x + torch.zeros(6),
}


@pytest.mark.parametrize("words", WAITING)
def test_what_waits_for_a_device_is_seen_on_a_cpu(words: str, x: torch.Tensor) -> None:
    noted: list[str] = []
    with Waiting(noted.append):
        WAITING[words](x)
    assert words in noted


def test_what_a_device_does_by_itself_is_not_noted(x: torch.Tensor) -> None:
    noted: list[str] = []
    with Waiting(noted.append):
        F.one_hot(x.long(), 6)
        torch.where(x > 2, x, torch.zeros((), device=x.device))
        x[x.long()].masked_fill(x > 2, 0.0)[2:4] = 1.0
        F.cross_entropy(x.view(2, 3), torch.zeros(2, dtype=torch.long, device=x.device))
        x.to(torch.float64).softmax(0) * torch.tensor(2.0)
    assert noted == []


@pytest.mark.parametrize("subject", ["methods"])
def test_list_knows_the_methods_of_a_file(subject: str) -> None:
    path = str(WRONG / "exemplars_over_budget.py")
    assert "Replay of five images" not in CliRunner().invoke(app, ["list", subject]).output
    assert "Replay of five images" in CliRunner().invoke(app, ["list", subject, "--plugin", path]).output
    assert "five" in PARTS


def test_a_sweep_knows_the_methods_of_a_file(tmp_path: Path) -> None:
    from fedfeat.runs.sweep.grid import load_sweep

    (tmp_path / "grid.toml").write_text('[data]\nname = "digits"\n[sweep]\nmethods = ["five", "replay"]\nseeds = [0]\n')
    found = load_sweep(tmp_path / "grid.toml", plugins=[WRONG / "exemplars_over_budget.py"])
    assert [config.method for config in found] == ["five", "replay"]
    plugins.forget()
    (tmp_path / "grid.toml").write_text('[data]\nname = "digits"\n[sweep]\nmethods = ["all"]\n')
    found = load_sweep(tmp_path / "grid.toml", plugins=[WRONG / "exemplars_over_budget.py"])
    assert "five" in [config.method for config in found]
