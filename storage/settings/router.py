"""Which draft a request is sent to: ``[router]``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from storage.settings.section import Section

Condition = Literal["tenant", "pattern", "topic", "language"]


class RouterSettings(Section):
    kind: Literal["auto", "classifier", "pinned", "fixed"] = "auto"
    """fixed honours routes that requests name, pinned also pins, classifier also rules; auto is classifier and chooses
    among a route's drafts by what each is expected to bring. Without rules and candidates they cost the same."""
    poll_seconds: float = Field(default=1.0, gt=0)
    """How often a server looks for changes of routes, pins and taught examples."""
    min_confidence: float = Field(default=0.5, ge=0, le=1)
    """How sure a guess of language or topic must be; below it a request takes the default route."""
    precedence: tuple[Condition, ...] = ("tenant", "pattern", "topic", "language")
    """Where several routes with as many conditions match a request, the one that goes by what comes first here wins.
    All four are named: what is known comes before what is guessed, unless this says otherwise."""
    language_model: Path | None = None
    """File of a language model to use instead of the one that ships with osd."""
    choose_by: Literal["prompt", "theorem", "weights", "both"] = "both"
    """What auto goes by: a prediction from the prompt (on-the-fly adaptation, Eq. 3, or its Theorem 3), weights learned
    from verified text, or whichever of prediction and weights does better on a route."""
    choose_dimensions: int = Field(default=16, ge=4)
    """r: features of a prompt from which auto predicts."""
    choose_warm_up: int = Field(default=25, ge=0)
    """Prompts on which auto judges each candidate before it chooses."""
    discover_requests: int = Field(default=0, ge=0)
    """The worker looks for routes in the traffic after so many served requests; 0: only `osd router discover` does."""
    apply_proposals: bool = False
    """Whether routes that are proposed are made at once, without an admin. Making one keeps prompts
    of the traffic as examples of its topic."""

    @field_validator("precedence")
    @classmethod
    def _names_all(cls, value: tuple[Condition, ...]) -> tuple[Condition, ...]:
        if sorted(value) != ["language", "pattern", "tenant", "topic"]:
            raise ValueError("it names tenant, pattern, topic and language, each once")
        return value
