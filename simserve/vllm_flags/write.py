"""``simserve init``: from the text of a command to a scenario file that runs."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from simserve.errors import OutputError
from simserve.scenario import parse_scenario
from simserve.scenario.messages import printable
from simserve.scenario.yaml_file import parse_yaml
from simserve.step_time.hardware import Hardware
from simserve.step_time.profile_schema import Profile, load_profile
from simserve.vllm_flags.command import Command, parse_command
from simserve.vllm_flags.devices import CPU, find_hardware, hardware_called
from simserve.vllm_flags.document import Findings, vllm_scenario
from simserve.vllm_flags.flags import VERSIONS, Flags, parse_flags
from simserve.vllm_flags.quoting import quoted
from simserve.vllm_flags.remarks import immaterial, translated, untranslated
from simserve.vllm_flags.settings import Target
from simserve.vllm_flags.starter import starter_scenario
from simserve.vllm_flags.translate import Engine, translate
from simserve.vllm_flags.weights import Weights, find_weights

DEFAULT_HARDWARE = "h100-sxm"
GRAPHS_COUNTED_SINCE = (0, 21)


@dataclass(frozen=True)
class InitOptions:
    """What was asked; without ``from_vllm`` a starter scenario is written."""

    out: Path
    from_vllm: str | None = None
    hardware: str | None = None
    profile: str | None = None
    version: str | None = None
    kv_cache_tokens: int | None = None
    force: bool = False


@dataclass(frozen=True)
class Written:
    """A scenario's text, and what there is to say about the flags that it came from."""

    text: str
    findings: Findings | None = None


def init_scenario(options: InitOptions) -> Written:
    """Make the scenario, check that it runs, write it. Raises InputError in one sentence, and then writes nothing."""
    if options.out.exists() and not options.force:
        raise OutputError(printable(f"{options.out}: exists already; give --force to replace it, or another --out"))
    if options.from_vllm is None:
        written = Written(starter_scenario(options.hardware, _located(options.profile, options.out)))
    else:
        written = from_vllm(options)
    check_runs(written.text, options.out.parent)
    _write(options.out, written.text)
    return written


def from_vllm(options: InitOptions) -> Written:
    """The scenario that the flags of a vLLM server mean. Raises InputError."""
    command = parse_command(options.from_vllm or "")
    version, remark = _version(options.version, command)
    flags = parse_flags(command.arguments, version)
    hardware, profile = _hardware(options)
    is_cpu = _is_cpu(hardware, profile)
    target = Target(hardware, is_cpu, command.environment, options.kv_cache_tokens, roofline=profile is None)
    weights = find_weights(flags, None if profile else hardware, options.out.parent)
    engine = translate(flags, weights, target)
    findings = _findings(flags, weights, engine, command, remark)
    if options.hardware is None and options.profile is None:
        note = f"no --hardware was given, and {DEFAULT_HARDWARE} is taken"
        findings = replace(findings, warnings=(note, *findings.warnings))
    return Written(vllm_scenario(weights, engine, _step_time(options, weights, engine, profile), findings), findings)


def check_runs(text: str, folder: Path) -> None:
    """Raise InputError unless `simserve run` would take the text, as a file in ``folder``."""
    from simserve.assemble import assemble

    scenario = parse_scenario(parse_yaml(text, "vllm serve"), "vllm serve", folder)
    for variant in scenario.resolve_variants().values():
        assemble(variant)


def _findings(flags: Flags, weights: Weights, engine: Engine, command: Command, remark: str | None) -> Findings:
    missing = {**untranslated(flags), **engine.problems, **_environment(command)}
    if weights.problem:
        missing["quantized weights"] = weights.problem
    return Findings(
        version=flags.version,
        translated=tuple(translated(flags)),
        untranslated=missing,
        immaterial=tuple(immaterial(flags)),
        warnings=((remark,) if remark else ()) + engine.warnings,
        model=printable(str(flags.model)),
    )


def _environment(command: Command) -> dict[str, str]:
    """Variables that may matter: names only, for values can be secrets."""
    read = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    quiet = ("VLLM_LOGGING", "VLLM_API_KEY", "VLLM_NO_USAGE", "VLLM_DO_NOT", "VLLM_CACHE", "VLLM_CONFIG", "VLLM_HOST")
    names = (name for name in sorted(command.environment) if name.startswith("VLLM_") and name not in read)
    return {f"{name} (variable)": "variables are not translated" for name in names if not name.startswith(quiet)}


def _version(asked: str | None, command: Command) -> tuple[str, str | None]:
    """Which of the known rules to take, and a remark where the image is of another version."""
    match = re.match(r"v?(\d+)\.(\d+)", command.image_tag or "")
    if asked is not None:
        return asked, None
    if match is None:
        return VERSIONS[-1], None
    number = (int(match[1]), int(match[2]))
    version = VERSIONS[0] if number < GRAPHS_COUNTED_SINCE else VERSIONS[1]
    exact = f"{number[0]}.{number[1]}" == version
    return version, None if exact else f"the image is vLLM {match[0]}, the rules are those of {version}"


def _hardware(options: InitOptions) -> tuple[Hardware | None, Profile | None]:
    profile = load_profile(options.profile) if options.profile is not None else None
    if options.hardware is not None:
        return find_hardware(options.hardware), profile
    if profile is not None:
        return hardware_called(profile.provenance.device_name), profile
    return find_hardware(DEFAULT_HARDWARE), None


def _is_cpu(hardware: Hardware | None, profile: Profile | None) -> bool:
    return (hardware is not None and hardware.name == CPU) or (
        profile is not None and profile.provenance.device == "cpu"
    )


def _step_time(options: InitOptions, weights: Weights, engine: Engine, profile: Profile | None) -> tuple[str, str]:
    """The section in YAML, and its comment."""
    parallel = f", tensor_parallel: {engine.tensor_parallel}" if engine.tensor_parallel > 1 else ""
    if profile is not None:
        name = _located(options.profile, options.out)
        return (
            f"{{profile: {quoted(name or profile.name)}{parallel}}}",
            f"measured in {profile.provenance.dtype} on {profile.provenance.device_name}",
        )
    hardware = find_hardware(options.hardware or DEFAULT_HARDWARE).name
    return (
        f"{{roofline: {hardware}{parallel}, dtype: {weights.dtype}}}",
        "estimated from a datasheet; a measured {profile: …} or {operators: …} is better",
    )


def _located(profile: str | None, out: Path) -> str | None:
    """A profile's name as it is, or its path from where the scenario will be."""
    if profile is None or not ("/" in profile or profile.endswith(".json")):
        return profile
    relative = os.path.relpath(Path(profile).resolve(), out.parent.resolve())
    return relative if "/" in relative else f"./{relative}"


def _write(path: Path, text: str) -> None:
    """All or nothing."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        reason = (error.strerror or str(error)).lower()
        raise OutputError(printable(f"{path}: cannot be written ({reason}); choose another --out")) from None
