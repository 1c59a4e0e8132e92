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
        "a folded teacher keeps the weights of an earlier one",
        "if held is not vector or version != vector._version:",
        "if held is None:",
        ("test_folded.py",),
    ),
    Fault(
        "what is found ahead is overwritten before it is read",
        "self.ring = 2 * BATCHES * batch",
        "self.ring = BATCHES * batch",
        ("test_look_ahead.py",),
    ),
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
        "where tasks bring domains the model before had no class",
        "return self.num_old if self.num_old or self.task == 0 else self.num_classes",
        "return self.num_old",
        ("test_streams.py::test_where_tasks_bring_domains_the_model_before_had_every_class",),
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
        "(rows < shape[0]).nonzero()",
        "(rows < shape[0] - 1).nonzero()",
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
        'self.traffic.add("up", op, reply)\n            yield',
        "yield",
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
        "attack: a client loads the plugin that a server names",
        """    refuse_missing(table.get("plugins", []), plugins)
    own = {"engine": {**table["engine"], **engine}, "plugins": plugins}""",
        '    own = {"engine": {**table["engine"], **engine}}',
        ("test_hostile_server.py::test_a_plugin_that_the_server_names_is_compared_and_never_loaded",),
    ),
    Fault(
        "attack: a server calls a client's images public",
        "if self.own_data and config.data.name != OWNED:",
        "if False:",
        ("test_client_policy.py::test_a_run_beyond_the_policy_is_refused_with_one_sentence",),
    ),
    Fault(
        "attack: a second hello changes the settings of a run",
        'if changed := [key for key in differing_keys(before, table) if not key.startswith("engine.")]:',
        "if changed := []:",
        ("test_client_policy.py::test_a_second_hello_cannot_drop_clip_and_noise",),
    ),
    Fault(
        "attack: a round is answered as often as it is asked",
        "if not self.store.may_answer(place, op, digest):",
        "if False:",
        ("test_client_policy.py::test_many_questions_about_one_round_get_one_answer",),
    ),
    Fault(
        "attack: numbers out of range are taken",
        "if low - slack <= smallest and largest <= high + slack:",
        "if True:",
        ("test_screen.py::test_a_value_outside_its_declared_range_is_refused",),
    ),
    Fault(
        "attack: weights of any size are taken",
        "elif of_model > OF_MODEL:",
        "elif False:",
        ("test_hostile_client.py::test_large_weights_are_refused_and_the_run_is_as_without_them",),
    ),
    Fault(
        "attack: a client's words begin a line of the log",
        'kept = "".join(c if c.isprintable() else " " for c in text[: most + 1])',
        "kept = text[: most + 1]",
        ("test_hostile_client.py::test_a_clients_words_are_one_short_line_wherever_they_are_kept",),
    ),
    Fault(
        "attack: one address takes all connections",
        "if self._open[peer] >= self.limits.connections_per_address:",
        "if False:",
        ("test_gateway_limits.py::test_one_address_has_a_limit_of_its_own_before_it_says_anything",),
    ),
    Fault(
        "attack: a revoked key still opens",
        "if self.revoked is not None:",
        "if False:",
        ("test_keys.py::test_a_revoked_key_is_refused_with_its_reason_while_others_are_not",),
    ),
    Fault(
        "attack: an expired key still opens",
        "if self.expires is not None and datetime.datetime.now(datetime.UTC) >= self.expires:",
        "if False:",
        ("test_keys.py::test_a_key_expires_and_can_be_given_more_time",),
    ),
    Fault(
        "attack: a server goes back without permission",
        "if count > self.most_rollbacks:",
        "if False:",
        ("test_rollback_clients.py::test_clients_without_permission_refuse_and_their_state_stays",),
    ),
    Fault(
        "attack: a server goes back without a word",
        "if not self.store.reaches(place):",
        "if False:",
        ("test_rollback_clients.py::test_clients_without_permission_refuse_and_their_state_stays",),
    ),
    Fault(
        "attack: repeated rounds are free",
        "self.scenario.num_tasks * self.config.train.rounds + repeated_rounds(folder)",
        "self.scenario.num_tasks * self.config.train.rounds",
        ("test_rollback.py::test_a_run_that_went_back_ends_with_the_same_bytes_and_says_so",),
    ),
    Fault(
        "attack: other accounts reach the SuperLink",
        "        _new_network()\n        os.environ[STATE] = INSIDE",
        "        os.environ[STATE] = INSIDE",
        ("test_namespace.py",),
    ),
    Fault(
        "attack: the SuperLink answers every account",
        "return account_of(client, self.port, table) == os.geteuid()",
        "return True",
        ("test_security.py::test_another_account_of_the_machine_is_refused",),
    ),
    Fault(
        "attack: strangers write lines of the audit log",
        'line = json.dumps({"time": now, "event": event, **_plain(facts)}) + "\\n"',
        'line = str({"time": now, "event": event, **facts}).replace("\\\\n", "\\n") + "\\n"',
        ("test_audit.py",),
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
