"""The page of training runs: what it says of a run's rollouts is the mean over the first and the last eighth of its steps."""

import results_table


def test_the_first_and_the_last_eighth_of_the_steps_are_averaged():
    curve = [{"step": step, "memory/entries": float(step), "memory/tokens": 2.0 * step} for step in range(1, 25)]
    curve[-1] = {"step": 24, "memory/entries": 30.0}  # tokens were not written down at the last step: no such line
    assert results_table.watch(curve) == [
        "",
        "| sampled in training | steps 1 to 3 | steps 22 to 24 |",
        "| --- | --- | --- |",
        "| entries at the end | 2.000 | 25.000 |",
    ]


def test_too_short_a_run_has_no_first_and_last_part():
    assert results_table.watch([{"step": step, "memory/entries": 1.0} for step in range(1, 16)]) == []
