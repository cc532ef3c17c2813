"""A policy from what a user may pass."""

from __future__ import annotations

from .core.policy import Policy


def named_policy(policy: Policy | str | None) -> Policy | None:
    """A policy from what a user may pass: itself, the name of a class, or nothing.

    Raises:
        TypeError: for anything else.
        ValueError: for an unknown class; the message lists the known ones.
    """
    if policy is None or isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise TypeError(f"policy must be a Policy or the name of a class, not {type(policy).__name__}")
    from .errors import SettingsError
    from .settings import current

    try:
        return current().policy(policy)
    except SettingsError as error:
        raise ValueError(str(error)) from None
