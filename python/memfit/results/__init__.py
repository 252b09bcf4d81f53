"""Results of memfit's verbs: the JSON reports as frozen dataclasses, a module for each verb."""

from __future__ import annotations

from .cards import CardsReport
from .check import CheckReport
from .explain import ExplainReport
from .plan import PlanReport
from .run import RunReport

__all__ = ["CardsReport", "CheckReport", "ExplainReport", "PlanReport", "RunReport"]
