"""The people outside: when they send, how long they wait, when they leave, and whether they come again."""

from simserve.clients.plan import OPEN_LOOP, STAYS, ClientPlan, RetryPolicy

__all__ = ["OPEN_LOOP", "STAYS", "ClientPlan", "RetryPolicy"]
