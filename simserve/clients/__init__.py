"""The people outside: when they send, how long they wait, when they leave, and whether they come again."""

from simserve.clients.plan import NOBODY, OPEN_LOOP, STAYS, ClientPlan, RetryPolicy, Turns

__all__ = ["NOBODY", "OPEN_LOOP", "STAYS", "ClientPlan", "RetryPolicy", "Turns"]
