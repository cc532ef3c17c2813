"""The tests notice when core, circuit or guard are wrong: each of a dozen faults is put in, and caught."""

from __future__ import annotations

import pytest

from tests.support.mutants import MUTANTS, PAGE, passes, run, table


@pytest.mark.timeout(400)
def test_every_mutant_is_caught_as_the_page_says() -> None:
    results = run()
    assert [mutant.what for mutant, test in zip(MUTANTS, results, strict=True) if test is None] == []
    assert table(results) in PAGE.read_text()


@pytest.mark.timeout(400)
def test_without_a_fault_the_same_tests_pass() -> None:
    assert passes(sorted({mutant.test for mutant in MUTANTS}))
