"""Files of what was measured, beside profiles: JSON by a schema, with a digest over the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from simserve.errors import ProfileError
from simserve.step_time.profile_schema import content_digest

Document = TypeVar("Document", bound=BaseModel)


def load_measured(
    path: Path, schema: type[Document], command: str, check: Callable[[object], None] = lambda content: None
) -> Document:
    """Read and check what ``command`` wrote; ``check`` sees the bare content before the schema does. Raises
    ``ProfileError`` in one sentence."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        check(content)
        document = schema.model_validate_json(json.dumps(content))
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "content"
        rule = first["msg"].removeprefix("Value error, ")
        raise ProfileError(f"{path}: {place}: {rule}; run `{command}` again") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: is not a whole JSON file ({error})") from error
    if content["digest"] != content_digest(content):
        raise ProfileError(f"{path}: digest: does not match the content, which was changed after it was measured")
    return document
