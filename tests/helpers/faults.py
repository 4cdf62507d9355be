"""Planted faults: what each makes wrong, by the public name of a function, and who must notice.

``MEMALPHA_FAULT=NAME python -m pytest TEST`` plants one before any test is imported. A fault is a
function that gets the right one and its arguments; its docstring says what is wrong. Only
``memalpha.types`` is imported here, so whoever uses a function imports it after it was replaced.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pkgutil import resolve_name
from typing import Any

from memalpha.types import Chunk, OperationKind


@dataclass(frozen=True)
class Fault:
    """``what`` is wrong if ``wrong(right, ...)`` runs in place of the function ``target``; the
    ``tests`` must fail then.
    """

    what: str
    target: str
    wrong: Callable[..., Any]
    tests: tuple[str, ...]

    def plant(self, monkeypatch):
        right = resolve_name(self.target)

        @wraps(right)
        def planted(*args, **kwargs):
            return self.wrong(right, *args, **kwargs)

        monkeypatch.setattr(self.target, planted)


FAULTS: dict[str, Fault] = {}


def fault(target, *tests):
    def add(wrong):
        FAULTS[wrong.__name__] = Fault(wrong.__doc__, f"memalpha.{target}", wrong, tests)
        return wrong

    return add


BY_HAND = "tests/training/test_gradient.py::test_the_gradient_is_that_of_the_loss_by_hand"


# ------------------------------------------------------------------------------------------------
# training
@fault("training.rows.advantages", "tests/training/test_rows.py::test_groups_by_hand")
def advantages_against_everything(advantages, rewards, groups, *scale):
    """A reward is compared with those of all groups, not with those of its own."""
    return advantages(rewards, [0] * len(rewards), *scale)


@fault(
    "training.rows.advantages",
    "tests/training/test_rows.py::test_masked_equal_and_lonely_rows_teach_nothing",
)
def masked_rows_teach(advantages, rewards, *args):
    """A row that could not be scored counts as one of reward 0, and is trained."""
    return advantages([0.0 if math.isnan(reward) else reward for reward in rewards], *args)


@fault("training.trainer.MemoryGRPOTrainer.compute_loss", f"{BY_HAND}[dapo, cut off rows dropped]")
def rows_without_a_loss_are_trained(compute_loss, trainer, model, inputs, *args, **kwargs):
    """The loss does not mask the rows that are left out."""
    for row in inputs.rows:
        row.left_out = False
    return compute_loss(trainer, model, inputs, *args, **kwargs)


@fault(
    "training.trainer.MemoryGRPOTrainer.compute_loss",
    f"{BY_HAND}[grpo, two epochs, by trajectory]",
)
def old_scores_are_the_new_policys(compute_loss, trainer, model, inputs, *args, **kwargs):
    """The importance ratio is always 1: the policy is compared with itself, not the old one."""
    for row in inputs.rows:
        row.old = None
    return compute_loss(trainer, model, inputs, *args, **kwargs)


@fault(
    "update.attention.group_layout",
    "tests/training/test_packed.py::test_values_and_gradients_equal_plain_forwards[padded]",
)
def packed_rows_see_siblings(group_layout, start, prefix, lengths, device):
    """A packed row attends to the rows before it that share its prefix."""
    return group_layout(start, prefix, [sum(lengths)], device)


@fault(
    "generation.hf.HFGenerator.generate",
    "tests/training/test_resume.py::test_a_checkpoint_draws_the_completions_of_the_next_step",
)
def a_resumed_run_draws_anew(generate, generator, prompts, sampling):
    """Completions depend on the random state of the process, not on seed, step and rank alone."""
    return generate(generator, prompts, replace(sampling, seed=None))


@fault(
    "files.flush",
    "tests/training/test_faults.py::test_a_checkpoint_is_on_disk_before_it_takes_its_name",
)
def published_before_it_is_whole(flush, path):
    """A checkpoint takes its name before its files are on disk."""


# ------------------------------------------------------------------------------------------------
# reward
@fault("rewards.StepReward.total", "tests/rewards/test_total.py::test_a_rollout_by_hand")
def weights_are_ignored(total, reward, config):
    """The parts of the reward are added up without their weights."""
    return sum(reward[name] for name, (_, weight) in config.parts.items() if weight)


# ------------------------------------------------------------------------------------------------
# memory and prompt
@fault("memory.memory.Memory.apply", "tests/memory/test_store.py::test_a_small_history_by_hand")
def updates_keep_the_old_text(apply, memory, operation, **where):
    """An update leaves the text of the entry as it was."""
    old = memory.get(operation.entry_id or "")
    if old and operation.kind is OperationKind.UPDATE:
        operation = replace(operation, content=old.content)
    return apply(memory, operation, **where)


@fault(
    "memory.memory.Memory.restore",
    "tests/memory/test_store.py::test_going_back_frees_no_id_and_numbers_of_changes_grow_on",
)
def ids_are_used_twice(restore, memory, snapshot):
    """Going back to a snapshot gives the ids out again that were given since."""
    memory.__init__(memory.schema, memory.count_tokens)
    restore(memory, snapshot)


@fault("agent.step.MemoryView.render", "tests/agent/test_step.py::test_the_prompt_token_by_token")
def the_newest_entry_is_not_shown(render, view, memory, *args):
    """The prompt shows the memory without what was written last."""
    newest = [entry.id for entry in memory.newest()][:1]
    return render(view, memory.copy(without=newest), *args)


@fault(
    "text.encoding.PromptEncoder.encode",
    "tests/measure/test_structure.py::test_all_known_tricks_at_once_change_no_template",
)
def texts_become_special_tokens(encode, encoder, texts, shared):
    """A mark inside a chunk or an entry becomes a special token of the prompt."""
    tokenizer = encoder.tokenizer
    encoder.untrusted = lambda text: tokenizer(text, add_special_tokens=False).input_ids
    return encode(encoder, texts, shared)


# ------------------------------------------------------------------------------------------------
# search and answers
@fault(
    "retrieval.dense.VectorIndex.search",
    "tests/retrieval/test_indexes.py::test_exact_search_is_numpy_brute_force",
)
def the_farthest_come_first(search, index, vector, k):
    """FAISS's order is reversed."""
    return search(index, vector, len(index))[::-1][:k]


@fault(
    "memory.memory.newer",
    "tests/agent/test_archive.py::test_losses_against_every_pair_by_hand",
)
def the_older_ranks_higher(newer, first, second):
    """Of two lines that say nearly the same, the newer one ranks lower."""
    return newer(second, first)


@fault(
    "qa.readers.within_budget",
    "tests/qa/test_evaluator.py::test_the_recall_reader_answers_with_what_was_retrieved",
)
def passages_beyond_the_budget_are_read(within_budget, passages, *budget):
    """A reader answers from passages that its budget has no room for."""
    return tuple(passages)


@fault(
    "qa.readers.QAEvaluator.evaluate_many",
    "tests/qa/test_evaluator.py::"
    "test_an_endpoint_that_fails_for_one_question_masks_only_that_one_and_is_not_asked_twice",
)
def a_failure_scores_0(evaluate_many, evaluator, *items):
    """A question that could not be scored counts as answered wrongly."""
    rows = evaluate_many(evaluator, *items)
    return [
        [replace(each, score=0.0 if each.error else each.score) for each in row] for row in rows
    ]


# ------------------------------------------------------------------------------------------------
# store, data and options
@fault("store.records.check", "tests/journal/test_damage.py::test_verify_finds_every_edit")
def the_chain_is_not_checked(check, *args):
    """Records are read without a look at their hashes."""
    return []


@fault(
    "store.history.lines_by_operation",
    "tests/use/test_archive.py::"
    "test_forget_lists_every_other_line_and_entry_with_its_words_and_takes_them_along",
)
def forgotten_facts_stay_in_lines(lines_by_operation, history, operations):
    """What is forgotten is still in the lines of the archive."""
    return {}


@fault(
    "data.leaks.LeakCheck.check",
    "tests/data/test_leaks.py::test_a_passage_again_also_among_others_and_in_other_letter_case",
)
def capitals_hide_a_leak(check, leak_check, instance, **options):
    """What is written in capitals is not compared with what was learned."""
    texts = [re.sub("[A-Z]{2,}", "", chunk.text) for chunk in instance.chunks]
    hidden = replace(instance, chunks=tuple(map(Chunk, texts)))
    return check(leak_check, hidden, **options)


@fault(
    "record.folder.mask_options",
    "tests/test_provenance.py::"
    "test_no_file_of_a_run_folder_and_no_page_of_its_report_holds_a_secret",
)
def secrets_are_recorded(masked, value, name=""):
    """The configuration that a run records holds tokens and keys."""
    return value if isinstance(value, dict) else masked(value, name)


@fault("config.check_name", "tests/test_config.py::test_what_does_not_fit_is_named")
def unknown_options_are_accepted(check_name, *args):
    """An option that does not exist is passed over in silence."""
