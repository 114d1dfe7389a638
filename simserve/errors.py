"""Every error that simserve raises on purpose.

SimserveError
├── InputError            the user's input is wrong: one sentence, exit code 2
│   ├── ScenarioError     a scenario file, an override, or a name in it
│   ├── TraceError        a trace file
│   │   └── NoTrace       there is none of that name
│   ├── ProfileError      a step-time profile
│   ├── ModelError        a model name or config.json
│   ├── FootprintError    a weight scheme, a memory size, or weights that no memory holds
│   ├── RunError          a folder that should hold a finished run
│   └── OutputError       a place that cannot be written
└── SchedulerStalled      a policy left work undone with nothing running: a defect of the policy, never of the input

An ``InputError`` says where, the rule, the value and, where it can, the remedy, in one sentence:
``skewed64.yaml: engine.kv_cache.block_size: must be ≥ 1 (got 0)``.
"""


class SimserveError(Exception):
    """Base of all errors of this package."""


class InputError(SimserveError):
    """The user's input breaks a rule; the message is one sentence and the exit code is 2."""


class ScenarioError(InputError):
    """A scenario file, an override or a name in it is wrong."""


class TraceError(InputError):
    """A trace file cannot be read as the dialect it is said to be."""


class NoTrace(TraceError):
    """There is no file of that name."""


class ProfileError(InputError):
    """A step-time profile is malformed, of another schema version, or for another model."""


class ModelError(InputError):
    """A model name is unknown, or its configuration lacks a dimension."""


class FootprintError(InputError):
    """A weight scheme or a memory size is unknown or impossible, or the weights leave no room for a token."""


class RunError(InputError):
    """A folder does not hold a whole run, or a run that it holds has no such variant."""


class OutputError(InputError):
    """A result cannot be written where the user asked."""


class SchedulerStalled(SimserveError):
    """Requests wait, nothing runs, and the policy schedules nothing: says what the head of the queue needed."""
