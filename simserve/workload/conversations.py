"""Sessions as conversations: what is taken for granted where a trace does not tell what turns keep."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from simserve.clients.plan import NOBODY
from simserve.request import Content, IntColumn, RequestTable
from simserve.workload.kept import continued, session_content
from simserve.workload.sessions import before_in_session


def continuing(table: RequestTable) -> tuple[RequestTable, str]:
    """The requests of a trace with sessions, where every turn that is as long as the prompt and answer before it is
    taken to begin with these (but not where its ids say that it begins with another prompt); and a note that says so,
    empty where no turn is long enough. The table's own content is what its ids tell, or its shared prefixes."""
    assert table.session is not None
    before, prompts, outputs = before_in_session(table.session), table.num_prompt_tokens, table.num_output_tokens
    kept, content = continued(before, prompts, outputs), table.content
    if isinstance(content, Content):
        content, kept = _with_answers(content, before, kept, prompts)
    elif kept.any():
        content = session_content(before, kept, prompts, outputs, content)
    num_continuing = int((kept > 0).sum())
    if not num_continuing:
        return table, ""
    num_later = int((before != NOBODY).sum())
    return replace(table, content=content), (
        f"{num_continuing:,} of {num_later:,} later turns are as long as the prompt and answer before them, and are "
        "taken to begin with these (workload.sessions_continue: false takes nothing for granted)"
    )


def _with_answers(
    content: Content, before: IntColumn, kept: IntColumn, prompts: IntColumn
) -> tuple[Content, IntColumn]:
    """Chains that go on with their answers' whole blocks, as the next turns' ids have them where these begin with all
    whole blocks of the prompt, one at least; and what is kept by these turns."""
    size, offsets = content.block_tokens, content.offsets
    chains = [content.ids[begin:end] for begin, end in pairwise(offsets.tolist())]
    longer, found = list(chains), np.zeros_like(kept)
    short_by = np.zeros(len(content), np.int64) if content.short_by is None else content.short_by.copy()
    for turn in np.flatnonzero(kept).tolist():
        i = int(before[turn])
        num_whole, num_kept = int(prompts[i]) // size, int(kept[turn]) // size
        if num_whole and np.array_equal(chains[i][:num_whole], chains[turn][:num_whole]):
            longer[i], short_by[i], found[turn] = chains[turn][:num_kept], 0, kept[turn]
    lengths = np.cumsum([0, *map(len, longer)])
    return Content(np.concatenate(longer), lengths, size, short_by if short_by.any() else None), found
