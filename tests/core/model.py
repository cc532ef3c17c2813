"""A plain model of one circuit: what the design says, in the most obvious way, with no thought of speed.

One mutable object. Time is played out moment by moment, cooldowns are counted one at a time, the window is a list of
calls. It shares nothing with the machine but the words: `Policy` and `Outcome` are read as plain data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from otel_breaker.core.policy import Policy
from otel_breaker.outcomes import Outcome

Word = tuple[Any, ...]
NEVER = -math.inf
FOREVER = math.inf


class Model:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.said: list[Word] = []
        self.state = "closed"
        self.fence = 0
        self.longest = 0.0  # the longest success seen while closed
        self.asked_until = NEVER  # the moment until which the last Retry-After asks to wait
        self.text, self.forced_until = "", FOREVER
        self._zero()

    def _zero(self) -> None:
        self.streak = 0
        self.throttles = 0
        self.calls: list[tuple[float, bool, bool]] = []  # (end, failed, slow)
        # The episode: from leaving closed until closed again.
        self.began = 0.0
        self.failures = 0
        self.reason: str | None = None
        self.cooldown = 0.0
        self.until = 0.0
        self.step = 0
        self.draw = 0.0
        self.run_out = 0  # cooldowns run out
        self.next_run_out = FOREVER
        self.next_step = 0
        self.tested = NEVER
        self.paused = False
        # The probe, while half-open.
        self.probing = False
        self.probe_began = self.lease = 0.0
        self.lapses = FOREVER
        self.freed = NEVER
        self.run = 0

    # --- what can happen ----------------------------------------------------------------------------------------------

    def acquire(self, now: float, timeout: float | None, health: bool) -> None:
        self._until(now)
        if self.state in ("closed", "disabled"):
            self.said.append(("admitted", self.fence, False))
        elif self.state == "forced_open":
            left = self.policy.cooldown if self.forced_until == FOREVER else self.forced_until - now
            self.said.append(("refused", "forced_open", left))
        elif self.state == "open" and now < self.until:
            self.said.append(("refused", "credential_paused" if self.paused else "circuit_open", self.until - now))
        elif self.probing:
            self.said.append(("refused", "probe_in_flight", self.lapses - now))
        elif self.policy.probe_by == "health_check" and not health:
            self.said.append(("refused", "circuit_open", self.next_run_out - now))
        else:
            if self.state == "open":
                self._move("half_open", "cooldown_elapsed", now)
                self.run = 0
            else:
                self.fence += 1
            self.probing, self.probe_began = True, now
            self.lease = min(max(self.policy.call_deadline, timeout or 0.0, 2 * self.longest), 15 * 60)
            self.lapses = now + self.lease
            self.said.append(("admitted", self.fence, True))

    def settle(
        self,
        now: float,
        fence: int,
        outcome: Outcome,
        duration: float,
        draw: float,
        worked: bool,
        deadline: float | None,
    ) -> None:
        self._until(now)
        if fence != self.fence:
            self.said.append(("counted", "late", None))
        elif self.state == "disabled":
            self.said.append(("counted", outcome.kind, None))
        elif self.state == "half_open":
            self._note_retry_after(outcome, now)
            self._probe_ended(outcome, now, draw, worked)
        else:
            if not (outcome.kind == "throttled" and outcome.credential):
                self._note_retry_after(outcome, now)
            self._call_ended(outcome, now, duration, draw, worked, deadline)

    def renew(self, now: float, fence: int) -> None:
        self._until(now)
        if fence != self.fence or not self.probing:
            return
        if now - self.probe_began >= self.lease:  # it has delivered for one lease without a fault
            self._probe_ended(Outcome("success"), now, 0.0, False)
        else:
            self.lapses = now + self.lease

    def force_open(self, now: float, text: str, seconds: float | None) -> None:
        self._until(now)
        self._command("forced_open", now)
        self.text, self.forced_until = text, FOREVER if seconds is None else now + seconds

    def disable(self, now: float) -> None:
        self._until(now)
        self._command("disabled", now)

    def reset(self, now: float) -> None:
        self._until(now)
        self._command("closed", now)
        self.asked_until = NEVER

    def resume(self, now: float) -> None:
        self._until(now)
        if self.state in ("forced_open", "disabled"):
            self._command("closed", now)
        elif self.state == "open" and self.paused:
            self.fence += 1
            self.until = min(self.until, now)

    def look(self, now: float) -> Word:
        """(state, failures, cooldown, retry_after, cooldowns_elapsed, awaiting_probe, reason, open_elapsed)."""
        then = copy.copy(self)
        then.said, then.calls = [], list(self.calls)
        then._until(now)
        return then._look(now)

    def _look(self, now: float) -> Word:
        if self.state == "closed":
            return "closed", self.streak, 0.0, 0.0, 0, False, None, 0.0
        if self.state == "disabled":
            return "disabled", 0, 0.0, 0.0, 0, False, None, 0.0
        if self.state == "forced_open":
            left = self.policy.cooldown if self.forced_until == FOREVER else self.forced_until - now
            return "forced_open", 0, 0.0, left, 0, False, self.text, 0.0
        waiting = self.state == "open" and now < self.until
        if waiting:
            left = self.until - now
        elif self.probing:
            left = self.lapses - now
        else:
            left = self.next_run_out - now if self.policy.probe_by == "health_check" else 0.0
        awaiting = self.state == "open" and not waiting
        return self.state, self.failures, self.cooldown, left, self.run_out, awaiting, self.reason, now - self.began

    # --- what time does -----------------------------------------------------------------------------------------------

    def _until(self, now: float) -> None:
        while (due := self._due()) is not None and due[0] <= now:
            self._run_out(due[0])
            due[1](due[0])
        self._run_out(now)

    def _due(self) -> tuple[float, Callable[[float], None]] | None:
        if self.state == "forced_open":
            return self.forced_until, self._force_over
        if self.state not in ("open", "half_open"):
            return None
        if self.probing:
            return self.lapses, self._lapsed
        ttl = self.policy.verdict_ttl
        if ttl is None:
            ttl = max(self.policy.cooldown_cap, self.cooldown) + 300
        expires = max(self.until, self.tested) + ttl
        return max(expires, self.freed) if self.state == "half_open" else expires, self._expired

    def _force_over(self, at: float) -> None:
        self._move("closed", "manual", at)
        self._zero()

    def _lapsed(self, at: float) -> None:
        self.said.append(("probe_over", "failure", "probe_lapsed", at))
        self._reopen("probe_lapsed", at)

    def _expired(self, at: float) -> None:
        self._close("expired", at)

    def _run_out(self, now: float) -> None:
        while self.state in ("open", "half_open") and self.next_run_out <= now:
            self.run_out += 1
            self.next_run_out += self._length(self.next_step)
            self.next_step += 1

    # --- the ladder ---------------------------------------------------------------------------------------------------

    def _length(self, step: int) -> float:
        steps = self.policy.cooldown_steps
        rung = steps[step] if step < len(steps) else steps[-1]
        return self._longer(min(self.policy.cooldown * rung, self.policy.cooldown_cap))

    def _longer(self, length: float) -> float:
        return length + length * self.policy.cooldown_jitter * self.draw

    def _cool(self, at: float) -> None:
        """The open period that begins ``at``: this step's, or what is left of a Retry-After."""
        self.cooldown = self._length(self.step)
        if (left := self.asked_until - at) > 0:
            self.cooldown = self._longer(max(1.0, min(left, self.policy.retry_after_cap)))
        self.until = self.next_run_out = at + self.cooldown
        self.next_step = self.step + 1

    def _note_retry_after(self, outcome: Outcome, now: float) -> None:
        seconds = outcome.retry_after
        if seconds is not None and 0 < seconds < math.inf:
            self.asked_until = now + max(1.0, min(seconds, self.policy.retry_after_cap))

    # --- a call that ends while closed --------------------------------------------------------------------------------

    def _call_ended(
        self, outcome: Outcome, now: float, duration: float, draw: float, worked: bool, deadline: float | None
    ) -> None:
        policy = self.policy
        kind = outcome.kind
        self.said.append(("counted", kind, outcome.reason if kind in ("failure", "throttled") else None))
        if kind == "unauthorized" and worked:
            self.said.append(("revoked",))
            if policy.on_unauthorized == "pause":
                self._pause(now, draw)
        elif kind == "throttled" and outcome.credential is None:
            asked = outcome.retry_after
            if asked is not None and 0 < asked <= (deadline or policy.call_deadline):
                self.throttles = 0
            else:
                self.throttles += 1
                if self.throttles >= policy.throttle_threshold:
                    self._open(self.throttles, outcome.reason or "throttled", now, draw)
        elif kind in ("success", "failure"):
            self.calls.append((now, kind == "failure", policy.slow_call is not None and duration > policy.slow_call))
            if kind == "success":
                self.streak = self.throttles = 0
                self.longest = max(self.longest, duration)
            else:
                self.streak += 1
            if self.streak >= policy.failure_threshold:
                self._open(self.streak, outcome.reason or "unclassified", now, draw)
            else:
                self._shares(outcome, now, draw)

    def _shares(self, outcome: Outcome, now: float, draw: float) -> None:
        policy = self.policy

        def piece(moment: float) -> int:  # a window is exact to a thirtieth
            return math.floor(moment * 30 / policy.window)

        inside = [call for call in self.calls if piece(now) - piece(call[0]) < 30]
        if len(inside) < policy.minimum_calls:
            return
        failed, slow = sum(call[1] for call in inside), sum(call[2] for call in inside)
        if outcome.kind == "failure" and policy.failure_rate and failed >= policy.failure_rate * len(inside):
            self._open(failed, outcome.reason or "unclassified", now, draw)
        elif policy.slow_rate and slow >= policy.slow_rate * len(inside):
            self._open(slow, "slow_rate", now, draw)

    # --- a probe that ends --------------------------------------------------------------------------------------------

    def _probe_ended(self, outcome: Outcome, now: float, draw: float, worked: bool) -> None:
        kind, reason = outcome.kind, None
        if kind in ("failure", "throttled"):
            reason = outcome.reason or ("unclassified" if kind == "failure" else "throttled")
        self.said.append(("counted", kind, reason))
        self.said.append(("probe_over", kind, reason, now))
        if reason is not None:
            self._reopen(reason, now)
        elif kind == "success" and self.run + 1 >= self.policy.success_threshold:
            self._close("probe_succeeded", now)
        elif kind == "success":
            self.run += 1
            self.tested = now
            self._free(now)
        elif kind == "unauthorized" and worked:  # of a credential: it is revoked, and once more refused
            if not self.paused:
                self.said.append(("revoked",))
            if self.policy.on_unauthorized == "pause":
                self._pause(now, draw)
            else:
                self._free(now)
        else:
            if outcome.answered:
                self.tested = now
                self.next_run_out = max(self.next_run_out, now + self.cooldown)
            self._free(now)

    def _free(self, now: float) -> None:
        self.fence += 1
        self.probing, self.freed, self.lapses = False, now, FOREVER

    # --- moves --------------------------------------------------------------------------------------------------------

    def _move(self, state: str, reason: str, at: float) -> None:
        failures = self.streak if self.state == "closed" else self.failures
        self.said.append(("moved", self.state, state, reason, failures, self.cooldown, at))
        self.state, self.fence = state, self.fence + 1

    def _open(self, failures: int, reason: str, now: float, draw: float) -> None:
        self._zero()
        self.began, self.failures, self.reason, self.draw = now, failures, reason, draw
        self._cool(now)
        self.streak = failures
        self._move("open", reason, now)

    def _reopen(self, reason: str, at: float) -> None:
        self.failures, self.reason, self.step = self.failures + 1, reason, self.step + 1
        self.tested, self.paused, self.probing, self.run = NEVER, False, False, 0
        self._cool(at)
        self._move("open", reason, at)

    def _pause(self, now: float, draw: float) -> None:
        if self.state == "closed":
            self._zero()
            self.began, self.draw = now, draw
        self.paused, self.reason, self.step, self.next_step = True, "unauthorized", -1, 0
        self.probing, self.run, self.tested = False, 0, NEVER
        self.cooldown = self.policy.pause
        self.until = self.next_run_out = now + self.cooldown
        self._move("open", "unauthorized", now)

    def _close(self, reason: str, at: float) -> None:
        self._move("closed", reason, at)
        self.said.append(("episode_over", at - self.began))
        self._zero()

    def _command(self, state: str, now: float) -> None:
        if self.probing:
            self.said.append(("probe_over", "neutral", None, now))
        episode = self.state in ("open", "half_open")
        if state == self.state:
            self.fence += 1
        else:
            self._move(state, "manual", now)
        if episode:
            self.said.append(("episode_over", now - self.began))
        self._zero()
