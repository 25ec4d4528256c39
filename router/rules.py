"""Routes as rules: which of them holds for a request, and with what confidence.

A rule holds when every condition of its route's ``matches`` does. Where several rules hold, the most specific wins:

1. the one with more conditions;
2. else the one with a condition earlier in ``router.precedence``: tenant, model, pattern, topic, language, as what is
   known comes before what is guessed;
3. else the one whose lists are shorter;
4. else the first by name.

The order is fixed when routes are read, so the same request always takes the same route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from router.base import LabelGuess
from router.language_text import primary
from storage.records import Route
from storage.routes.matches import KEYS, LISTS, Pattern

STATED = ("tenant", "model")
"""Traits that a request states."""


@dataclass(frozen=True, slots=True)
class Traits:
    """The known or guessed traits of a request."""

    tenant: str
    model: str
    """The name that the request gives; of an adapter, perhaps."""
    text: bytes
    """What patterns search, see :func:`storage.routes.matches.searched`."""
    language: LabelGuess
    topic: LabelGuess


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """The result of a rule: whether it holds, and the confidence in that, in [0, 1]."""

    holds: bool
    sure: float
    unsure_of: str | None = None
    """The guess that would have made the rule hold, had its confidence been higher."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A route with rules in the contest for one request."""

    route: str
    holds: bool
    why: str
    """What sent the request there, or why it went elsewhere."""


class Rule:
    """One route's conditions, compiled. Raises BadPattern."""

    def __init__(self, route: Route, precedence: Sequence[str]) -> None:
        self.route, self._precedence = route, precedence
        self.conditions = tuple(key for key in precedence if route.matches.get(key))
        self._lists = {key: frozenset(route.matches[key]) for key in LISTS if route.matches.get(key)}
        if languages := self._lists.get("language"):
            self._lists["language"] = frozenset(map(primary, languages))
        pattern = route.matches.get("pattern")
        self._pattern = Pattern(pattern) if pattern else None

    @property
    def rank(self) -> tuple[Any, ...]:
        """The key by which rules are sorted, see the module."""
        words = sum(map(len, self._lists.values()))
        return -len(self.conditions), *(key not in self.conditions for key in self._precedence), words, self.route.name

    def loses_to(self, other: Rule) -> str:
        """Return why another rule that holds too comes before this one, for people."""
        if len(self.conditions) < len(other.conditions):
            return f"{other.route.name} has more conditions"
        for key in self._precedence:
            if (key in other.conditions) and key not in self.conditions:
                return f"{other.route.name} goes by {key}, which comes before {' and '.join(self.conditions)}"
        if self.rank[-2] > other.rank[-2]:
            return f"{other.route.name} lists fewer values"
        return f"{other.route.name} comes first by name"

    def judge(self, traits: Traits, least: float) -> RuleMatch:
        """Return whether the rule holds; a guess counts from the confidence ``least`` on."""
        verdicts = [self._condition(key, traits, least) for key in self.conditions]
        failed = [verdict for verdict in verdicts if not verdict.holds]
        if not failed:
            return RuleMatch(True, min(verdict.sure for verdict in verdicts))
        return max(failed, key=lambda verdict: verdict.sure)

    def objection(self, traits: Traits, least: float) -> str:
        """Return the conditions that do not hold, for people; empty where all do."""
        failed = {key: self._condition(key, traits, least) for key in self.conditions}
        return "; ".join(self._missed(key, traits, each) for key, each in failed.items() if not each.holds)

    def reason(self, traits: Traits) -> str:
        """Return the conditions that sent a request here, for people."""
        guesses = {"topic": traits.topic.label, "language": traits.language.label}
        values = {**{key: getattr(traits, key) for key in STATED}, **guesses}
        return ", ".join(key if key == "pattern" else f"{key}={values[key]}" for key in self.conditions)

    def _condition(self, key: str, traits: Traits, least: float) -> RuleMatch:
        if key == "pattern":
            return RuleMatch(self._pattern is not None and self._pattern.found_in(traits.text), 1.0)
        if key in STATED:
            return RuleMatch(getattr(traits, key) in self._lists[key], 1.0)
        return _guessed(key, traits.topic if key == "topic" else traits.language, self._lists[key], least)

    def _missed(self, key: str, traits: Traits, verdict: RuleMatch) -> str:
        if verdict.unsure_of:
            return verdict.unsure_of
        if key == "pattern":
            return "the pattern is not found"
        wanted = " or ".join(sorted(self._lists[key]))
        if key in STATED:
            return f"{key} is {getattr(traits, key)}, not {wanted}"
        guess = traits.topic if key == "topic" else traits.language
        return f"{key} is {guess.label or 'unknown'}, not {wanted}"


class Rules:
    """The rules of every route that matches something, the most specific first."""

    def __init__(self, routes: Sequence[Route], precedence: Sequence[str]) -> None:
        rules = (Rule(route, precedence) for route in routes)
        self._rules = sorted((rule for rule in rules if rule.conditions), key=lambda rule: rule.rank)

    def __len__(self) -> int:
        return len(self._rules)

    def use(self, key: str) -> bool:
        """Return whether some rule uses a trait: language, topic, tenant, model or pattern."""
        assert key in KEYS
        return any(key in rule.conditions for rule in self._rules)

    def first(self, traits: Traits, least: float) -> tuple[Rule | None, float, str]:
        """Return the winning rule (None where none holds), the confidence, and the reason."""
        verdicts = [(rule, rule.judge(traits, least)) for rule in self._rules]
        for rule, verdict in verdicts:
            if verdict.holds:
                return rule, verdict.sure, rule.reason(traits)
        doubts = [verdict.unsure_of for _, verdict in verdicts if verdict.unsure_of]
        reason = f"unsure: {doubts[0]}" if doubts else "no route matches"
        return None, min((verdict.sure for _, verdict in verdicts), default=1.0), reason

    def contest(self, traits: Traits, least: float) -> list[Contestant]:
        """Return every rule with what it makes of a request, the winner first, then the rules in their order."""
        winner, _, _ = self.first(traits, least)
        found = []
        for rule in self._rules:
            holds = rule.judge(traits, least).holds
            why = rule.reason(traits) if holds else rule.objection(traits, least)
            if winner is not None and holds and rule is not winner:
                why += f"; but {rule.loses_to(winner)}"
            found.append(Contestant(rule.route.name, holds, why))
        return sorted(found, key=lambda each: not each.holds)


def _guessed(key: str, seen: LabelGuess, wanted: frozenset[str], least: float) -> RuleMatch:
    """Judge a guessed trait by label and confidence.

    A different label means no, as surely as the label is sure; the right one below ``least`` means no, unsurely.
    """
    if seen.label is None:
        return RuleMatch(False, 1 - seen.confidence)
    if seen.label not in wanted:
        return RuleMatch(False, seen.confidence)
    if seen.confidence >= least:
        return RuleMatch(True, seen.confidence)
    doubt = f"{key}={seen.label} at {seen.confidence:.2f}, {least:.2f} needed" + (
        f" ({seen.doubt})" if seen.doubt else ""
    )
    return RuleMatch(False, 1 - seen.confidence, doubt)
