"""Deliberate faults that the tests must find: put into a copy of the project, each must make its tests fail.

    python tests/mutants.py                 all faults, a few seconds each
    python tests/mutants.py moon budget     those whose name contains a word

A fault that its tests miss, and one whose place in the code has changed, end the program with status 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("src", "reproduction", "tests", "docs", "benchmarks", "examples", "configs", "pyproject.toml")
CONTRACT = "test_contract.py::test_promise["


class Fault(NamedTuple):
    """A text that stands once in ``src/fedfeat``, what takes its place, and the tests that must fail then."""

    name: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        "masks of pairs that left are added instead of taken off",
        "-_sign(other, client)",
        "_sign(other, client)",
        ("test_secure_exchange.py",),
    ),
    Fault(
        "half of the clients can open a masked sum",
        "max(share, clients // 2 + 1)",
        "max(share, clients // 2)",
        ("test_secure_sums.py",),
    ),
    Fault(
        "a mask covers a second reply",
        'if notes["answers"].setdefault(phase, answer) != answer:',
        "if False:",
        ("test_lying_server.py",),
    ),
    Fault(
        "a reply goes into the sum of an earlier round",
        "or place < max(map(_place, self.sessions), default=place)",
        "",
        ("test_lying_server.py",),
    ),
    Fault(
        "a client said to have left opens the sum",
        "if session.client not in stayed:",
        "if False:",
        ("test_lying_server.py",),
    ),
    Fault(
        "signatures of peers are not bound to their keys",
        "if name is None:\n                raise Refusal",
        "if False:\n                raise Refusal",
        ("test_lying_server.py",),
    ),
    Fault(
        "the own mask is not added",
        "add_mask(numbers, self._secret(OWN), +1)",
        "add_mask(numbers, bytes(32), +1)",
        ("test_lying_server.py", "test_secure_exchange.py"),
    ),
    Fault(
        "a choice that waited is made of the task at hand",
        "self._client(client_id, task, self._samples(task, client_id), {})",
        "self._client(client_id, self.task, self._samples(self.task, client_id), {})",
        ("test_deferred_choice.py",),
    ),
    Fault(
        "letters of EMNIST lie on their side",
        "i.transpose(0, 2, 1) if layout.transposed else i for i",
        "i for i",
        ("test_idx.py",),
    ),
    Fault(
        "a model forgets how its images were resized",
        "        resize=saved.card.resize,\n",
        "",
        ("test_resize.py",),
    ),
    Fault(
        "a memory map is copied into memory",
        'images if is_mapped(images) and (fed or device.type == "cpu") else None',
        "None",
        ("test_feed.py", "test_large_images.py"),
    ),
    Fault(
        "pages of a memory map are kept",
        "images.base.madvise(mmap.MADV_DONTNEED)",
        "pass",
        ("test_feed.py",),
    ),
    Fault(
        "the lower triangle of the Gram matrix is left out",
        "gram[columns, rows] = known.gram",
        "pass",
        ("test_analytic.py",),
    ),
    Fault(
        "features depend on how many images a client holds",
        "own[:1].expand(-len(own) % client.settings.batch)",
        "own[:0]",
        ("test_analytic.py",),
    ),
    Fault(
        "the statistics of a frozen backbone travel",
        'buffers = {name for name, _ in self.named_buffers()} if self.tune != "all" else {"scale", "shift"}',
        'buffers = {"scale", "shift"}',
        ("test_pretrained.py::test_running_statistics_of_a_frozen_model_stay",),
    ),
    Fault(
        "GSA with the wrong sign",
        "(student.exp() * (student - teacher))",
        "(student.exp() * (teacher - student))",
        ("test_geometry_gsa.py",),
    ),
    Fault(
        "EGC without its prior",
        "excess = energies.head - prior_head",
        "excess = energies.head",
        ("test_geometry_egc.py",),
    ),
    Fault(
        "an off-by-one of num_old in EGC",
        "tail, head = cosine_logits[:, :num_old], cosine_logits[:, num_old:]",
        "tail, head = cosine_logits[:, : num_old + 1], cosine_logits[:, num_old + 1 :]",
        ("test_geometry_egc.py",),
    ),
    Fault(
        "an off-by-one of num_old in the loss of new classes",
        "F.cross_entropy(logits[:, num_old:], labels - num_old)",
        "F.cross_entropy(logits[:, num_old - 1 :], labels - num_old + 1)",
        ("test_losses.py",),
    ),
    Fault(
        "MOON with the wrong sign",
        "F.cross_entropy(cosines.T / tau, nearest)",
        "F.cross_entropy(-cosines.T / tau, nearest)",
        ("test_moon.py",),
    ),
    Fault(
        "SCAFFOLD's server does not update its control variate",
        "server.progress.tensors[CONTROL] = control\n",
        "pass\n",
        ("test_scaffold.py",),
    ),
    Fault(
        "herding picks the farthest",
        'distance.masked_fill(~free, float("inf")).argmin()',
        'distance.masked_fill(~free, -float("inf")).argmax()',
        ("test_replay_rules.py",),
    ),
    Fault(
        "leverage scores without the inverse of the mask",
        "vectors = self._mask(client).undo(vectors)",
        "pass",
        ("test_replay_leverage.py",),
    ),
    Fault(
        "an unseeded choice of exemplars",
        'rng_at(client.seed, "keep-random", client.task, client.id)',
        '__import__("numpy").random.default_rng()',
        (CONTRACT + "again-replay]",),
    ),
    Fault(
        "an unseeded order of batches",
        'rng_at(client.seed, "batches", *where)',
        '__import__("numpy").random.default_rng()',
        (CONTRACT + "again-finetune]",),
    ),
    Fault(
        "a lost exemplar",
        "torch.cat([earlier, chosen.to(earlier)])",
        "torch.cat([earlier[1:], chosen.to(earlier)])",
        ("test_contract.py::test_the_budget_is_used_in_full[fedcbdr+feat]",),
    ),
    Fault(
        "a budget exceeded by one",
        "even_sizes(budget, len(here))",
        "even_sizes(budget + 1, len(here))",
        (CONTRACT + "budget-fedcbdr+feat]", "test_scenario_rounds.py"),
    ),
    Fault(
        "a client looks at a neighbour's samples",
        "self.scenario.samples(task, client_id), device",
        "self.scenario.samples(self.task, max(client_id - 1, 0)), device",
        (CONTRACT + "own samples-finetune]",),
    ),
    Fault(
        "momentum dropped",
        "velocity.mul_(momentum).add_(gradient)",
        "velocity.copy_(gradient)",
        ("test_models_training.py",),
    ),
    Fault(
        "weight decay dropped",
        "gradient.add_(weights, alpha=weight_decay)",
        "pass",
        ("test_models_training.py",),
    ),
    Fault(
        "an average without the numbers of samples",
        'weight = 1.0 if how == "uniform" else float(count)',
        "weight = 1.0",
        ("test_models_training.py", "test_loop.py::test_sample_weighting_differs_from_uniform"),
    ),
    Fault(
        "a class missing in the confusion table",
        "(images.labels < seen.num_classes).nonzero()",
        "(images.labels < seen.num_classes - 1).nonzero()",
        (CONTRACT + "runs-finetune]",),
    ),
    Fault(
        "a shared tensor delivered twice",
        "for client in set(clients) - now.delivered[name]:",
        "for client in set(clients):",
        ("test_target.py::test_the_pool_is_delivered_once_per_client_and_task_in_eight_bits",),
    ),
    Fault(
        "traffic to the server not counted",
        'self.traffic.add("up", op, reply)',
        "pass",
        (CONTRACT + "bytes-fedcbdr+feat]",),
    ),
    Fault(
        "clipping skipped",
        "trained.copy_(clipped(trained, received, settings.clip))",
        "pass",
        ("test_privacy.py::test_updates_have_the_norm_they_are_clipped_to",),
    ),
    Fault(
        "noise from a seed that clients share",
        'rng_at(client.seed, "privacy-noise", *where)',
        'rng_at(client.seed, "privacy-noise", *where[:2])',
        ("test_privacy.py::test_noise_has_the_stated_scale_and_no_direction",),
    ),
    Fault(
        "a skipped checksum of a checkpoint",
        "if path.exists() and sha256(path) == expected:",
        "if path.exists():",
        ("test_checkpoint.py::test_a_damaged_checkpoint_is_recognised_and_the_one_before_is_used",),
    ),
    Fault(
        "a checkpoint that forgets the clients' states",
        "states.update(shard)",
        "pass",
        (
            "test_checkpoint.py::test_everything_comes_back",
            CONTRACT + "resume-fedcbdr+feat]",
        ),
    ),
    Fault(
        "a resumed run repeats a round",
        "for round in range(now.round, self.method.rounds(self.config.train.rounds)):",
        "for round in range(max(now.round - resumed, 0), self.config.train.rounds):",
        (CONTRACT + "resume-finetune]",),
    ),
)


def node_ids(fault: Fault) -> list[str]:
    """Return a fault's tests as pytest names them; test files are found by their name, wherever they lie."""
    found = []
    for test in fault.tests:
        name, colons, node = test.partition("::")
        path = ROOT / name if "/" in name else next((ROOT / "tests").rglob(name))
        found.append(f"{path.relative_to(ROOT)}{colons}{node}")
    return found


def all_pass(tests: list[str], fault: Fault | None) -> bool:
    """Run tests in a copy of the project, with a fault if one is given."""
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder, name))
        if fault is not None:
            path = Path(folder) / places(fault)[0].relative_to(ROOT)
            path.write_text(path.read_text().replace(fault.right, fault.wrong))
        sources = os.pathsep.join(str(Path(folder, name)) for name in ("src", "reproduction"))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": sources, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    if done.returncode not in (0, 1):  # neither passed nor failed: nothing was tested
        raise RuntimeError(f"{' '.join(tests)}\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def places(fault: Fault) -> list[Path]:
    """Return the file that holds the text of a fault, as often as it stands there."""
    files = (ROOT / "src" / "fedfeat").rglob("*.py")
    return [path for path in files for _ in range(path.read_text().count(fault.right))]


def verdict(fault: Fault) -> str:
    """Return ``found``, ``MISSED``, or why the fault could not be tried."""
    if len(places(fault)) != 1:
        return f"STALE ({len(places(fault))} places hold {fault.right!r}):"
    return "MISSED" if all_pass(node_ids(fault), fault) else "found"


def main(words: list[str]) -> int:
    """Try faults side by side and print what became of each; return 1 unless all were found."""
    chosen = [f for f in FAULTS if not words or any(word.lower() in f.name.lower() for word in words)]
    whole = sorted({test for fault in chosen for test in node_ids(fault)})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        healthy = pool.submit(all_pass, whole, None)
        verdicts = list(pool.map(verdict, chosen))
    for fault, said in zip(chosen, verdicts, strict=True):
        print(f"{said:8} {fault.name}")
    if not healthy.result():
        print("these tests fail without any fault, so they prove nothing")
    print(f"{verdicts.count('found')} of {len(chosen)} faults found")
    return 0 if healthy.result() and set(verdicts) <= {"found"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
