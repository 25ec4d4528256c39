"""How likely drafted tokens are to be accepted: a logistic regression that learns from every verdict.

The log-odds of acceptance are a sum of what is normal beforehand (random effects):

    x = b + w z + r + c        z: evidence;  r: the request;  c: the token beside it
    (b, w) ~ N(prior),  r, c ~ N(0, spread²)

so a request, or a token, of which little is known counts as all others do. A verdict y moves each term by its share of
what was not known (Laplace's approximation, one step of Newton's method: an extended Kalman filter),

    x ← x + V (y − p) / (1 + h v),   V ← V − V² h / (1 + h v),     h = p (1 − p),  v = var x

with p the chance that x's own uncertainty allows for, σ(x / sqrt(1 + π v / 8)) (MacKay, 1992). What is known fades:
each verdict widens V by 4 h / memory, so one that tells nothing makes nothing forgotten. Derivation: docs/gamma.md.
"""

from __future__ import annotations

from math import exp, log, pi, sqrt

Effect = list[float]
"""Mean and variance of a term, in log-odds."""
Look = tuple["Regression", float, Effect, Effect]
"""What a chance came from: model, evidence, the request's term and the token's. :func:`learn` takes it back."""
Looks = tuple[Look, Look | None, Look | None]
"""At one token: before its pass, after it, and once an acceptance head has read it."""
CONTEXTS = 8192
"""Tokens of which a model remembers how drafts fare beside them; the oldest is dropped for another."""
_CAUTION = 1e-3
"""No chance is nearer to 0 or 1."""


def log_odds(chance: float) -> float:
    """Return ln(p / (1 − p))."""
    chance = min(max(chance, _CAUTION), 1 - _CAUTION)
    return log(chance / (1 - chance))


def expected(mean: float, variance: float) -> float:
    """Return the chance that log-odds N(mean, variance) come to, on average."""
    x = mean / sqrt(1 + pi / 8 * variance)
    return 1 / (1 + exp(-x)) if x > -30 else exp(x)


class Regression:
    """One model: b + w z, with a term for each token."""

    __slots__ = ("_cross", "_fade", "_prior", "_spread", "contexts", "mean", "slope", "var", "var_slope")

    def __init__(self, slope: float, var_slope: float, spread: float, memory: float) -> None:
        """Begin with b = 0 ± 1 and w = ``slope`` ± sqrt(``var_slope``)."""
        self.mean, self.slope, self.var, self.var_slope, self._cross = 0.0, slope, 1.0, var_slope, 0.0
        self._prior, self._spread, self._fade = (1.0, var_slope), spread * spread, 4 / memory
        self.contexts: dict[int, Effect] = {}

    def context(self, token: int) -> Effect:
        """Return the term of a token."""
        found = self.contexts.get(token)
        if found is None:
            if len(self.contexts) >= CONTEXTS:
                del self.contexts[next(iter(self.contexts))]
            found = self.contexts[token] = [0.0, self._spread]
        return found

    def look(self, z: float, request: Effect, token: Effect) -> tuple[float, float]:
        """Return mean and variance of the log-odds."""
        known = self.var + z * (2 * self._cross + z * self.var_slope)
        return self.mean + self.slope * z + request[0] + token[0], known + request[1] + token[1]

    def learn(self, z: float, request: Effect, token: Effect, verdict: float) -> None:
        """Learn a verdict, 0 to 1."""
        mean, var = self.look(z, request, token)
        p = expected(mean, var)
        h = p * (1 - p)
        moved = (verdict - p) / (1 + h * var)
        known = h / (1 + h * var)
        keep = 1 + self._fade * h  # what tells little makes little forgotten
        for term in (request, token):
            v = term[1]
            term[0] += v * moved
            term[1] = min(self._spread, (v - v * v * known) * keep)
        b, w = self.var + self._cross * z, self._cross + self.var_slope * z
        self.mean += b * moved
        self.slope += w * moved
        self.var = min(self._prior[0], (self.var - b * b * known) * keep)
        self.var_slope = min(self._prior[1], (self.var_slope - w * w * known) * keep)
        self._cross -= b * w * known

    def fade(self, share: float) -> None:
        """Forget this share of what is known: a draft that rests may have changed."""
        self.mean -= share * self.mean
        self.var += share * (self._prior[0] - self.var)


class Acceptance:
    """What is known of one draft: three models, of a round's first token before its pass, of a token after its pass,
    and of the one after that before its own pass."""

    def __init__(self, spread: float, memory: float) -> None:
        """``spread``: standard deviation of requests, and of tokens, in log-odds; ``memory``: verdicts that a model
        remembers."""
        self._spread = spread
        self.first = Regression(0.0, 0.0, spread, memory)
        """A round's first token, beside the row's last one."""
        self.after = Regression(1.0, 0.25, spread, memory)
        """z: the log-odds of the draft's own probability, to begin with as if it were the truth."""
        self.then = Regression(1.0, 0.25, spread, memory)
        """z: the log-odds of the token before, as :attr:`after` has them."""
        self.told = Regression(0.5, 0.25, spread, memory)
        """Beside the log-odds that :attr:`after` has, of a token that an acceptance head has read: z is how far the
        head's are from those, to begin with believed by half."""

    def begin_after(self, other: Acceptance) -> None:
        """Begin where another's models are, and be no more certain than at a start: the target is another."""
        for own, theirs in ((self.first, other.first), (self.after, other.after), (self.then, other.then)):
            own.mean, own.slope = theirs.mean, theirs.slope

    def request(self) -> tuple[Effect, Effect]:
        """Return the terms of a new request: before passes, and after them."""
        return [0.0, self._spread**2], [0.0, self._spread**2]

    def learn(self, looks: list[Looks], drafted: int, taken: int, chances: object) -> None:
        """Learn the verdicts on a draft, which end with the first refusal; of a token that was looked at and not kept,
        the chance after its pass is what the models before it learn."""
        for i, (before, after, by_head) in enumerate(looks[: taken + 1]):
            told = after and expected(*after[0].look(*after[1:]))
            if i < drafted:
                told = chances[i] if i < len(chances) else float(i < taken)  # type: ignore[index,arg-type]
                for look in (after, by_head):
                    if look:
                        look[0].learn(*look[1:], told)
            if told is not None:
                before[0].learn(*before[1:], told)
