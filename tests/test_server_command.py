"""``simserve calibrate --url`` as a user runs it: a profile without secrets, or one sentence."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import calibrate.server.command as command_module
from calibrate.errors import CalibrationError
from calibrate.options import CalibrateOptions
from calibrate.server.command import KEY_VARIABLE, calibrate_server
from simserve import cli
from simserve.step_time.profile_schema import load_profile
from tests.fake_server import FakeServer

SMALL = {"max_prefill_tokens": 64, "max_batch_size": 2, "max_context": 160, "repeats": 1}
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, no key in the environment, short pauses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setattr("calibrate.server.load._FIRST_PAUSE_S", 0.01)
    return tmp_path


def _options(server: FakeServer, **changes: object) -> CalibrateOptions:
    options = CalibrateOptions(model="tiny", dtype="fp32", url=server.url, grid="quick", **SMALL)
    return replace(options, **changes)


def _calibrate(options: CalibrateOptions) -> tuple[Path, str]:
    out = StringIO()
    path = calibrate_server(options, Console(file=out, width=200))
    return path, out.getvalue()


def _refused(options: CalibrateOptions) -> str:
    with pytest.raises(CalibrationError) as caught:
        _calibrate(options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_profile_says_where_it_comes_from_and_how_far_to_trust_it(folder: Path) -> None:
    """Origin server, wall clock, host:port and model id as source; the notes tell what is in TTFT, how tokens were
    counted, how late the client was; a scenario can load it."""
    with FakeServer().in_a_thread() as server:
        path, printed = _calibrate(_options(server))
        profile = load_profile(path)
        made = profile.provenance
        assert (made.origin, made.clock, made.model, made.dtype) == ("server", "wall", "tiny", "fp32")
        assert made.source == f"127.0.0.1:{server.port}, model tiny"
    notes = " ".join(made.notes)
    for said in ("from outside", "token ids", "tokens counted by", "client was late by", "was not measured", "off by"):
        assert said in notes, said
    assert profile.kv_bytes_per_token is None
    assert profile.held_out.prefill.num_points == 0  # 256 is beyond what was asked for
    assert "points, about" in printed and "at the latest" in printed
    assert printed.index("points, about") < printed.index("Prefill")
    assert sorted(p.name for p in folder.iterdir()) == ["tiny-server-fp32.json"]


def test_secrets_are_sent_and_written_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key opens the door, by option or environment; file and screen hold neither it nor the URL's password."""
    with FakeServer(key="sk-secret").in_a_thread() as server:
        url = f"http://user:pa55word@127.0.0.1:{server.port}/v1?token=pa55word"
        path, printed = _calibrate(
            _options(server, url=url, api_key="sk-secret", command=f"simserve --url {url} --api-key sk-secret")
        )
        text = path.read_text() + printed
        assert "sk-secret" not in text and "pa55word" not in text and "user" not in path.read_text()
        assert (
            f"--url http://127.0.0.1:{server.port} --model tiny"
            in json.loads(path.read_text())["provenance"]["command"]
        )
        monkeypatch.setenv(KEY_VARIABLE, "sk-secret")
        _calibrate(_options(server, out=folder / "again.json"))
        monkeypatch.setenv(KEY_VARIABLE, "sk-wrong")
        said = _refused(_options(server))
    assert "must accept our key; give it with --api-key" in said and "sk-wrong" not in said
    assert "sk-secret" not in repr(_options(server, api_key="sk-secret"))


def test_ctrl_c_keeps_samples_and_the_next_run_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted in the middle: a partial file; the same options go on, and it is gone."""
    measure = command_module.ServerMeasurer._keep
    with FakeServer().in_a_thread() as server:

        def interrupt(self, point, seconds):
            measure(self, point, seconds)
            if len(self.findings.samples) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr(command_module.ServerMeasurer, "_keep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            _calibrate(_options(server))
        assert [p.name for p in folder.iterdir()] == ["tiny-server-fp32.json.partial"]
        monkeypatch.setattr(command_module.ServerMeasurer, "_keep", measure)
        path, printed = _calibrate(_options(server))
    assert "3 samples are there" in printed
    assert "interrupted run" in " ".join(load_profile(path).provenance.notes)
    assert [p.name for p in folder.iterdir()] == ["tiny-server-fp32.json"]


def test_a_server_that_dies_in_the_middle_leaves_the_samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tries, one sentence, and what was measured is kept."""
    with FakeServer().in_a_thread() as server:
        measure = command_module.ServerMeasurer._keep

        def die(self, point, seconds):
            measure(self, point, seconds)
            server.always = "reset" if len(self.findings.samples) == 2 else None

        monkeypatch.setattr(command_module.ServerMeasurer, "_keep", die)
        said = _refused(_options(server))
    assert f"127.0.0.1:{server.port}/v1/completions: must answer (got a" in said and "5 tries" in said
    assert (folder / "tiny-server-fp32.json.partial").exists()


def test_when_time_is_up_what_is_there_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit in the second round: a profile all the same, which says so."""
    from calibrate.server.load import OutOfTime

    measure = command_module.ServerMeasurer._keep

    def stop(self, point, seconds):
        measure(self, point, seconds)
        if len(self.findings.samples) == 8:
            raise OutOfTime

    monkeypatch.setattr(command_module.ServerMeasurer, "_keep", stop)
    with FakeServer().in_a_thread() as server:
        path, _ = _calibrate(_options(server, repeats=2))
    assert any(note.startswith("stopped by the time limit of 1800 s") for note in load_profile(path).provenance.notes)


REFUSED = {
    "no dtype": ({}, {"dtype": "auto"}, "dtype: must be named for a server"),
    "key of two lines": ({}, {"api_key": "a\r\nHost: b"}, "api_key: must be one word on one line"),
    "no time": ({}, {"time_limit_s": 0.0}, "time_limit_s: must be > 0"),
    "two models": ({"models": ("a", "b")}, {}, "/v1/models: must list one model, or --served-model name one of them"),
    "other model": ({"models": ("llama",)}, {"model": "25m"}, "model: must name the architecture that the server runs"),
    "no completions": ({"always": 404}, {}, "must be there, and serve the model that --served-model names"),
    "no lengths": ({"usage": False, "takes_ids": False}, {}, "must tell prompt_tokens in its usage"),
    "garbage": ({"always": "garbage"}, {}, r"must answer \(got an event that is not JSON; 5 tries\)"),
    "silence": ({"always": "stall"}, {"timeout_s": 0.05}, r"must answer \(got silence for 0.05 s; 2 tries\)"),
    "too slow": ({"always": "slow"}, {"time_limit_s": 0.3}, "time_limit_s: must allow the first answers"),
}


@pytest.mark.parametrize(("server", "changes", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_calibrated_is_one_sentence(
    server: dict[str, object], changes: dict[str, object], said: str, folder: Path
) -> None:
    """Wrong options and servers that cannot be measured: refused in words, nothing written."""
    import re

    with FakeServer(**server).in_a_thread() as running:
        assert re.search(said, _refused(_options(running, **changes)))
    assert list(folder.iterdir()) == []


def test_the_command_line_needs_no_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--url`` works in the base install: torch and transformers cannot even be imported."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("calibrate", "torch", "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with FakeServer(models=("a", "b")).in_a_thread() as server:
        words = ["--url", server.url, "--served-model", "b", "--model", "tiny", "--dtype", "fp32", "--grid", "quick"]
        done = CliRunner().invoke(cli.app, ["calibrate", *words, *FLAGS, "--out", "p.json"])
    assert done.exit_code == 0, done.output
    assert {body["model"] for body in server.bodies} == {"b"}
    assert load_profile(folder / "p.json").provenance.source == f"127.0.0.1:{server.port}, model b"


def test_the_command_line_ends_in_one_sentence(folder: Path) -> None:
    """Nobody there: exit code 2 and a line on stderr."""
    done = CliRunner().invoke(
        cli.app, ["calibrate", "--url", "http://127.0.0.1:1", "--model", "tiny", "--dtype", "fp32", "--timeout-s", "1"]
    )
    assert done.exit_code == 2
    assert done.stderr.startswith("error: 127.0.0.1:1/v1/models: must answer (got no connection")
    assert done.stderr.count("\n") == 1
