"""Error codes that providers put in bodies and exceptions, in one table.

Codes are compared without case, separators and a trailing ``Exception``: ``rate_limit_exceeded``, ``rateLimitExceeded``
and ``ThrottlingException`` need no second spelling.
"""

from __future__ import annotations

import re
from typing import Any, Final

from otel_breaker.outcomes import ANSWERED, FAILURE, IGNORED, THROTTLED, UNAUTHORIZED, Outcome

from ._safe import say

_SEPARATORS: Final = re.compile(r"[^a-z0-9]")
_SQLSTATE: Final = re.compile(r"[0-9A-Z]{5}")

DENIALS: Final = frozenset({"approvaldenied", "permissiondenied", "approvalerror", "policydenied", "guardraildenied"})
"""Codes by which harnesses say that a person or a policy refused the call."""

_WORDS: Final = (
    (
        Outcome(THROTTLED, "quota_exhausted"),
        """insufficient_quota quota_exceeded daily_limit_exceeded billing_not_active
        billing_hard_limit_reached insufficient_credits insufficient_balance credit_balance_exhausted""",
    ),
    (
        Outcome(THROTTLED, "throttled"),
        """rate_limit_exceeded rate_limit_error rate_limited ratelimit too_many_requests
        throttled throttling throttled_error throttling_error request_throttled request_throttling requests_throttled
        request_limit_exceeded provisioned_throughput_exceeded bandwidth_limit_exceeded concurrency_limit_exceeded
        slow_down ec2_throttled user_rate_limit_exceeded resource_exhausted message_limit_exceeded""",
    ),
    (
        Outcome(FAILURE, "overloaded"),
        """overloaded overloaded_error service_overloaded engine_overloaded model_overloaded
        server_overloaded server_is_overloaded server_busy over_capacity capacity_exceeded model_not_ready
        too_many_connections loading oom""",
    ),
    (
        Outcome(FAILURE, "server_error"),
        """unavailable service_unavailable temporarily_unavailable internal internal_error
        internal_failure internal_server internal_server_error server_error api_error unknown data_loss fatal_error
        bad_gateway gateway_timeout upstream_error""",
    ),
    (Outcome(FAILURE, "timeout"), "deadline_exceeded request_timeout timeout_error model_timeout"),
    (
        Outcome(UNAUTHORIZED),
        """unauthenticated unauthorized invalid_api_key authentication_error token_revoked
        token_expired invalid_auth not_authed account_inactive unrecognized_client invalid_client_token_id expired_token
        invalid_access_key_id auth_failure no_auth wrong_pass""",
    ),
    (
        ANSWERED,
        """invalid_argument not_found already_exists failed_precondition out_of_range aborted permission_denied
        unimplemented invalid_request invalid_request_error permission_error not_found_error request_too_large
        validation access_denied context_length_exceeded content_filter content_policy_violation
        conditional_check_failed resource_not_found no_perm""",
    ),
    (IGNORED, "cancelled approval_denied approval_error policy_denied guardrail_denied"),
)
_CODES: Final[dict[str, Outcome]] = {_SEPARATORS.sub("", w): outcome for outcome, ws in _WORDS for w in ws.split()}

_NUMBERS: Final[dict[str, Outcome]] = {
    "-32700": Outcome(FAILURE, "malformed_output"),
    "-32603": Outcome(FAILURE, "server_error"),
    "-32602": ANSWERED,
    "-32601": ANSWERED,
    "-32600": IGNORED,
    "32600": IGNORED,  # MCP SDK 1.x says so (without the sign) when a session has ended
}
"""JSON-RPC; of ``-32000`` to ``-32019`` the protocol says that receivers must not assume a meaning."""

_SQL_CLASSES: Final = (
    ("28", Outcome(UNAUTHORIZED)),
    ("08", Outcome(FAILURE, "connection_error")),
    ("53", Outcome(FAILURE, "overloaded")),
    ("57P03", Outcome(FAILURE, "overloaded")),
    ("57P", Outcome(FAILURE, "connection_error")),
    ("58", Outcome(FAILURE, "server_error")),
    ("XX", Outcome(FAILURE, "server_error")),
)


def normalised(code: str) -> str:
    """The form in which codes are compared: lower case, letters and digits, no namespace, no ``exception`` suffix."""
    text = str.__str__(code).rpartition("#")[2].partition(":")[0].lower()
    return _SEPARATORS.sub("", text).removesuffix("exception")


def code_outcome(code: Any) -> Outcome | None:
    """What a provider's error code says about the dependency; ``None`` for a code that the table does not hold.

    ``code`` is text (``insufficient_quota``, ``ThrottlingException``, ``RESOURCE_EXHAUSTED``) or a JSON-RPC number.
    Only codes are read, never prose. Never raises.
    """
    try:
        if isinstance(code, str):
            text = str.__str__(code)
            if len(text) > 128:
                return None
            return _NUMBERS.get(text) or _CODES.get(normalised(text))
        if isinstance(code, int) and not isinstance(code, bool):
            return _NUMBERS.get(str(int(code)))
    except Exception:  # whatever was handed in
        say("code", "an error code of type %s cannot be read", type(code).__name__)
    return None


def sqlstate_outcome(state: Any) -> Outcome | None:
    """What an SQLSTATE says: credentials, connection and resources by class, any other state is an answer."""
    if not isinstance(state, str) or not _SQLSTATE.fullmatch(state):
        return None
    return next((outcome for prefix, outcome in _SQL_CLASSES if state.startswith(prefix)), ANSWERED)
