"""What ``simserve memory`` prints: one model's sum with what follows from it, or a table of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simserve.memory.answer import STORED, Answer
from simserve.memory.sizes import is_decimal, size_text

WIDTH_IN_A_PIPE = 120
PER_TOKEN, LEFT = "KV cache\nof a token", "left for\ntokens"
CAN_BE_LEFT_OUT = ("bits", PER_TOKEN, LEFT)
NAMES = {"mha": "multi-head", "gqa": "grouped-query", "mqa": "multi-query"}


def print_answer(found: Answer, console: Console) -> None:
    """One model in one memory: the sum, users and contexts, and other numbers of KV heads."""
    _widen(console)
    heads = f"{found['num_kv_heads']} KV heads × {found['head_dim']}"
    kind = f" ({NAMES[found['attention']]})" if found["attention"] else ""
    title = f"{found['model']}: {found['num_parameters']:,} parameters, {found['num_layers']} layers × {heads}{kind}"
    console.print(Text(title, style="bold"))
    console.print(_sum(found), "")
    if found["users_at_context"] or found["context_at_users"]:
        console.print(_shares(found), "")
    if found["demands"]:
        console.print(_demands(found))
    console.print(_what_if(found))
    _print_notes([found], console)


def print_answers(answers: Sequence[Answer], console: Console) -> None:
    """A row for each model, way to keep its weights, and memory. Where a terminal is narrow, columns that follow from
    the others are left out; no figure is ever cut."""
    _widen(console)
    columns, spare = _columns(answers), list(CAN_BE_LEFT_OUT)
    while (width := _width(table := _table(answers, columns), console)) > console.width and spare:
        columns.pop(spare.pop(0), None)
    console.width = max(console.width, width)
    console.print(table)
    _print_notes(answers, console)


def _table(answers: Sequence[Answer], columns: Mapping[str, Sequence[Text]]) -> Table:
    first = answers[0]
    overhead, devices = size_text(first["overhead_bytes_per_device"]), first["tensor_parallel"]
    shared = "" if devices == 1 else f", {devices} devices share each model"
    title = f"KV cache in {first['kv_dtype']}, {overhead} of each device reserved{shared}"
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left")
    for head in columns:
        table.add_column(head, justify="left" if head in ("model", "weights", "memory") else "right", no_wrap=True)
    for i, row in enumerate(zip(*columns.values(), strict=True)):
        last = i + 1 == len(answers) or answers[i + 1]["model"] != answers[i]["model"]
        table.add_row(*row, end_section=last)
    return table


def _width(table: Table, console: Console) -> int:
    """What a table takes where nothing is cut."""
    return console.measure(table, options=console.options.update(width=1_000)).maximum


def _columns(answers: Sequence[Answer]) -> dict[str, list[Text]]:
    """Cells of each column by its head; what a memory leaves only where there is one."""
    columns = {
        "model": [Text(found["model"]) for found in answers],
        "weights": [Text(found["weights"] + " bits" * found["weights"][0].isdigit()) for found in answers],
        "memory": [Text(_memory(found)) for found in answers],
        "bits": [Text(f"{found['bits_per_weight']:.5g}") for found in answers],
        "weights\ntake": [Text(size_text(found["weight_bytes"], _decimal(found))) for found in answers],
        PER_TOKEN: [Text(f"{found['kv_bytes_per_token_with_copies']:,} B") for found in answers],
    }
    if answers[0]["memory"] is None:
        del columns["memory"]
        return columns
    columns[LEFT] = [_left(found) for found in answers]
    columns["resident\ntokens"] = [_count(found["resident_tokens"]) for found in answers]
    users, contexts = ([found[key] or {} for found in answers] for key in ("users_at_context", "context_at_users"))
    for shares, words in ((users, "users at\n{:,}"), (contexts, "context\nof {:,}")):
        columns |= {words.format(int(n)): [_count(share[n]) for share in shares] for n in shares[0]}
    return columns


def _left(found: Answer) -> Text:
    """Bytes for tokens, or how many are missing, as a negative number."""
    if found["fits"]:
        return Text(size_text(found["cache_bytes"] or 0, _decimal(found)))
    return Text(f"−{size_text(found['missing_bytes'] or 0, _decimal(found))}", style="yellow")


def _count(number: int | None) -> Text:
    return Text(f"{number:,}" if number else "–")


def _sum(found: Answer) -> Table:
    """Memory, less weights, less overhead, is left for tokens."""
    table = _plain_table()
    decimal, devices = _decimal(found), found["tensor_parallel"]
    weights = size_text(found["weight_bytes"], decimal)
    if found["memory_bytes_per_device"] is None or found["cache_bytes"] is None:
        table.add_row(f"weights, {_weights(found)}", weights)
    else:
        overhead = devices * found["overhead_bytes_per_device"]
        table.add_row(f"memory, {_memory(found)}", size_text(devices * found["memory_bytes_per_device"], decimal))
        table.add_row(f"weights, {_weights(found)}", f"− {weights}")
        table.add_row("overhead", f"− {size_text(overhead, decimal)}")
        table.add_row("left for tokens", size_text(found["cache_bytes"], decimal))
    held = found["kv_bytes_per_token_with_copies"]
    copies = ", copies on all devices" if held != found["kv_bytes_per_token"] else ""
    table.add_row(f"KV cache of a token, {found['kv_dtype']}{copies}", f"{held:,} bytes")
    if found["resident_tokens"] is not None:
        table.add_row(Text("resident tokens", style="bold"), Text(f"{found['resident_tokens']:,}", style="bold"))
    return table


def _shares(found: Answer) -> Table:
    table = _plain_table()
    for context, users in (found["users_at_context"] or {}).items():
        table.add_row(f"users with {int(context):,} tokens each", f"{users:,}")
    longest = found["max_context"]
    for users_text, context_each in (found["context_at_users"] or {}).items():
        who = "user has" if users_text == "1" else "users have"
        beyond = f" (the model reads {longest:,})" if longest is not None and context_each > longest else ""
        table.add_row(f"{int(users_text):,} {who} each", f"{context_each:,} tokens{beyond}")
    return table


def _demands(found: Answer) -> Table:
    table = Table(title=Text("What users need"), box=box.SIMPLE_HEAD, title_justify="left")
    has_memory = found["memory"] is not None
    for head in ("users", "context each", "tokens", "KV cache", *(["fits"] if has_memory else [])):
        table.add_column(head, justify="right")
    for demand in found["demands"]:
        row = [f"{demand['users']:,}", f"{demand['context']:,}", f"{demand['tokens']:,}"]
        row += [size_text(demand["cache_bytes"], _decimal(found)), *(["yes" if demand["fits"] else "no"] * has_memory)]
        table.add_row(*row)
    return table


def _what_if(found: Answer) -> Table:
    table = Table(title=Text("With other KV heads"), box=box.SIMPLE_HEAD, title_justify="left")
    has_memory = found["memory"] is not None
    table.add_column("attention")
    for head in ("KV heads", "KV/token", "weights take", *(["resident tokens"] if has_memory else [])):
        table.add_column(head, justify="right")
    for other in found["what_if"]:
        name = NAMES[other["attention"]] if other["attention"] else ""
        own = ("this model" if not name else f"{name}, this model") if other["is_model"] else name
        row = [own, f"{other['num_kv_heads']}", f"{other['kv_bytes_per_token']:,} B"]
        row.append(size_text(other["weight_bytes"], _decimal(found)))
        if other["resident_tokens"] is not None:
            row.append(f"{other['resident_tokens']:,}")
        table.add_row(*(Text(cell, style="bold" if other["is_model"] else "") for cell in row))
    return table


def _plain_table() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    return table


def _weights(found: Answer) -> str:
    bits = f"{found['bits_per_weight']:.5g} bits"
    name = found["weights"]
    if name[0].isdigit():
        return bits
    return name if bits.removesuffix(" bits") in name else f"{name} ({bits})"


def _memory(found: Answer) -> str:
    if found["memory"] is None:
        return "–"
    return found["memory"] if found["tensor_parallel"] == 1 else f"{found['tensor_parallel']} × {found['memory']}"


def _decimal(found: Answer) -> bool:
    return found["memory"] is not None and is_decimal(found["memory"])


def _widen(console: Console) -> None:
    if not console.is_terminal:
        console.width = max(console.width, WIDTH_IN_A_PIPE)


def _print_notes(answers: Sequence[Answer], console: Console) -> None:
    """What a reader must know, once each; a row's own notes name its model."""
    notes = [note for found in answers for note in found["notes"]]
    if any(found["weights"] != STORED and found["bits_per_weight"] < 8 for found in answers):
        notes.append("every parameter is counted in the scheme; checkpoints usually keep embeddings in 16 bits")
    for note in dict.fromkeys(notes):
        console.print(Text(f"note: {note}", style="yellow"), soft_wrap=True)
