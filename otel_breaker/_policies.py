"""A policy from what a user may pass."""

from __future__ import annotations

from .core.policy import NAMED, Policy


def named_policy(policy: Policy | str | None) -> Policy | None:
    """A policy from what a user may pass: itself, the name of a class, or nothing."""
    if policy is None or isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise TypeError(f"policy must be a Policy or the name of a class, not {type(policy).__name__}")
    from .settings import current

    classes: dict[str, Policy] = getattr(current(), "policies", NAMED)
    if policy not in classes:
        raise ValueError(f"unknown policy class {policy!r}; known: {', '.join(classes)}")
    return classes[policy]
