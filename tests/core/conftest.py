"""How much hypothesis does: ``ci`` unless ``--hypothesis-profile`` says otherwise."""

from __future__ import annotations

from typing import Final

from hypothesis import Phase, settings

EXAMPLES: Final = 1600

# The same every time; a failure prints the blob that repeats it.
settings.register_profile("ci", derandomize=True, print_blob=True, max_examples=EXAMPLES)
# Other seeds each time, ten times as many.
settings.register_profile("explore", print_blob=True, max_examples=10 * EXAMPLES)
# For `tests.support.mutants`: what fails need not be made small.
settings.register_profile(
    "mutants", derandomize=True, max_examples=EXAMPLES, phases=[Phase.generate], report_multiple_bugs=False
)
